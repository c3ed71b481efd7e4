import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import MetricCollection

from lightfast import metrics
from lightfast.metrics import psnr, recovery_error, reproduction_error, summary

FORMS = ["paper", "finlayson"]


def naive_angle(a, b):
    a, b = a.double(), b.double()
    cosine = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
    return torch.rad2deg(torch.arccos(cosine.clamp(-1, 1)))


def naive_reproduction(estimate, truth, form):
    ratio = (estimate.double() / truth.double()) ** (1 if form == "paper" else -1)
    cosine = ratio.sum(1) / (3 * ratio.square().sum(1)).sqrt()
    return torch.rad2deg(torch.arccos(cosine.clamp(-1, 1)))


def lights(n, seed=0, dtype=torch.float32):
    return torch.rand(n, 3, generator=torch.Generator().manual_seed(seed), dtype=dtype) + 0.05


# name -> the function as the class of the same arguments applies it
ANGLES = {
    "recovery": recovery_error,
    "paper": reproduction_error,
    "finlayson": lambda estimate, truth: reproduction_error(estimate, truth, form="finlayson"),
}


@pytest.fixture(params=ANGLES)
def angle(request):
    return ANGLES[request.param]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
def test_angles_equal_the_arccos_formula(dtype, tolerance):
    estimate, truth = lights(200, 0, dtype), lights(200, 1, dtype)
    close = {"rtol": 0, "atol": tolerance, "check_dtype": False}
    torch.testing.assert_close(recovery_error(estimate, truth), naive_angle(estimate, truth), **close)
    for form in FORMS:
        ours = reproduction_error(estimate, truth, form)
        assert ours.shape == (200,) and ours.dtype == dtype
        torch.testing.assert_close(ours, naive_reproduction(estimate, truth, form), **close)


def test_recovery_of_known_angles():
    estimate = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [5.0, 0.0, 0.0]])
    truth = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.1, 0.0, 0.0]])
    torch.testing.assert_close(recovery_error(estimate, truth), torch.tensor([90.0, 45.0, 180.0, 0.0]))


def test_one_perfect_estimate(angle):
    truth = lights(5)
    assert angle(truth * 3, truth).max() < 1e-5


@settings(deadline=None)
@given(st.floats(-30, 30), st.floats(-30, 30))
def test_brightness_does_not_matter(a, b):
    estimate, truth = lights(4, 0), lights(4, 1)
    for function in ANGLES.values():
        torch.testing.assert_close(function(10**a * estimate, 10**b * truth), function(estimate, truth))


def test_reproduction_does_not_see_gains_on_both(angle):
    estimate, truth, gains = (lights(50, seed, torch.float64) for seed in range(3))
    if angle is recovery_error:
        assert not torch.allclose(angle(gains * estimate, gains * truth), angle(estimate, truth))
    else:
        torch.testing.assert_close(angle(gains * estimate, gains * truth), angle(estimate, truth))


