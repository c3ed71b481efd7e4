"""Fields: what is taken away is exactly a field of the span, at any size, under any mask."""

from __future__ import annotations

import math

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lightfast import certify, wrap
from lightfast._groups import Groups
from lightfast.fields import (
    Cosines,
    Polynomial,
    RemoveField,
    Ridge,
    _tables,
    add_field,
    field_map,
    field_mean,
    log_level,
    positions,
    project_field,
    remove_field,
)
from lightfast.functional import add_offset, center, group_pool

FIELDS = [0, 1, 2, 3, Cosines(2)]
RIDGES = [Ridge(3, 0.2), Ridge(4, 0.05, exact=2), Ridge(2, 0.0)]


def bumps(p: Tensor) -> Tensor:
    """Functions of a user: the constant is not among them, and the last two are the same."""
    near = torch.exp(-p.square().sum(-1))
    return torch.stack([near, near * 2 + p.sum(-1), p.sum(-1)], -1)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def maps(draw):
    """A map in float64, its assignment, the features' axis, a field and a seed."""
    count = draw(st.integers(1, 4))
    if draw(st.booleans()):
        groups = Groups.even(count * draw(st.integers(1, 3)), count)
    else:
        extra = draw(st.lists(st.integers(0, count - 1), max_size=4))
        groups = Groups(draw(st.permutations([*range(count), *extra])), count)
    size = draw(st.lists(st.integers(1, 7), max_size=3))
    dim = draw(st.integers(1, len(size) + 1))
    shape = [draw(st.integers(1, 3)), *size]
    shape.insert(dim, groups.features)
    seed = draw(st.integers(0, 2**16))
    field = draw(st.sampled_from([*FIELDS, bumps]) if size else st.sampled_from(FIELDS))
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed)), groups, dim, field, seed


def some_field(x: Tensor, groups: Groups, dim: int, field, seed: int) -> Tensor:
    """Random coefficients of a field over maps like `x`, up to a hundred or so."""
    count = project_field(x, groups, field, dim=dim).shape[-1]
    drawn = torch.randn(x.shape[0], groups.count, count, dtype=torch.float64, generator=seeded(seed + 1))
    return 30 * drawn


@given(maps())
def test_no_field_of_the_span_changes_what_is_left(given_map) -> None:
    x, groups, dim, field, seed = given_map
    moved = add_field(x, some_field(x, groups, dim, field, seed), groups, field, dim)
    z, coefficients = remove_field(x, groups, field, dim=dim)
    torch.testing.assert_close(remove_field(moved, groups, field, dim=dim)[0], z, rtol=0, atol=1e-10)
    torch.testing.assert_close(add_field(z, coefficients, groups, field, dim), x, rtol=0, atol=1e-12)
    torch.testing.assert_close(remove_field(z, groups, field, dim=dim)[0], z, rtol=0, atol=1e-12)


@given(maps())
def test_the_projection_is_orthogonal(given_map) -> None:
    """As least squares find it: what is left has no part in the span."""
    x, groups, dim, field, _ = given_map
    left = group_pool(remove_field(x, groups, field, dim=dim)[0], groups, scope="pixel", dim=dim).movedim(dim, 1)
    size = tuple(left.shape[2:])
    functions = Polynomial(field) if isinstance(field, int) else field
    values = functions(positions(size))
    assert (left.reshape(-1, math.prod(size)) @ values).abs().max() < 1e-10


