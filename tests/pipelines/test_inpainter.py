"""The inpainter: whatever the hole holds, filled with what follows the light exactly."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lightfast as lf
from lightfast._experiments.data.generated_textures import draw_textures
from lightfast._pipelines.inpainter import HoleEncoding, Inpainter, center_mask
from lightfast._pipelines.load import load, pretrained_names
from lightfast.color import linear_to_srgb, srgb_to_linear
from lightfast.fields import field_map
from lightfast.light import relight

SMALL = {"base": 3, "bottleneck": 9}
KINDS = {
    "original": {"offset_groups": None, "color": "srgb"},
    "wrapped": {"offset_groups": None, "color": "log"},
    "equivariant": {"offset_groups": 3, "color": "log"},
    "plane": {"offset_groups": 3, "color": "log", "field": 1},
    "quadratic": {"offset_groups": 3, "color": "log", "field": 2, "constrained": False, "floor": False},
    "wrapped-plane": {"offset_groups": None, "color": "log", "field": 1},
    "free": {"offset_groups": 3, "color": "log", "constrained": False, "softness": 0.2, "floor": False},
}


def stirred(kind, dtype=torch.float64):
    """With weights far from their start, so that a test sees what they do."""
    carry = {"carry": True} if kind == "free" else {}
    inpainter = Inpainter("context-encoder", **KINDS[kind], options=SMALL | carry)
    for parameter in inpainter.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return inpainter.to(dtype).eval()


@pytest.fixture(scope="module")
def images():
    return draw_textures(3, seed=5).double() / 255


@st.composite
def masks(draw):
    """Rectangles anywhere in the window, also outside of the middle, and single pixels."""
    mask = torch.zeros(1, 1, 128, 128, dtype=torch.bool)
    for _ in range(draw(st.integers(1, 3))):
        top, left = draw(st.integers(0, 127)), draw(st.integers(0, 127))
        mask[..., top : top + draw(st.integers(1, 60)), left : left + draw(st.integers(1, 60))] = True
    return mask


@pytest.mark.parametrize("kind", ["equivariant", "free", "wrapped"])
def test_relighting_the_input_relights_the_output(kind, images):
    inpainter = stirred(kind)

    @given(mask=masks(), log_light=st.lists(st.floats(-8, 2), min_size=3, max_size=3), junk=st.sampled_from([0.0, 7.0]))
    def check(mask, log_light, junk):
        light = torch.tensor(log_light, dtype=torch.float64).exp()
        holey = torch.where(mask, torch.tensor(float("nan")), images[:1])
        relit = torch.where(mask, junk, relight(images[:1], illuminants=light))
        with torch.no_grad():
            before, after = inpainter.linear(holey, mask), inpainter.linear(relit, mask)
        assert before.isfinite().all()
        torch.testing.assert_close(after / light[:, None, None], before, rtol=1e-9, atol=1e-12)

    check()


def test_the_original_does_not_follow_the_light(images):
    inpainter, light = stirred("original"), torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64)
    with torch.no_grad():
        before = inpainter.linear(images, center_mask())
        after = inpainter.linear(relight(images, illuminants=light), center_mask())
    assert (after / light[:, None, None] - before).abs().max() > 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_seen_stays_and_what_is_missing_does_not_matter(kind, images):
    inpainter, images = stirred(kind, torch.float32), images.float()
    mask = torch.zeros(3, 1, 128, 128)
    mask[0, :, 50:70, 60:61] = 1
    mask[1, :, 40:88, 41:88] = 1
    mask[2, :, 10:30, 100:] = 1
    holes = [torch.where(mask.bool(), torch.tensor(junk), images) for junk in (float("nan"), -3.0, float("inf"))]
    with torch.no_grad():
        filled = [inpainter(hole, mask) for hole in holes]
    assert torch.equal(filled[0], filled[1]) and torch.equal(filled[0], filled[2])
    seen = ~mask.bool().expand_as(images)
    assert torch.equal(filled[0][seen], images[seen])
    assert filled[0].min() >= 0 and filled[0].max() <= 1
    assert inpainter(images, mask.bool()).shape == images.shape


def test_values_above_white_are_kept_until_they_are_clipped(images):
    inpainter = stirred("equivariant")
    inpainter.network.last.conv.bias.data -= 3
    with torch.no_grad():
        assert inpainter.linear(images, center_mask()).max() > 1
        assert inpainter(images, center_mask()).max() <= 1


def test_a_channel_without_light_stays_dark(images):
    inpainter = stirred("equivariant")
    with torch.no_grad():
        filled = inpainter(relight(images, illuminants=torch.tensor([1.0, 0.5, 0.0])), center_mask())
    assert filled.isfinite().all() and filled[:, 2].max() < 1e-6


def test_the_hole_is_filled_with_the_mean_of_what_is_seen(images):
    mask = center_mask()
    for color in ("srgb", "log"):
        encoding = HoleEncoding(color)
        seen, taken = encoding.encode(torch.where(mask, torch.tensor(float("nan")), images), mask)
        inside, outside = seen[:, :, 60:68, 60:68], seen[(~mask).expand_as(seen)].view(3, 3, -1).mean(2)
        torch.testing.assert_close(inside, outside[..., None, None].expand_as(inside))
        assert not taken.mean.any()
    centered, taken = HoleEncoding("log", centered=True).encode(images, mask)
    torch.testing.assert_close(centered + taken.mean, HoleEncoding("log").encode(images, mask)[0])
    assert not HoleEncoding("log", floor=False).encode(images, mask)[1].floor.any()


def test_answers_come_back_as_linear_light(images):
    nothing = torch.zeros(1, 1, 128, 128, dtype=torch.bool)
    exact = HoleEncoding("log", softness=1e-9, floor=False)
    for encoding in (HoleEncoding("log", 0.3), HoleEncoding("srgb"), HoleEncoding("log", 0.3, centered=True), exact):
        torch.testing.assert_close(
            encoding.decode(*encoding.encode(images, nothing)), srgb_to_linear(images), atol=1e-6, rtol=1e-6
        )


def test_it_is_saved_and_read_again(tmp_path, images):
    inpainter, mask = stirred("free", torch.float32), center_mask()
    with torch.no_grad():
        wanted = inpainter(images.float(), mask)
        inpainter.save(tmp_path / "whole")
        inpainter.save(tmp_path / "half", half=True)
        assert torch.equal(load(tmp_path / "whole")(images.float(), mask), wanted)
        again = Inpainter.load(tmp_path / "half")
        assert next(again.parameters()).dtype == torch.float32
        torch.testing.assert_close(again(images.float(), mask), wanted, atol=0.02, rtol=0.02)
    sizes = [(tmp_path / folder / "model.safetensors").stat().st_size for folder in ("whole", "half")]
    assert sizes[1] < 0.62 * sizes[0]
    assert not any(name.endswith("middle") for name in inpainter.state_dict())


def test_it_is_exported_with_any_number_of_images(images):
    inpainter, mask = stirred("equivariant", torch.float32), center_mask().expand(2, -1, -1, -1).contiguous()
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = {"images": {0: batch}, "mask": {0: batch}}
    program = torch.export.export(inpainter, (images[:2].float(), mask), dynamic_shapes=shapes)
    with torch.no_grad():
        wanted = inpainter(images.float(), center_mask().expand(3, -1, -1, -1))
        given_back = program.module()(images.float(), center_mask().expand(3, -1, -1, -1).contiguous())
    torch.testing.assert_close(given_back, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"network": "resnet20"}, "no inpainting network 'resnet20'"),
        ({"color": "lab"}, "log RGB alone"),
        ({"color": "srgb"}, "log RGB alone"),
        ({"offset_groups": None, "color": "lab"}, "srgb or log"),
        ({"softness": 0.0}, "above 0"),
    ],
)
def test_what_it_cannot_be_made_of(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Inpainter(**({"network": "context-encoder-slim"} | arguments))


def test_what_it_cannot_be_called_with(images):
    inpainter = stirred("original", torch.float32)
    for image, mask in (
        (images[:, :, :64].float(), center_mask()),
        ((255 * images).byte(), center_mask()),
        (images.float(), center_mask()[0]),
        (images.float(), torch.zeros(2, 1, 128, 128)),
    ):
        with pytest.raises(ValueError, match="expected"):
            inpainter(image, mask)
    with pytest.raises(ValueError, match="it says 'sofness', but there is only network, offset_groups"):
        Inpainter.from_config({"network": "context-encoder", "sofness": 0.1})


@pytest.mark.skipif("context-encoder-slim" not in pretrained_names(), reason="its weights are not in this checkout")
def test_the_pretrained_one_follows_the_light(images):
    inpainter, light = lf.pretrained("context-encoder-slim"), torch.tensor([1.0, 0.4, 0.2])
    assert 2.5e6 < sum(parameter.numel() for parameter in inpainter.parameters()) < 3.5e6
    with torch.no_grad():
        before = inpainter.linear(images.float(), center_mask())
        after = inpainter.linear(relight(images.float(), illuminants=light), center_mask())
    torch.testing.assert_close(linear_to_srgb(after / light[:, None, None]), linear_to_srgb(before), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["plane", "quadratic", "wrapped-plane", "equivariant"])
def test_what_is_filled_in_follows_light_that_varies(kind, images):
    inpainter, field = stirred(kind), KINDS[kind].get("field", 0)
    images = images.clone()
    images[0, :, :4, ::3] = 0
    light = field_map(0.5 * torch.randn(3, 3, 6 if field == 2 else 3, dtype=torch.float64), max(field, 1), (128, 128))
    relit = linear_to_srgb(srgb_to_linear(images) * light.exp())
    mask = center_mask()
    mask[..., :9, 100:] = True
    with torch.no_grad():
        before, after = inpainter.linear(images, mask), inpainter.linear(relit, mask)
    difference = (after / light.exp() - before).abs().max()
    assert (difference < 1e-9) == (field > 0), difference


def test_fields_are_of_log_rgb():
    with pytest.raises(ValueError, match="color='log'"):
        Inpainter("context-encoder-slim", offset_groups=None, color="srgb", field=1)
