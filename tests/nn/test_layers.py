"""The contract of a layer, held by each of them."""

import copy
import io
import pickle

import pytest
import torch
from cases import ADAPTED, CASES, LINEAR, Case
from torch import nn

from lightfast import Groups, assert_equivariant
from lightfast.functional import add_offset, center, project_weight

ASSIGNMENTS = {
    "one group": Groups.even(2, 1),
    "even": Groups.even(6, 3),
    "uneven": Groups([0, 0, 0, 1, 2, 2]),
    "interleaved": Groups.interleaved(6, 3),
    "31 groups": Groups.even(62, 31),
}
INTERLEAVED = ASSIGNMENTS["interleaved"]


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request) -> Case:
    return request.param


@pytest.fixture(params=ADAPTED, ids=lambda case: case.name)
def adapted(request) -> Case:
    return request.param


def randomised(layer: nn.Module) -> nn.Module:
    """Away from the special values of fresh layers: scales of 1, shifts of 0, running statistics of a centered map."""
    generator = torch.Generator().manual_seed(2)
    for name, tensor in layer.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.rand(tensor.shape, generator=generator)
            tensor.copy_(noise + 0.5 if "var" in name else noise - 0.5)
    return layer


@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_it_follows_offsets(case, assignment, mode):
    groups = ASSIGNMENTS[assignment]
    layer = randomised(case.build(groups)).train(mode == "training")
    x = case.input(input_groups(case, groups))
    options = {"out_groups": case.out_groups(groups), "dim": case.dim, "offsets": 100.0}
    assert_equivariant(layer, x, input_groups(case, groups), tolerance=1e-10, **options)
    assert_equivariant(layer, x.float(), input_groups(case, groups), dtype=None, tolerance=1e-4, **options)


def input_groups(case: Case, groups: Groups) -> Groups:
    """Maxout halves its features, so that it starts from twice as many."""
    return groups.repeat(2) if case.name == "Maxout" else groups


def test_it_is_the_torch_layer_on_a_centered_map(case):
    if not case.same_when_centered:
        pytest.skip("not so for this layer: its weight is projected, its pooling is another, or it is torch's own")
    layer = randomised(case.build(INTERLEAVED)).double()
    theirs = case.torch_layer(INTERLEAVED).double()
    theirs.load_state_dict(layer.state_dict())
    x = center(case.input(INTERLEAVED), INTERLEAVED, dim=case.dim)
    for training in (True, False):
        torch.manual_seed(0)
        ours_out = layer.train(training)(x)
        torch.manual_seed(0)
        torch.testing.assert_close(ours_out, theirs.train(training)(x.clone()), atol=1e-12, rtol=0)


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: case.name)
def test_a_constrained_layer_is_the_torch_layer_with_the_projected_weight(case):
    layer = case.build(INTERLEAVED).double()
    theirs = case.torch_layer(INTERLEAVED).double()
    theirs.load_state_dict(layer.state_dict())
    assert not torch.equal(layer.projected_weight(), layer.weight)
    with torch.no_grad():
        theirs.weight.copy_(layer.projected_weight())
    x = case.input(INTERLEAVED)
    if isinstance(layer, nn.modules.conv._ConvTransposeNd) or getattr(layer, "padding_mode", "") == "mean":
        # The border differs by design. Far from it both see the same; a large enough map has such pixels.
        x = torch.randn(2, 6, *[15] * (x.dim() - 2), dtype=x.dtype)
        ours_out, theirs_out = layer(x), theirs(x)
        slices = (slice(None), slice(None), *(slice(size // 2 - 1, size // 2 + 2) for size in ours_out.shape[2:]))
        torch.testing.assert_close(ours_out[slices], theirs_out[slices])
    else:
        if getattr(layer, "padding_mode", None) not in (None, "zeros"):
            theirs.padding_mode = layer.padding_mode
        torch.testing.assert_close(layer(x), theirs(x))


def test_gradients_are_right(case):
    groups = INTERLEAVED
    layer = randomised(case.build(groups)).double()
    x = case.input(input_groups(case, groups), images=2)
    if 0 < len(case.positions) <= 3:
        small = [slice(None), slice(None)] + [slice(0, max(2, min(3, size))) for size in case.positions]
        x = x[tuple(small)] if case.dim == 1 and "over positions" not in case.name else x
    names = [name for name, _ in layer.named_parameters()]

    def run(x, *parameters):
        torch.manual_seed(0)
        return torch.func.functional_call(copy.deepcopy(layer), dict(zip(names, parameters, strict=True)), (x,))

    inputs = (x.clone().requires_grad_(), *(p.detach().clone().requires_grad_() for p in layer.parameters()))
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


def test_its_state_is_that_of_the_torch_layer(case):
    if case.torch_layer is None:
        pytest.skip("torch has no such layer")
    layer, theirs = case.build(INTERLEAVED), case.torch_layer(INTERLEAVED)
    keys = list(theirs.state_dict())
    assert list(layer.state_dict()) == keys
    optimizer = torch.optim.SGD([*layer.parameters(), nn.Parameter(torch.zeros(1))], lr=0.1)
    layer(case.input(INTERLEAVED, torch.float32)).square().sum().backward() if keys else None
    optimizer.step()
    assert list(layer.state_dict()) == keys
    assert list(layer.eval().state_dict()) == keys
    assert {k: v.shape for k, v in layer.state_dict().items()} == {k: v.shape for k, v in theirs.state_dict().items()}
    theirs.load_state_dict(layer.state_dict())


def test_it_can_be_copied_and_pickled(case):
    layer = randomised(case.build(INTERLEAVED)).eval()
    x = case.input(input_groups(case, INTERLEAVED), torch.float32)
    expected = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), expected)
    saved = io.BytesIO()
    torch.save(layer.state_dict(), saved)
    saved.seek(0)
    other = case.build(INTERLEAVED).eval()
    other.load_state_dict(torch.load(saved, weights_only=True))
    assert torch.equal(other(x), expected)
    assert "offset_groups" in repr(layer) or case.torch_layer is not None or "AffineCombination" in repr(layer)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_it_compiles_whole_forward_and_backward(case, backend):
    if case.name == "AvgPool1d" and backend == "inductor":
        pytest.xfail(
            "inductor of torch 2.13 doubles the gradient of a window that ceil_mode cuts, in torch's own layer"
        )
    torch._dynamo.reset()
    layer = randomised(case.build(INTERLEAVED))
    eager = copy.deepcopy(layer)
    x = case.input(input_groups(case, INTERLEAVED), torch.float32)
    if "Dropout" in case.name:
        layer, eager = layer.eval(), eager.eval()
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)(ours)
    expected = eager(theirs)
    torch.testing.assert_close(compiled, expected, atol=1e-4, rtol=1e-4)
    weights = torch.randn_like(expected)
    (compiled * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)