@given(maps(), st.floats(0.05, 1.0), st.booleans())
def test_masks_of_any_kind(given_map, share: float, weighted: bool) -> None:
    """What counts does not change, even where few positions count, or none; what does not count may be NaN."""
    x, groups, dim, field, seed = given_map
    shape = [1 if axis == dim else pixels for axis, pixels in enumerate(x.shape)]
    mask = torch.rand(shape, generator=seeded(seed + 2)) < share
    counts = mask.expand_as(x)
    if weighted:
        mask = mask * (torch.rand(shape, generator=seeded(seed + 3)) + 0.5)
    moved = add_field(x, some_field(x, groups, dim, field, seed), groups, field, dim)
    z, coefficients = remove_field(x, groups, field, mask, dim)
    again, _ = remove_field(moved.masked_fill(~counts, torch.nan), groups, field, mask, dim)
    assert coefficients.isfinite().all()
    torch.testing.assert_close(again[counts], z[counts], rtol=0, atol=1e-8)


@pytest.mark.parametrize("field", [1, 2, Cosines(1)])
def test_a_mask_that_tells_the_functions_apart_decides_everywhere(field) -> None:
    x, mask = torch.randn(4, 3, 9, 8, dtype=torch.float64), torch.rand(4, 1, 9, 8) < 0.5
    moved = add_field(x, some_field(x, Groups.even(3, 3), 1, field, 0), 3, field)
    torch.testing.assert_close(remove_field(moved, 3, field, mask)[0], remove_field(x, 3, field, mask)[0])
    torch.testing.assert_close(project_field(x, 3, field, mask.new_ones(9, 8)), project_field(x, 3, field))
    one, all_ = project_field(x[1:2], 3, field, mask[1:2]), project_field(x, 3, field, mask)
    torch.testing.assert_close(one, all_[1:2])


def test_where_nothing_counts_nothing_is_taken_away() -> None:
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    mask = torch.tensor([True, False])[:, None, None, None]
    for field in (0, 1):
        z, coefficients = remove_field(x, 3, field, mask)
        assert torch.equal(z[1], x[1]) and not coefficients[1].any()
        (gradient,) = torch.autograd.grad(z.square().sum(), x)
        assert gradient.isfinite().all()


@given(maps())
def test_the_constant_is_the_group_mean(given_map) -> None:
    x, groups, dim, _, _ = given_map
    for field in (0, Polynomial(0), Cosines(0)):
        z, coefficients = remove_field(x, groups, field, dim=dim)
        means = group_pool(x, groups, dim=dim)
        assert torch.equal(coefficients[..., 0], means.flatten(1))
        assert torch.equal(z, center(x, groups, dim=dim))
        assert torch.equal(add_field(x, coefficients, groups, field, dim), add_offset(x, means, groups, dim))
    mask = torch.ones([1 if axis == dim else pixels for axis, pixels in enumerate(x.shape)], dtype=torch.bool)
    torch.testing.assert_close(project_field(x, groups, 0, mask, dim)[..., 0], means.flatten(1))


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_is_the_same_at_any_resolution(field) -> None:
    groups = Groups.even(3, 3)
    coefficients = some_field(torch.zeros(2, 3, 8, 8), groups, 1, field, 0)
    for size in ((8, 8), (9, 5), (31, 64)):
        seen = project_field(field_map(coefficients, field, size), 3, field)
        torch.testing.assert_close(seen, coefficients)


@pytest.mark.parametrize("size", [(1, 1), (1, 6), (2, 2), (2, 7), (1, 2)])
def test_a_constant_stays_one_where_other_functions_cannot_be_told_from_it(size) -> None:
    """An offset seen on a few pixels is the same offset elsewhere."""
    offset = torch.tensor([[3.0, -1.0, 2.0]])
    x = offset[:, :, None, None].expand(1, 3, *size)
    for field in FIELDS:
        for mask in (None, torch.ones(1, 1, *size, dtype=torch.bool)):
            coefficients = project_field(x, 3, field, mask)
            elsewhere = offset[:, :, None, None].expand(1, 3, 16, 16)
            torch.testing.assert_close(field_map(coefficients, field, (16, 16)), elsewhere, rtol=0, atol=1e-5)


