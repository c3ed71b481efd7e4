"""Networks with fields: scores that no plane of light changes, and pictures that follow one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightfast import models
from lightfast.fields import Cosines, add_field, field_map, project_field
from lightfast.nn import ConvNormAct2d, ConvTransposeNormAct2d, Lift, lower


def some_light(n, field, seed=0, strength=5.0):
    """Random coefficients (n, 3, K) of a field over pictures."""
    count = project_field(torch.zeros(1, 3, 4, 4), 3, field).shape[-1]
    drawn = torch.randn(n, 3, count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return strength * drawn


@settings(max_examples=8)
@given(
    field=st.sampled_from([1, 2, Cosines(1)]),
    size=st.tuples(st.integers(12, 21), st.integers(12, 21)),
    constrained=st.booleans(),
    training=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_no_field_of_the_span_changes_scores(field, size, constrained, training, seed):
    torch.manual_seed(seed)
    options = {"constrained": constrained, "field": field, "widths": (2, 3)}
    network = models.create("spectral", classes=5, **options).double().train(training)
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    scores, relit = network(x), network(add_field(x, some_light(2, field, seed), 3, field))
    torch.testing.assert_close(relit, scores, atol=1e-8, rtol=1e-8)
    assert scores.std() > 1e-4


@pytest.mark.parametrize("name", ["resnet20", "resnet9-narrow", "resnet18"])
def test_nor_those_of_other_classifiers(name):
    network, x = models.create(name, classes=5, field=1).double().eval(), torch.randn(2, 3, 32, 32).double()
    torch.testing.assert_close(network(add_field(x, some_light(2, 1), 3, 1)), network(x), atol=1e-8, rtol=1e-8)


def test_fields_outside_the_span_are_seen():
    x, light = torch.randn(2, 3, 16, 16).double(), some_light(2, 2)
    for field, sees in ((0, True), (1, True), (2, False)):
        network = models.create("spectral", field=field).double().eval()
        difference = (network(add_field(x, light, 3, 2)) - network(x)).abs().max()
        assert (difference > 1e-3) == sees


def test_low_precision_keeps_its_digits_under_any_plane():
    network = models.create("spectral", field=1).eval().to(torch.bfloat16)
    x, light = torch.randn(2, 3, 16, 16), some_light(2, 1, strength=20.0).float()
    plain = network(x.to(torch.bfloat16))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = models.create("spectral", field=1).eval()
        same, other = mixed(x), mixed(add_field(x, light, 3, 1))
    assert plain.dtype == torch.bfloat16
    torch.testing.assert_close(other, same, atol=0.02, rtol=0.02)


@pytest.mark.slow
def test_it_compiles_whole_and_exports():
    network, x = models.create("spectral", field=1).eval(), torch.randn(2, 3, 16, 16)
    expected = network(x)
    torch.testing.assert_close(torch.compile(network, fullgraph=True, backend="aot_eager")(x), expected)
    torch.testing.assert_close(torch.export.export(network, (x,)).module()(x), expected, atol=1e-5, rtol=1e-5)


class Maps(torch.nn.Module):
    """Half as high and wide, and back again."""

    def __init__(self, field):
        super().__init__()
        self.lift = Lift(3, field=field)
        self.down = ConvNormAct2d(3, 6, 4, 2, 1)
        self.up = ConvTransposeNormAct2d(6, 3, 4, 2, 1)

    def forward(self, x):
        half = self.down(self.lift(x))
        return lower(half), lower(self.up(half))


@pytest.mark.parametrize("field", [0, 1, 2, Cosines(2)])
def test_lifted_maps_follow_a_field_at_their_own_positions(field):
    net, x, light = Maps(field).double().eval(), torch.randn(2, 3, 8, 12).double(), some_light(2, field)
    before, after = net(x), net(add_field(x, light, 3, field))
    assert [y.shape[2:] for y in before] == [(4, 6), (8, 12)]
    for y, relit in zip(before, after, strict=True):
        torch.testing.assert_close(relit, add_field(y, light, 3, field), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("carry", [False, True])
def test_the_context_encoder_follows_a_plane_in_the_middle(carry):
    network = models.create("context-encoder-slim", field=1, carry=carry).double().eval()
    x, light = torch.randn(2, 3, 128, 128).double(), some_light(2, 1)
    middle = field_map(light, 1, (128, 128))[:, :, 32:96, 32:96]
    answer, relit = network(x), network(add_field(x, light, 3, 1))
    torch.testing.assert_close(relit, answer + middle, atol=1e-8, rtol=1e-8)
    without = models.create("context-encoder-slim", carry=carry).double().eval()
    without.load_state_dict(network.state_dict())
    assert (without(add_field(x, light, 3, 1)) - without(x) - middle).abs().max() > 0.1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("resnet20", None), r"use lf\.wrap"),
        (("context-encoder", None), r"use lf\.wrap"),
        (("resnet20", 3, 10, "pixel"), "use scope='image'"),
        (("cerberus",), "one light for the whole image"),
    ],
)
def test_where_there_is_no_field(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        models.create(*arguments, field=1)
