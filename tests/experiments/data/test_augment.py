import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from lightfast._experiments.data.augment import (
    color_jitter,
    pad_crop,
    random_affine,
    random_erasing,
    random_flip,
    random_relight,
    random_resized_crop,
)
from lightfast.light import relight


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


AUGMENTATIONS = {
    "pad_crop": lambda images, generator: pad_crop(images, 3, generator),
    "random_affine": lambda images, generator: random_affine(images, 0.1, 10, 0.1, generator),
    "random_flip": lambda images, generator: random_flip(images, generator),
    "random_erasing": lambda images, generator: random_erasing(images, 0.5, generator),
    "random_resized_crop": lambda images, generator: random_resized_crop(images, (7, 9), generator),
    "color_jitter": lambda images, generator: color_jitter(images, 0.4, 0.4, 0.4, 0.1, generator),
    "random_relight": lambda images, generator: random_relight(images, 0.9, generator),
}


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_each_image_its_own_and_the_generator_decides(name):
    images = torch.rand(1, 3, 7, 9).expand(64, 3, 7, 9)
    one, same, other = (AUGMENTATIONS[name](images, seeded(seed)) for seed in (0, 0, 1))
    assert one.shape == images.shape and one.dtype == images.dtype
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert any(not torch.equal(one[0], image) for image in one)
    assert one.min() >= 0 and one.max() <= 1


@given(pad=st.integers(0, 4), seed=st.integers(0, 1000), dtype=st.sampled_from([torch.uint8, torch.float32]))
def test_pad_crop_is_padding_and_cropping(pad, seed, dtype):
    images = torch.randint(1, 256, (5, 3, 6, 7), generator=seeded(seed)).to(dtype)
    padded = torch.nn.functional.pad(images, [pad] * 4)
    for image, wide in zip(pad_crop(images, pad, seeded(seed)), padded, strict=True):
        windows = [wide[:, y : y + 6, x : x + 7] for y in range(2 * pad + 1) for x in range(2 * pad + 1)]
        assert any(torch.equal(image, window) for window in windows)


def test_pad_crop_shifts_uniformly():
    images = torch.zeros(4000, 1, 9, 9)
    images[:, :, 4, 4] = 1
    where = pad_crop(images, 4, seeded()).mean(0)[0]
    assert where.min() > 0.005 and where.max() < 0.022 and where.sum().item() == pytest.approx(1)


def test_flip_mirrors_half():
    images = torch.arange(4.0).expand(2000, 1, 1, 4)
    flipped = random_flip(images, seeded())[:, 0, 0, 0] == 3
    assert 0.45 < flipped.float().mean() < 0.55
    assert torch.equal(random_flip(images, seeded(), 1.0), images.flip(3))
    assert torch.equal(random_flip(images, seeded(), 0.0), images)


def test_erasing_takes_the_wanted_area():
    images = torch.ones(2000, 3, 32, 32)
    erased = random_erasing(images, 0.5, seeded(), scale=(0.1, 0.3))
    share = (erased == 0).all(1).float().mean((1, 2))
    hit = share > 0
    assert 0.45 < hit.float().mean() < 0.55
    assert 0.06 < share[hit].min() < 0.12 and 0.27 < share[hit].max() < 0.34
    # What is gone is a rectangle: as many pixels as its rows times its columns.
    gone = (erased[hit] == 0).all(1)
    assert torch.equal(gone.sum((1, 2)), gone.any(2).sum(1) * gone.any(1).sum(1))
    mean = torch.tensor([0.1, 0.2, 0.3])[:, None, None]
    filled = random_erasing(images, 1.0, seeded(), fill=mean)
    assert torch.equal(filled.amin((0, 2, 3)), mean.flatten())


