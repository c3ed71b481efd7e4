"""The projected weight is kept in evaluation, and is always that of the weight as it is."""

import copy
import io
import pickle

import pytest
import torch
from cases import LINEAR
from torch import nn

import lightfast as lf
from lightfast import Groups, _fuse, models
from lightfast._backends import Form

GROUPS = Groups.interleaved(6, 3)


@pytest.fixture
def layer():
    return lf.nn.Conv2d(3, 6, 3).eval()


def fresh(layer):
    """The projection computed anew, by a copy that has kept nothing."""
    return copy.deepcopy(layer).train().projected_weight().detach()


def made_of(layer):
    """What a layer or a fused unit keeps of its weight, by form."""
    cache = layer._plans.weights if isinstance(layer, _fuse._FusedUnit) else layer._kept
    return {} if cache._kept is None else cache._kept.made


@torch.no_grad()
def assert_current(layer):
    assert torch.equal(layer.projected_weight(), fresh(layer))


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: case.name)
@torch.no_grad()
def test_every_layer_projects_once_in_evaluation(case):
    layer = case.build(GROUPS).eval()
    kept = layer.projected_weight()
    assert layer.projected_weight() is kept
    assert_current(layer)
    nn.init.normal_(layer.weight)
    assert layer.projected_weight() is not kept
    assert_current(layer)


def step(layer, optimizer):
    layer(torch.randn(2, 3, 8, 8)).square().mean().backward()
    optimizer.step()


def with_optimizer(kind, **options):
    def change(layer):
        step(layer, kind(layer.parameters(), lr=0.1, **options))

    return change


def assign_state(layer):
    state = {name: torch.randn_like(value) for name, value in layer.state_dict().items()}
    layer.load_state_dict(state, assign=True)


def copy_state(layer):
    layer.load_state_dict({name: torch.randn_like(value) for name, value in layer.state_dict().items()})


def in_place(layer):
    with torch.no_grad():
        layer.weight[0, 0, 1, 1] += 1


def through_a_view(layer):
    layer.weight.detach().view(-1)[3] = 7


def other_data_twice(layer):
    # The second may come to lie where the first was.
    layer.weight.data = torch.randn_like(layer.weight)
    layer.weight.data = torch.randn_like(layer.weight)


def other_parameter(layer):
    layer.weight = nn.Parameter(torch.randn_like(layer.weight))


def through_data_between_modes(layer):
    layer.train()
    layer.weight.data.mul_(2)
    layer.eval()


def in_inference_mode(layer):
    with torch.inference_mode():
        layer.weight.mul_(2)