def test_positions_are_pixel_centers() -> None:
    assert positions((2, 4)).tolist() == [[v, u] for v in (-0.5, 0.5) for u in (-0.75, -0.25, 0.25, 0.75)]
    assert positions(()).shape == (1, 0)


@pytest.mark.parametrize(("axes", "counts"), [(1, (1, 2, 3)), (2, (1, 3, 6)), (3, (1, 4, 10))])
def test_how_many_functions_there_are(axes: int, counts: tuple[int, ...]) -> None:
    for order, count in enumerate(counts):
        assert Polynomial(order)(positions((4,) * axes)).shape[1] == count
        assert Cosines(order)(positions((4,) * axes)).shape[1] == count


def test_polynomials_span_what_they_should() -> None:
    v, u = positions((5, 7)).T
    values = Polynomial(2)(positions((5, 7)))
    for function in (torch.ones_like(u), u, v, u * u, u * v, v * v, (1 + u - 3 * v) ** 2):
        solution = torch.linalg.lstsq(values, function[:, None]).solution
        torch.testing.assert_close(values @ solution, function[:, None])


@pytest.mark.parametrize("field", FIELDS)
def test_the_mean_of_a_field(field) -> None:
    x = torch.randn(2, 6, 5, 4)
    coefficients = project_field(x, 3, field)
    means = group_pool(x, 3).flatten(1)
    torch.testing.assert_close(field_mean(coefficients, field, (5, 4)), means)
    torch.testing.assert_close(field_map(coefficients, field, (5, 4)).mean((2, 3)), means)


@pytest.mark.parametrize("field", [1, 2])
def test_low_precision(field: int) -> None:
    """Statistics in float32 at least, whatever the map, and whatever precision products are allowed."""
    x = torch.randn(2, 6, 16, 16, dtype=torch.float64)
    wide, _ = remove_field(x, 3, field)
    half, coefficients = remove_field(x.bfloat16(), 3, field)
    assert half.dtype == torch.bfloat16 and coefficients.dtype == torch.float32
    torch.testing.assert_close(half.double(), wide, rtol=0, atol=0.05)
    light = add_field(x, some_field(x, Groups.even(6, 3), 1, field, 0), 3, field).float()
    plain = remove_field(light, 3, field)
    torch.testing.assert_close(plain[0].double(), wide, rtol=0, atol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(remove_field(light, 3, field), plain, rtol=0, atol=0)


def test_gradients() -> None:
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 1, 3, 3) < 0.7

    def there_and_back(x: Tensor) -> Tensor:
        z, coefficients = remove_field(x, 2, 1, mask)
        return add_field(z.relu(), coefficients, 2, 1)

    assert torch.autograd.gradcheck(there_and_back, x)
    assert torch.autograd.gradcheck(lambda x: remove_field(x, 2, 2), x)


def test_tables_that_inference_made_serve_training() -> None:
    _tables._kept.clear()
    x = torch.randn(1, 3, 6, 11, requires_grad=True)
    with torch.inference_mode():
        remove_field(x, 3, 1)
    remove_field(x, 3, 1)[0].square().sum().backward()
    assert x.grad is not None


def test_few_tables_are_kept() -> None:
    for pixels in range(1, 100):
        project_field(torch.zeros(1, 1, pixels), 1, 1)
    assert len(_tables._kept) <= _tables._CACHED_SIZES
    project_field(torch.zeros(1, 1, _tables._CACHED_VALUES), 1, 1)
    assert all(values.numel() <= _tables._CACHED_VALUES for values, _ in _tables._kept.values())