@pytest.mark.parametrize("degrees", [1e-3, 1e-2, 0.1])
def test_small_angles_are_resolved_in_float32(degrees):
    turn = np.deg2rad(degrees)
    white = torch.ones(1, 3, dtype=torch.float64) / 3**0.5
    across = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64) / 2**0.5
    turned = (np.cos(turn) * white + np.sin(turn) * across).float()
    for function in (recovery_error, reproduction_error):
        assert function(turned, torch.ones(1, 3)).item() == pytest.approx(degrees, abs=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_at_and_near_zero(angle, dtype):
    truth = lights(6, dtype=dtype)
    estimate = (truth * (1 + 1e-7 * torch.arange(6, dtype=dtype)[:, None] * torch.tensor([1, 0, -1]))).requires_grad_()
    angle(estimate, truth).sum().backward()
    assert estimate.grad is not None and estimate.grad.isfinite().all()


def test_gradcheck(angle):
    estimate, truth = (lights(4, seed, torch.float64).requires_grad_() for seed in (0, 1))
    assert torch.autograd.gradcheck(angle, (estimate, truth))


def test_angles_of_light_that_varies_and_of_other_layouts():
    estimate, truth = torch.rand(2, 3, 4, 5) + 0.1, torch.rand(2, 3, 4, 5) + 0.1
    for function in (recovery_error, reproduction_error):
        maps = function(estimate, truth)
        assert maps.shape == (2, 4, 5)
        pixel = function(estimate[:, :, 1, 2], truth[:, :, 1, 2])
        torch.testing.assert_close(maps[:, 1, 2], pixel)
        last = function(estimate.movedim(1, -1), truth.movedim(1, -1), dim=-1)
        torch.testing.assert_close(last, maps)
    gray = torch.ones(1, 3)
    torch.testing.assert_close(recovery_error(lights(7), gray), recovery_error(lights(7), gray.expand(7, 3)))


def test_half_precision_and_integers_are_widened(angle):
    estimate, truth = lights(5, 0).bfloat16(), lights(5, 1).bfloat16()
    torch.testing.assert_close(angle(estimate, truth), angle(estimate.float(), truth.float()))
    assert angle(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 3]])).dtype == torch.float32


def test_a_nan_estimate_stays_visible(angle):
    assert angle(torch.tensor([[1.0, float("nan"), 1.0]]), torch.ones(1, 3)).isnan().all()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda one, zero: reproduction_error(one, zero), "the truth has a channel that is 0"),
        (lambda one, zero: reproduction_error(zero, one, "finlayson"), "the estimate has a channel that is 0"),
        (lambda one, zero: recovery_error(0 * one, one), "the estimate has a light that is 0 in every channel"),
        (lambda one, zero: recovery_error(one, 0 * one), "the truth has a light that is 0 in every channel"),
        (lambda one, zero: recovery_error(one, one[:, :2]), "of the same shape"),
        (lambda one, zero: recovery_error(one[0], one[0]), "along dimension 1"),
        (lambda one, zero: reproduction_error(one, one, "inverse"), 'form must be "paper" or "finlayson"'),
        (lambda one, zero: psnr(one, one[:1]), "of the same shape"),
        (lambda one, zero: psnr(one, one, data_range=0), "data_range must be above 0"),
        (lambda one, zero: summary([]), "no summary without errors"),
        (lambda one, zero: summary([1.0, float("nan")]), "1 of 2 errors are NaN"),
    ],
)
def test_bad_input_is_refused(make, sentence):
    one = torch.ones(2, 3)
    zero = one.clone()
    zero[1, 2] = 0
    with pytest.raises(ValueError, match=sentence):
        make(one, zero)


def test_a_zero_channel_where_nothing_divides_by_it():
    one, zero = torch.ones(1, 3), torch.tensor([[1.0, 1.0, 0.0]])
    expected = naive_angle(one, zero).float()
    for error in (
        recovery_error(one, zero),
        reproduction_error(zero, one),
        reproduction_error(one, zero, "finlayson"),
    ):
        torch.testing.assert_close(error, expected)