CHANGES = [
    with_optimizer(torch.optim.SGD),
    with_optimizer(torch.optim.AdamW, foreach=True),
    with_optimizer(torch.optim.AdamW, foreach=False),
    with_optimizer(torch.optim.AdamW, fused=True),
    assign_state,
    copy_state,
    in_place,
    through_a_view,
    other_data_twice,
    other_parameter,
    through_data_between_modes,
    in_inference_mode,
    lf.project_,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_weight_is_projected_again(layer, change):
    with torch.no_grad():
        before = layer.projected_weight().clone()
    change(layer)
    assert_current(layer)
    with torch.no_grad():
        same = torch.allclose(layer.projected_weight(), before)
    assert same == (change is lf.project_)


@pytest.mark.parametrize("move", [lambda x: x.double(), lambda x: x.bfloat16(), lambda x: x.double().float()])
@torch.no_grad()
def test_moved_layers(layer, move):
    layer.projected_weight()
    move(layer)
    assert layer.projected_weight().dtype == layer.weight.dtype
    assert_current(layer)
    assert made_of(layer)[Form.of(layer.weight)] is layer.projected_weight()


@torch.no_grad()
def test_copies_and_pickles_do_not_hold_it(layer):
    layer.projected_weight()
    other = copy.deepcopy(layer)
    assert not made_of(other)
    nn.init.zeros_(other.weight)
    assert_current(other)
    assert_current(layer)
    assert len(pickle.dumps(layer)) == len(pickle.dumps(copy.deepcopy(layer)))
    loaded = pickle.loads(pickle.dumps(layer))
    assert not made_of(loaded)
    assert_current(loaded)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert not made_of(torch.load(file, weights_only=False))


@torch.no_grad()
def test_the_state_does_not_hold_it(layer):
    layer.projected_weight()
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert len(list(layer.parameters())) == 2 and not list(layer.buffers())


def test_nothing_is_kept_in_training(layer):
    layer.train()
    with torch.no_grad():
        assert layer.projected_weight() is not layer.projected_weight()
    assert not made_of(layer)


def test_gradients_flow_in_evaluation(layer):
    x = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        layer(x)
    layer(x).sum().backward()
    evaluated = layer.weight.grad.clone()
    layer.zero_grad()
    layer.train()(x).sum().backward()
    torch.testing.assert_close(evaluated, layer.weight.grad)


def test_training_in_evaluation_mode_keeps_nothing(layer):
    x, optimizer = torch.randn(2, 3, 8, 8), torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    for _ in range(2):
        loss = layer(x).square().mean()
        assert_current(layer)
        loss.backward()
        optimizer.step()
        assert_current(layer)
    layer.eval()
    with torch.no_grad():
        assert layer.projected_weight() is layer.projected_weight()


def test_gradients_reach_the_input_of_a_frozen_layer(layer):
    layer.requires_grad_(False)
    with torch.inference_mode():
        kept = layer.projected_weight()
        layer(torch.randn(1, 3, 8, 8))
    x = torch.randn(1, 3, 8, 8, requires_grad=True)
    assert layer.projected_weight() is kept
    layer(x).sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


def test_parameters_made_in_inference_mode():
    with torch.inference_mode():
        layer = lf.nn.Conv2d(3, 6, 3).eval()
        x = torch.randn(1, 3, 8, 8)
        before = layer(x)
        layer.weight.mul_(2)
        assert not torch.equal(layer(x), before)


@pytest.mark.parametrize("frozen", [True, False])
def test_functional_transforms(layer, frozen):
    layer.requires_grad_(not frozen)
    x = torch.randn(2, 3, 8, 8)
    parameters = {name: value.detach() for name, value in layer.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x[None],)).square().sum()

    for warm in (False, True):
        if warm:
            with torch.no_grad():
                layer(x)
        gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
        assert gradients["weight"].shape == (2, *layer.weight.shape) and gradients["weight"].abs().sum() > 0
        of_input = torch.func.grad(lambda x: layer(x).square().sum())(x)
        assert of_input.abs().sum() > 0
        several = {name: torch.stack([value, 2 * value]) for name, value in parameters.items()}
        with torch.no_grad():
            both = torch.func.vmap(torch.func.functional_call, (None, 0, None))(layer, several, (x,))
            assert not torch.allclose(both[0], both[1])
            torch.testing.assert_close(torch.func.vmap(layer)(x[:, None])[:, 0], layer(x))
    assert_current(layer)


@torch.no_grad()
def test_compiled_and_exported_layers_follow_the_weight(layer):
    x = torch.randn(2, 3, 8, 8)
    layer(x)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    exported = torch.export.export(layer, (x,))
    for _ in range(2):
        torch.testing.assert_close(compiled(x), layer(x))
        nn.init.normal_(layer.weight)
    # The exported program holds the raw weight, not a constant that was projected before.
    assert {"weight", "bias"} == set(exported.state_dict) and not exported.constants
    module = exported.module()
    nn.init.normal_(module.weight)
    layer.load_state_dict(module.state_dict())
    torch.testing.assert_close(module(x), layer(x))


@torch.no_grad()
def test_fake_tensors_are_not_kept(layer):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        layer(mode.from_tensor(torch.randn(1, 3, 8, 8)))
    assert not made_of(layer)
    assert layer(torch.randn(1, 3, 8, 8)).isfinite().all()


@torch.no_grad()
def test_autocast(layer):
    x = torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        low = layer(x)
    assert low.dtype == torch.bfloat16 and layer.projected_weight().dtype == torch.float32
    torch.testing.assert_close(low.float(), layer(x), atol=0.05, rtol=0.05)