def test_it_exports(case):
    layer = randomised(case.build(INTERLEAVED)).eval()
    x = case.input(input_groups(case, INTERLEAVED), torch.float32)
    program = torch.export.export(layer, (x,))
    torch.testing.assert_close(program.module()(x), layer(x))


def test_autocast_changes_precision_and_nothing_else(case):
    layer = randomised(case.build(INTERLEAVED)).eval()
    x = case.input(input_groups(case, INTERLEAVED), torch.float32)
    expected = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        got = layer(x)
        half = layer(x.bfloat16())
    scale = expected.abs().max()
    assert ((got.float() - expected).abs().max() / scale) < 0.03
    assert ((half.float() - expected).abs().max() / scale) < 0.05


def test_an_adapted_layer_keeps_float32_statistics_under_autocast(adapted):
    # A bfloat16 mean of values near 100 is off by up to 0.5; the layer's own output is of the order of 1.
    layer = randomised(adapted.build(INTERLEAVED)).eval()
    offset = torch.tensor([100.0, -100.0, 50.0])
    x = adapted.input(INTERLEAVED, torch.float32)
    far = add_offset(x, offset, INTERLEAVED, adapted.dim)
    with torch.autocast("cpu", torch.bfloat16):
        moved, still = layer(far), layer(x)
    wanted = add_offset(still.float(), offset, INTERLEAVED, adapted.dim)
    assert (moved.float() - wanted).abs().max() < 0.05


def test_channels_last_changes_nothing_but_the_layout(case):
    if len(case.positions) != 2 or case.dim != 1:
        pytest.skip("channels_last is for maps of two position axes")
    layer = randomised(case.build(INTERLEAVED)).eval()
    x = case.input(input_groups(case, INTERLEAVED), torch.float32)
    expected = layer(x)
    layer = layer.to(memory_format=torch.channels_last)
    torch.testing.assert_close(layer(x.to(memory_format=torch.channels_last)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: case.name)
def test_projection_goes_on_in_training(case):
    layer = case.build(INTERLEAVED)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    x = case.input(INTERLEAVED, torch.float32)
    for _ in range(3):
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()
    options = {"out_groups": case.out_groups(INTERLEAVED), "dim": case.dim}
    assert_equivariant(layer, x, INTERLEAVED, **options)


def test_a_plain_weight_would_not_pass():
    """The suite can fail: the same layer without its projection does."""
    layer = nn.Conv2d(6, 6, 3, padding=1)
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(layer, torch.randn(2, 6, 5, 5))
    with torch.no_grad():
        layer.weight.copy_(project_weight(layer.weight, 3, 3))
    with pytest.raises(AssertionError, match="not equivariant"):
        assert_equivariant(layer, torch.randn(2, 6, 5, 5))