@settings(deadline=None)
@given(st.lists(st.floats(0, 180), min_size=1, max_size=50))
def test_summary(errors):
    got = summary(errors)
    ordered = sorted(errors)
    quarter = -(-len(errors) // 4)
    quartiles = np.percentile(errors, [25, 50, 75])
    assert got.mean == pytest.approx(np.mean(errors))
    assert got.median == pytest.approx(np.median(errors))
    assert got.trimean == pytest.approx(quartiles @ [0.25, 0.5, 0.25])
    assert got.best25 == pytest.approx(np.mean(ordered[:quarter]))
    assert got.worst25 == pytest.approx(np.mean(ordered[-quarter:]))
    assert got.p95 == pytest.approx(np.percentile(errors, 95))


def test_summary_of_any_input():
    errors = torch.rand(4, 5, requires_grad=True)
    assert summary(errors) == summary(errors.detach().flatten().numpy())
    assert summary(errors.bfloat16()).mean == pytest.approx(summary(errors).mean, rel=1e-2)
    assert list(summary(errors).as_dict()) == ["mean", "median", "trimean", "best25", "worst25", "p95"]


def test_psnr():
    a, b = torch.rand(4, 3, 6, 5), torch.rand(4, 3, 6, 5)
    expected = [10 * np.log10(1 / np.mean((x - y) ** 2)) for x, y in zip(a.numpy(), b.numpy(), strict=True)]
    np.testing.assert_allclose(psnr(a, b), expected, rtol=1e-5)
    torch.testing.assert_close(psnr(a * 255, b * 255, data_range=255), psnr(a, b))
    assert psnr(a, a).eq(float("inf")).all()
    # Differences of 8-bit images must not wrap around.
    bright, dark = torch.full((1, 1), 255, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8)
    assert psnr(dark, bright, data_range=255).item() == pytest.approx(0, abs=1e-5)


CLASSES = {
    "recovery": metrics.RecoveryError,
    "paper": metrics.ReproductionError,
    "finlayson": lambda **kwargs: metrics.ReproductionError(form="finlayson", **kwargs),
}


@pytest.mark.parametrize("name", CLASSES)
def test_class_equals_function_over_all_batches(name):
    metric = CLASSES[name]()
    estimate, truth = lights(23, 0), lights(23, 1)
    for batch in zip(estimate.split(5), truth.split(5), strict=True):
        at_once = metric(*batch)
        assert at_once["mean"].item() == pytest.approx(ANGLES[name](*batch).mean().item(), rel=1e-5)
    expected = summary(ANGLES[name](estimate, truth)).as_dict()
    assert {key: value.item() for key, value in metric.compute().items()} == pytest.approx(expected, rel=1e-6)
    metric.reset()
    metric.update(truth, truth)
    assert pickle.loads(pickle.dumps(metric)).compute()["worst25"] < 1e-5


def test_psnr_class_equals_function_over_all_batches():
    a, b = torch.rand(7, 3, 4, 4), torch.rand(7, 3, 4, 4)
    metric = metrics.PSNR(data_range=2.0)
    for batch in zip(a.split(3), b.split(3), strict=True):
        metric.update(*batch)
    torch.testing.assert_close(metric.compute(), psnr(a, b, data_range=2.0).mean())


def test_classes_gather_from_all_processes():
    estimate, truth = lights(9, 0), lights(9, 1)
    elsewhere = recovery_error(estimate[4:], truth[4:])
    metric = metrics.RecoveryError(
        dist_sync_fn=lambda values, group=None: [values, elsewhere], distributed_available_fn=lambda: True
    )
    metric.update(estimate[:4], truth[:4])
    assert metric.compute()["mean"].item() == pytest.approx(recovery_error(estimate, truth).mean().item())


def test_a_collection_keeps_metrics_apart_that_agree_on_the_first_batch():
    collection = MetricCollection({name: make() for name, make in CLASSES.items()})
    white = torch.ones(4, 3)
    batches = [(white, white), (lights(4, 0), white), (lights(4, 0), lights(4, 1))]
    for batch in batches:
        collection.update(*batch)
    together = collection.compute()
    for name, function in ANGLES.items():
        alone = torch.cat([function(*batch) for batch in batches]).mean()
        torch.testing.assert_close(together[f"{name}_mean"], alone)


def test_without_torchmetrics_only_the_classes_are_missing():
    code = """
import sys
sys.modules["torchmetrics"] = None
from lightfast import metrics
import torch
print(metrics.recovery_error(torch.eye(3), torch.ones(3, 3)).shape)
try:
    metrics.PSNR
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch.Size([3])" in done.stdout
    assert "pip install 'lightfast[train]'" in done.stdout


def test_module_lists_its_lazy_names():
    assert set(metrics.__all__) <= set(dir(metrics))
    with pytest.raises(AttributeError, match="no attribute 'SSIM'"):
        metrics.SSIM  # noqa: B018