@pytest.mark.gpu
@torch.no_grad()
def test_units_on_a_gpu():
    unit = lf.nn.ConvNormAct2d(3, 6, 3, padding=1).cuda().eval()
    x = lf.nn.Lift(3)(torch.randn(2, 3, 8, 8, device="cuda"))
    expected = unit(x).map
    kept = dict(made_of(unit.conv))
    assert torch.equal(unit(x).map, expected)
    assert kept and kept.keys() == made_of(unit.conv).keys()
    assert all(made_of(unit.conv)[form] is weight for form, weight in kept.items())
    nn.init.normal_(unit.conv.weight)
    changed = unit(x).map
    assert not torch.equal(changed, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = unit(x).map
    nn.init.normal_(unit.conv.weight)
    graph.replay()
    torch.testing.assert_close(captured, unit(x).map)


def settled(model, x):
    """In evaluation mode, with running statistics, scales and shifts that are not those of a fresh layer."""
    with torch.no_grad():
        for _ in range(3):
            model(x)
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.weight.mul_(0.5 + torch.rand_like(layer.weight))
                layer.bias.add_(0.1 * torch.randn_like(layer.bias))
    return model.eval()


def fused_units(model):
    return [module for module in model.modules() if isinstance(module, _fuse._FusedUnit)]


@torch.no_grad()
def test_fused_units_keep_what_is_made_of_their_weight():
    unit = lf.fuse(settled(lf.nn.ConvNormAct2d(3, 6, 3), lf.nn.Lift(3)(torch.randn(2, 3, 8, 8))))

    def doubled():
        return unit._plans.weights.get(unit.conv.weight, "doubled", lambda weight: 2 * weight)

    kept, place = doubled(), doubled().data_ptr()
    assert doubled() is kept and torch.equal(kept, 2 * unit.conv.weight)
    nn.init.normal_(unit.conv.weight)
    assert torch.equal(doubled(), 2 * unit.conv.weight) and doubled().data_ptr() == place
    assert not made_of(copy.deepcopy(unit)) and len(pickle.dumps(unit)) == len(pickle.dumps(copy.deepcopy(unit)))
    assert set(unit.state_dict()) == set(copy.deepcopy(unit).state_dict())
    assert unit.to("cpu") is unit and doubled().data_ptr() == place, "a graph may still read it"
    assert doubled().dtype == torch.float32
    unit.double()
    assert doubled().dtype == torch.float64 and torch.equal(doubled(), 2 * unit.conv.weight)


def test_fused_units_do_not_write_to_a_weight_that_is_applied_as_it_is():
    unit = lf.fuse(settled(lf.nn.ConvNormAct2d(3, 6, 3), lf.nn.Lift(3)(torch.randn(2, 3, 8, 8))))
    first, other = unit.conv.weight, nn.Parameter(torch.randn_like(unit.conv.weight))
    before = first.detach().clone()
    for weight in (first, other, first):
        unit.conv.weight = weight
        assert torch.equal(unit._plans.weights.get(weight, "as it is", lambda weight: weight), weight)
    assert torch.equal(first, before)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("resnet20", {}, 32),
        ("resnet20", {"constrained": False}, 32),
        # Too large for one program an image.
        ("resnet20", {}, 128),
        ("context-encoder", {"base": 6, "bottleneck": 12}, 128),
    ],
    ids=str,
)
@torch.no_grad()
def test_networks_in_use_on_a_gpu(name, options, size):
    x = torch.randn(4, 3, size, size)
    model = settled(models.create(name, **options), x)
    expected = model.double()(x.double())
    model = model.float().cuda()
    x = x.cuda().contiguous(memory_format=torch.channels_last)
    fused = lf.fuse(model)
    maps = []
    for unit in fused_units(fused):
        unit.register_forward_hook(lambda unit, _, y: maps.append((unit.conv.out_channels, y.map)))
    for network in (model, fused):
        # Convolutions in float32 are TF32.
        assert (network(x).cpu() - expected).abs().max() < 0.01 * expected.abs().max()
        with torch.autocast("cuda", torch.bfloat16):
            assert (network(x).cpu() - expected).abs().max() < 0.1 * expected.abs().max()
    assert len(maps) == 2 * len(fused_units(fused))
    assert all(not y[:, features:].any() for features, y in maps)


@pytest.mark.gpu
def test_fused_networks_give_gradients_on_a_gpu():
    x = torch.randn(2, 3, 32, 32, device="cuda", requires_grad=True)
    model = settled(models.create("resnet20").cuda(), x)
    expected = torch.autograd.grad(model(x).square().sum(), x)[0]
    found = torch.autograd.grad(lf.fuse(model)(x).square().sum(), x)[0]
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.gpu
@torch.no_grad()
def test_fused_networks_in_a_cuda_graph():
    x = torch.randn(4, 3, 32, 32, device="cuda")
    fused = lf.fuse(settled(models.create("resnet20").cuda(), x))

    def run():
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            return fused(x)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = run()
    for change in (lambda: x.normal_(), lambda: nn.init.normal_(fused_units(fused)[3].conv.weight)):
        change()
        expected = run().clone()
        graph.replay()
        assert (captured - expected).abs().max() < 0.02 * expected.abs().max()
