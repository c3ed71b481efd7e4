"""`norm_act` under compilers: the operators are called, and give what the layers give without a compiler."""

import copy
import itertools

import pytest
import torch
from torch import nn

import lightfast as lf
from lightfast import models
from lightfast._backends.native import backend as native
from lightfast._backends.operators import _backward, _fit, _forward, _infer, _infer_folded
from lightfast.nn import ConvNormAct2d, Lift, lower

OPTIONS = list(itertools.product([True, False], [0.0, 0.2, 1.0], [True, False]))


class Block(nn.Module):
    def __init__(self, slope=0.0):
        super().__init__()
        self.lift = Lift(3)
        self.first, self.second = (ConvNormAct2d(m, 6, 3, padding=1, slope=slope) for m in (3, 6))

    def forward(self, x):
        x = self.first(self.lift(x))
        return lower(self.second(x, x))


class Seen:
    """A compiler that notes which operators it was shown, and runs them one by one."""

    def __init__(self):
        self.names = []

    def __call__(self, graph, inputs):
        self.names += [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        return graph.forward

    def ours(self):
        return [name.split(".")[1] for name in self.names if name.startswith("lightfast.")]


def operands(with_shortcut, layout=torch.contiguous_format):
    maps = [torch.randn(4, 6, 3, 5).contiguous(memory_format=layout) for _ in range(1 + with_shortcut)]
    return *maps, *[None] * (not with_shortcut), *torch.randn(3, 6)


@pytest.mark.parametrize(("training", "slope", "with_shortcut"), OPTIONS)
def test_the_operators_are_what_torch_asks_of_them(training, slope, with_shortcut):
    # Every two options meet in both layouts; all four together would take as long again.
    layout = torch.channels_last if (training + with_shortcut + (slope > 0)) % 2 else torch.contiguous_format
    given = [x if x is None else x.requires_grad_() for x in operands(with_shortcut, layout)]
    statistics = (None, None) if training else (torch.randn(6), torch.rand(6))
    torch.library.opcheck(_forward, (*given, *statistics, 1e-5, 3, slope))
    given = [x if x is None else x.detach() for x in given]
    if not training:
        torch.library.opcheck(_infer, (*given, *statistics, 1e-5, 3, slope))
    u, _, pre_bias, weight, bias = given
    z, offset, of_images, of_features = _forward(*given, *statistics, 1e-5, 3, slope)
    saved = (u, z, of_images, of_features, pre_bias, weight, bias)
    gradients = torch.randn_like(z), torch.randn_like(offset)
    torch.library.opcheck(_backward, (*gradients, *saved, training, with_shortcut, 3, slope))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("half", [True, False])
def test_a_compiled_block_is_the_block(training, half, layout):
    block, x = Block(0.2).train(training), torch.randn(4, 3, 8, 6).contiguous(memory_format=layout)
    results = []
    for compiled in (False, True):
        torch.compiler.reset()
        twin, given = copy.deepcopy(block), x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            answer = (torch.compile(twin, fullgraph=True, backend="aot_eager") if compiled else twin)(given)
        answer.float().pow(3).sum().backward()
        gradients = [parameter.grad for parameter in twin.parameters()]
        results.append([answer.detach(), given.grad, *gradients, *twin.buffers()])
    torch.testing.assert_close(*results, atol=1e-3, rtol=1e-4)
    assert results[0][-1] == int(training)


@pytest.mark.parametrize(("training", "operator"), [(True, "norm_act"), (False, "norm_act_infer")])
def test_a_compiler_is_shown_the_operators(training, operator, passes):
    seen = Seen()
    with torch.set_grad_enabled(training):
        torch.compile(Block().train(training), fullgraph=True, backend=seen)(torch.randn(2, 3, 8, 6))
    assert seen.ours() == [operator] * 2


def test_without_passes_it_is_shown_the_formula(monkeypatch):
    monkeypatch.setattr(native, "_available", lambda: False)
    seen, block, x = Seen(), Block().eval(), torch.randn(2, 3, 8, 6)
    torch.testing.assert_close(torch.compile(block, fullgraph=True, backend=seen)(x), block(x))
    assert not seen.ours()


def test_maps_of_other_precisions_get_the_formula():
    seen = Seen()
    torch.compile(Block().double(), fullgraph=True, backend=seen)(torch.randn(2, 3, 8, 6, dtype=torch.float64))
    assert not seen.ours()


@pytest.mark.parametrize("strict", [True, False])
def test_what_is_exported_needs_no_library_of_ours(strict):
    block, x = Block().eval(), torch.randn(2, 3, 8, 6)
    program = torch.export.export(block, (x,), strict=strict)
    assert not any("lightfast" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x), block(x))