@pytest.mark.gpu
@pytest.mark.parametrize("masked", [False, True])
def test_on_a_gpu(masked: bool) -> None:
    """As on the CPU, with TF32 and autocast allowed, and in a CUDA graph whose tables are no longer kept."""
    x, mask = torch.randn(4, 6, 16, 16), (torch.rand(4, 1, 16, 16) < 0.5 if masked else None)
    moved = add_field(x, 30 * torch.randn(4, 3, 3), 3, 1)
    expected = remove_field(x, 3, 1, mask)[0]
    there, shown = moved.cuda(), None if mask is None else mask.cuda()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            torch.testing.assert_close(remove_field(there, 3, 1, shown)[0].cpu(), expected, rtol=0, atol=1e-4)
    finally:
        torch.set_float32_matmul_precision(before)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z, _ = remove_field(there, 3, 1, shown)
    _tables._kept.clear()
    torch.cuda.empty_cache()
    graph.replay()
    torch.testing.assert_close(z.cpu(), expected, rtol=0, atol=1e-4)


class ThereAndBack(nn.Module):
    """An output at other positions than the input's, with a mask if there is one."""

    def __init__(self, field) -> None:
        super().__init__()
        self.field = field

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        z, coefficients = remove_field(x, 3, self.field, mask)
        return add_field(z[:, :, ::2, ::2].relu(), coefficients, 3, self.field)


@pytest.mark.parametrize("field", [1, 2, Cosines(1)])
def test_compilers_follow(field) -> None:
    torch.compiler.reset()
    net = ThereAndBack(field)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    # Later sizes are no longer known to the compiler when it compiles.
    for size in ((8, 8), (4, 6), (7, 5)):
        x = torch.randn(2, 3, *size)
        torch.testing.assert_close(compiled(x), net(x))
    mask = torch.rand(2, 1, 7, 5) < 0.5
    torch.testing.assert_close(compiled(x, mask), net(x, mask))