def test_resized_crops():
    x = (torch.arange(64) + 0.5).expand(64, 64)
    ramps = torch.stack([x, x.t()])[None].expand(1000, 2, 64, 64)
    crops = random_resized_crop(ramps, 16, seeded())
    assert crops.shape == (1000, 2, 16, 16)
    width = (crops[:, 0, 0, -2] - crops[:, 0, 0, 1]) / 13 * 16
    height = (crops[:, 1, -2, 0] - crops[:, 1, 1, 0]) / 13 * 16
    area, ratio = width * height / 64**2, width / height
    assert 0.07 < area.min() < 0.12 and 0.9 < area.max() < 1.01
    assert 0.74 < ratio.min() < 0.77 and 1.3 < ratio.max() < 1.35
    whole = random_resized_crop(ramps[:2], 64, seeded(), scale=(1, 1), ratio=(1, 1))
    torch.testing.assert_close(whole, ramps[:2], atol=1e-4, rtol=0)
    assert random_resized_crop(ramps[:2].byte(), 5, seeded()).dtype == torch.uint8


@pytest.mark.parametrize("what", ["brightness", "contrast", "saturation"])
def test_jitter_is_what_image_editors_do(what):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255
    enhance = {"brightness": "Brightness", "contrast": "Contrast", "saturation": "Color"}[what]
    strengths = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0} | {what: 0.5}
    for seed in range(5):
        row = ["brightness", "contrast", "saturation"].index(what)
        factor = 0.5 + torch.rand(4, 1, generator=seeded(seed))[row].item()
        theirs = getattr(ImageEnhance, enhance)(Image.fromarray(pixels)).enhance(factor)
        ours = color_jitter(images, **strengths, hue=0.0, generator=seeded(seed))[0].permute(1, 2, 0)
        # The editor rounds its intermediate grays to bytes.
        np.testing.assert_allclose(ours.numpy() * 255, np.asarray(theirs), atol=2)


def test_jitter_turns_hue():
    images = torch.rand(3, 3, 2, 2, generator=seeded(5))
    images[0, :, 0, 0] = 0.5
    images[0, :, 0, 1] = 0.0
    turns = 0.3 * (2 * torch.rand(4, 3, generator=seeded(1))[3] - 1)
    turned = color_jitter(images, 0, 0, 0, 0.3, seeded(1))
    for n, y, x in np.ndindex(3, 2, 2):
        hue, saturation, value = colorsys.rgb_to_hsv(*images[n, :, y, x].tolist())
        expected = colorsys.hsv_to_rgb((hue + turns[n].item()) % 1, saturation, value)
        assert turned[n, :, y, x].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("strengths", "sentence"), [((-1, 0, 0, 0), "brightness"), ((0, 0, 0, 0.6), "hue is in turns")]
)
def test_jitter_errors(strengths, sentence):
    with pytest.raises(ValueError, match=sentence):
        color_jitter(torch.rand(1, 3, 2, 2), *strengths, seeded())


def test_relighting():
    images = torch.rand(500, 3, 2, 2)
    torch.testing.assert_close(random_relight(images, 0.0, seeded()), relight(images, 0.0), atol=1e-5, rtol=0)
    gains = random_relight(torch.ones(500, 3, 1, 1), 0.8, seeded()).flatten(1)
    assert torch.allclose(gains.amax(1), torch.ones(500)) and gains.amin(1).min() < 0.55 < gains.amin(1).max()


def test_affine_moves_by_no_more_than_it_says():
    grid = (torch.arange(32) + 0.5) / 32
    places = torch.stack([grid.expand(32, 32), grid[:, None].expand(32, 32)]).expand(256, 2, 32, 32)
    inner = (slice(None), slice(None), slice(14, 18), slice(14, 18))
    moved = (random_affine(places, 0.1, 0, 0, seeded()) - places)[inner]
    assert 0.09 < moved.abs().max() < 0.1001 and moved.std((2, 3)).max() < 1e-5
    turned = random_affine(places, 0, 10, 0, seeded())
    slope = torch.rad2deg(torch.atan2(turned[:, 0, 20, 16] - turned[:, 0, 12, 16], torch.tensor(8 / 32)).abs())
    assert 9 < slope.max() < 10.001
    zoomed = random_affine(places, 0, 0, 0.1, seeded())
    size = 8 / 32 / (zoomed[:, 0, 16, 20] - zoomed[:, 0, 16, 12])
    assert 1.09 < size.max() < 1.1001 and 1 / 1.1001 < size.min() < 1 / 1.09