def test_transforms_are_compiled():
    block, x = Block().eval(), torch.randn(3, 3, 8, 6)

    def loss(x):
        return block(x[None]).square().sum()

    transformed = torch.func.vmap(torch.func.grad(loss))
    torch.testing.assert_close(torch.compile(transformed, fullgraph=True, backend="aot_eager")(x), transformed(x))


def test_training_in_evaluation_mode_is_seen_afterwards():
    block, x = Block().eval(), torch.randn(2, 3, 8, 6)
    optimizer = torch.optim.Adam(block.parameters(), lr=0.1, fused=True)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        block.eval()
        with torch.no_grad():
            block(x)
        compiled(x).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            torch.testing.assert_close(block(x), copy.deepcopy(block)(x), atol=0, rtol=0)


def test_batches_of_any_size_need_one_compilation(passes):
    seen, block = Seen(), Block()
    compiled = torch.compile(block, fullgraph=True, backend=seen, dynamic=True)
    for batch, size in ((2, 8), (5, 6), (3, 9)):
        x = torch.randn(batch, 3, size, size)
        torch.testing.assert_close(compiled(x), block(x))
    assert seen.ours() == ["norm_act"] * 2


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "options", "size"),
    [("resnet20", {}, 32), ("cerberus", {}, 64), ("context-encoder", {"base": 63, "bottleneck": 12}, 128)],
)
@pytest.mark.parametrize("half", [False, True])
def test_networks_compiled_on_a_gpu(name, options, size, half):
    """Compiled they are as far from float64 as they are without a compiler, which is rounding.

    In float32 in the best of some batches: rounding flips the gate of a ReLU in others, and a gradient then differs by
    per cents (`benchmarks/compiled_gradient.py`). A mistake would be there in each of them.
    """
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    network, batches = models.create(name, 3, **options), torch.randn(4, 8, 3, size, size)
    truth = answers_of(copy.deepcopy(network).double(), batches.double(), half=False)
    network, batches = network.cuda(), batches.cuda()
    eager = answers_of(copy.deepcopy(network), batches, half)
    torch.compiler.reset()
    compiled = answers_of(torch.compile(copy.deepcopy(network), fullgraph=True), batches, half)
    for one, other, exact in zip(compiled, eager, truth, strict=True):
        far, usual = (((x - exact).norm(dim=1) / exact.norm(dim=1)).min() for x in (one, other))
        assert usual <= (0.4 if half else 1e-3)
        assert far <= (2 if half else 4) * usual


def answers_of(network, batches, half):
    """Of each batch the answer, the gradient of its mean square, and the answer in use; rows in float64 on the CPU."""
    kind = batches.device.type
    found, gradients = [], []
    for x in batches:
        network.zero_grad()
        with torch.autocast(kind, torch.bfloat16, enabled=half, cache_enabled=False):
            found.append(network(x))
        found[-1].to(torch.promote_types(x.dtype, torch.float32)).square().mean().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in network.parameters()]))
    network.eval()
    with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=half, cache_enabled=False):
        used = [network(x) for x in batches]
    return [torch.stack([x.detach().double().cpu().flatten() for x in rows]) for rows in (found, gradients, used)]


@pytest.mark.parametrize("with_shortcut", [True, False])
def test_what_is_left_of_a_norm_is_an_operator_too(with_shortcut, passes):
    u, *rows = torch.randn(2, 6, 4, 5), *torch.randn(4, 6)
    torch.library.opcheck(_infer_folded, (u, torch.randn_like(u) if with_shortcut else None, None, *rows, 3, 0.2))
    seen, block = Seen(), lf.fuse(Block())
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(torch.compile(block, fullgraph=True, backend=seen)(x), block(x))
    assert seen.ours() == ["infer_folded"] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [True, False])
def test_weights_in_another_form_are_an_operator(last, dtype):
    for shape, form, how in (
        ((6, 9, 3, 3), [8, 12, 3, 3], (3, False, 1)),
        ((6, 9, 4, 4), [8, 12, 4, 4], (3, True, 2)),
        ((6, 9), [6, 9], (3, False, 1)),
    ):
        weight = torch.randn(shape, requires_grad=True)
        torch.library.opcheck(_fit, (weight, *how, form, dtype, last and len(shape) == 4, True))


def test_compilers_are_shown_the_operator_of_weights_where_there_is_a_kernel(monkeypatch):
    monkeypatch.setattr(native.Native, "has_weight_operator", lambda backend, weight, *_: weight.dim() == 4)
    seen, block = Seen(), Block()
    twin, x = copy.deepcopy(block), torch.randn(2, 3, 8, 8)
    answers = [torch.compile(block, fullgraph=True, backend=seen)(x), twin(x)]
    torch.testing.assert_close(*answers)
    assert seen.ours().count("fit_weight") == 2
    for answer in answers:
        answer.square().sum().backward()
    for one, other in zip(block.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-4)