# Torch's exporter warns about what torch itself does.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("masked", [False, True])
def test_onnx(masked: bool, tmp_path) -> None:
    net = ThereAndBack(2).eval()
    inputs = (torch.randn(2, 3, 8, 9), torch.rand(2, 1, 8, 9) < 0.5)[: 1 + masked]
    program = torch.export.export(net, inputs, dynamic_shapes=tuple({0: torch.export.Dim("batch")} for _ in inputs))
    names = ["x", "mask"][: 1 + masked]
    torch.onnx.export(program, f=tmp_path / "net.onnx", dynamo=True, input_names=names, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    more = [torch.cat([given, given.flip(-1)]) for given in inputs]
    answer = session.run(None, {name: value.numpy() for name, value in zip(names, more, strict=True)})[0]
    np.testing.assert_allclose(answer, net(*more), atol=1e-5)


def test_a_step_of_a_data_pipeline() -> None:
    transform = RemoveField(field=2)
    images = torch.randn(2, 5, 3, 8, 8)
    mask = torch.rand(2, 1, 1, 8, 8) < 0.8
    assert transform(images).shape == images.shape
    torch.testing.assert_close(transform(images)[1, 2], transform(images[1, 2]))
    torch.testing.assert_close(transform(images, mask)[1, 2], transform(images[1, 2], mask[1, 0]))
    assert "field=2" in repr(transform)


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: RemoveField(field=-1), ValueError, "the order of a field is 0"),
        (lambda: Cosines(-2), ValueError, "the order of a field is 0"),
        (lambda: remove_field(torch.zeros(1, 3, 2, 2), 3, "plane"), TypeError, "a field is 0, 1, 2 or a function"),
        (lambda: remove_field(torch.zeros(1, 3, 2, 2), 3, lambda p: p[:, 0]), ValueError, r"shape \(4, K\)"),
        (lambda: remove_field(torch.zeros(1, 4, 2, 2), 3, 1), ValueError, "do not divide"),
        (lambda: add_field(torch.zeros(1, 3, 2), torch.zeros(1, 3, 3), 3, 1), ValueError, "has 2 functions"),
        (lambda: add_field(torch.zeros(1, 3, 2), torch.zeros(1, 3, 2), 3, 0), ValueError, "has 1 functions"),
        (lambda: add_field(torch.zeros(1, 3, 2), torch.zeros(1, 2, 2), 3, 1), ValueError, "with g = 3"),
        (lambda: field_mean(torch.zeros(1, 3, 2), 1, (4, 4)), ValueError, "there are 2 coefficients"),
        (
            lambda: remove_field(torch.zeros(1, 3, 2, 2), 3, 1, torch.ones(1, 3, 2, 2)),
            ValueError,
            "with size 1 on axis 1",
        ),
    ],
)
def test_wrong_use_is_explained(make, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        make()


@pytest.mark.parametrize("field", [0, 1, 2, Cosines(1)])
@pytest.mark.parametrize("masked", [False, True])
def test_the_level_of_a_channel_follows_light_where_it_is_black_too(field, masked) -> None:
    x = torch.rand(2, 3, 12, 17, dtype=torch.float64, generator=seeded(0)).square()
    x[:, :, ::3, ::4] = 0
    mask = torch.rand(2, 1, 12, 17, generator=seeded(1)) < 0.8 if masked else None
    before = log_level(x, field, mask)
    light = 0.5 * torch.randn(before.shape, dtype=torch.float64, generator=seeded(2))
    after = log_level(x * field_map(light, field, (12, 17)).exp(), field, mask)
    torch.testing.assert_close(after, before + light, atol=1e-9, rtol=0)
    if field == 0 and not masked:
        torch.testing.assert_close(before[..., 0], x.mean((2, 3)).log())


@pytest.mark.parametrize("field", [1, 2])
def test_levels_are_finite_whatever_is_dark(field) -> None:
    x = torch.rand(4, 3, 16, 16)
    x[0], x[1, :, :, :9], x[2] = 0, 0, 0
    x[2, :, 3, 4] = 1
    assert log_level(x, field).isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("ridge", RIDGES)
def test_a_ridge_holds_back_further_functions_alone(ridge: Ridge, masked: bool) -> None:
    x = torch.randn(2, 3, 12, 17, dtype=torch.float64, generator=seeded(0))
    mask = torch.rand(2, 1, 12, 17, generator=seeded(1)) < 0.8 if masked else None
    left, coefficients = remove_field(x, 3, ridge, mask)
    light = torch.randn(2, 3, math.comb(2 + ridge.exact, 2), dtype=torch.float64, generator=seeded(2))
    lit, with_light = remove_field(add_field(x, light, 3, ridge.exact), 3, ridge, mask)
    torch.testing.assert_close(lit, left, atol=1e-9, rtol=0)
    light = nn.functional.pad(light, (0, coefficients.shape[2] - light.shape[2]))
    torch.testing.assert_close(with_light, coefficients + light, atol=1e-9, rtol=0)
    free = project_field(x, 3, ridge.order, mask)
    assert torch.allclose(coefficients, free, atol=1e-9) == (ridge.strength == 0)
    weights = torch.ones_like(x) if mask is None else mask.double().expand_as(x)
    # The normal equations: Bᵀ W (x - B c) = λ P D c.
    held = (left * weights).flatten(2) @ Polynomial(ridge.order)(positions((12, 17)))
    total = weights.flatten(2).sum(2, keepdim=True)
    torch.testing.assert_close(held, total * (coefficients @ ridge.penalty(2)), atol=1e-8, rtol=1e-8)


def test_a_ridge_is_proved_where_it_is_exact() -> None:
    network = wrap(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()), field=Ridge(3, 0.1))
    x = torch.randn(1, 3, 8, 8)
    assert certify(network, x, field=1).invariant
    assert not certify(network, x, field=3).invariant
    assert not certify(network, x, field=Ridge(3, 0.1)).invariant


@pytest.mark.parametrize("values", [(-1, 0.1), (3, -0.1), (1, 0.1, 2), (3, float("nan"))])
def test_ridges_that_cannot_be_meant(values) -> None:
    with pytest.raises(ValueError, match=r"order|ridge"):
        Ridge(*values)
