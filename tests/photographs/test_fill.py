"""Holes in photographs: real files of every kind, and all other pixels as they were."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import lightfast as lf
from lightfast._experiments.data.generated_textures import draw_textures
from lightfast._photographs.files import read_photo, write_photo
from lightfast._photographs.fill import fill, fill_file, find_holes, seamless
from lightfast._photographs.photo import Photo, PhotoError
from lightfast._pipelines.inpainter import Inpainter
from lightfast.color import linear_to_srgb, srgb_to_linear

EXIF_MAKER, ORIENTATION = 0x010F, 0x0112


@pytest.fixture(scope="module")
def inpainter():
    torch.manual_seed(0)
    return Inpainter("context-encoder", constrained=False, options={"base": 3, "bottleneck": 9}).eval()


@pytest.fixture(scope="module")
def model(inpainter, tmp_path_factory):
    return inpainter.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pixels():
    """A photograph of 200 x 150 pixels."""
    texture = draw_textures(1, seed=4, size=200)[0, :, :150].permute(1, 2, 0).numpy()
    return np.ascontiguousarray(texture)


def mask_of(*rectangles, size=(150, 200)):
    mask = np.zeros(size, dtype=bool)
    for top, left, height, width in rectangles:
        mask[top : top + height, left : left + width] = True
    return mask


def test_holes_are_found():
    mask = mask_of((5, 5, 10, 10), (15, 15, 5, 5), (40, 40, 1, 1), (0, 190, 150, 10))
    mask[60:70, 50] = mask[60:70, 60] = mask[69, 50:60] = True
    holes = find_holes(mask)
    assert sorted((hole.top, hole.left, *hole.inside.shape, int(hole.inside.sum())) for hole in holes) == [
        (0, 190, 150, 10, 1500),
        (5, 5, 15, 15, 125),
        (40, 40, 1, 1, 1),
        (60, 50, 10, 11, 29),
    ]
    again = np.zeros_like(mask)
    for hole in holes:
        again[hole.top : hole.top + hole.inside.shape[0], hole.left : hole.left + hole.inside.shape[1]] |= hole.inside
    assert (again == mask).all()


@pytest.mark.parametrize("rectangle", [(60, 80, 20, 30), (0, 0, 40, 20), (20, 10, 120, 180), (149, 199, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_only_missing_pixels_change(inpainter, pixels, rectangle, dtype):
    photo = Photo(pixels if dtype == np.uint8 else pixels.astype(np.uint16) * 257, "PNG")
    mask = mask_of(rectangle)
    filled = fill(photo, mask, inpainter).picture.pixels
    assert filled.dtype == dtype and (filled[~mask] == photo.pixels[~mask]).all()
    junk = photo.pixels.copy()
    junk[mask] = 77
    assert (fill(Photo(junk), mask, inpainter).picture.pixels == filled).all()
    assert (filled[mask] != photo.pixels[mask]).any()


def test_what_is_filled_in_follows_the_light(inpainter, pixels):
    """In 16 bits, so that the rounding of the file is small; a large hole, which is resampled.

    Which of two patches is the better one may turn on that rounding, so that patches are tested by themselves.
    """
    light = np.array([1.0, 0.5, 0.25])
    linear = srgb_to_linear(torch.from_numpy(pixels / 255.0)).numpy()
    photos = [
        np.round(65535 * linear_to_srgb(torch.from_numpy(0.5 * linear * gain)).numpy()).astype(np.uint16)
        for gain in (np.ones(3), light)
    ]
    mask = mask_of((30, 40, 80, 100), (5, 5, 3, 4))
    white, colored = (fill(photo, mask, inpainter, texture=False).picture[mask] / 65535.0 for photo in photos)
    back = linear_to_srgb(srgb_to_linear(torch.from_numpy(colored)) / torch.from_numpy(light)).numpy()
    assert np.abs(back - white).max() < 2e-3 and white.std() > 0.005


def test_a_hole_of_the_networks_size_is_filled_as_the_network_does(inpainter, pixels):
    photo, mask = Photo(pixels, "PNG"), mask_of((50, 70, 50, 50))
    window = torch.from_numpy(pixels[11:139, 31:159] / 255.0).float().permute(2, 0, 1)[None]
    gone = torch.from_numpy(mask[11:139, 31:159])[None, None]
    with torch.no_grad():
        wanted = inpainter(window, gone)[0].permute(1, 2, 0).numpy()
    filled = fill(photo, mask, inpainter, blend=False).picture.pixels[11:139, 31:159] / 255.0
    assert np.abs(filled - wanted).max() < 0.5 / 255 + 1e-3


def test_what_is_off_at_the_rim_is_spread_over_the_hole():
    image = torch.rand(3, 128, 128, dtype=torch.float64) + 1
    missing = torch.zeros(1, 128, 128, dtype=torch.bool)
    missing[:, 45:80, 50:85] = True
    off = torch.tensor([0.9, 0.5, 0.7]).double()[:, None, None]
    torch.testing.assert_close(seamless(image * off, image, missing), image, atol=0.05, rtol=0)
    tilted = image * torch.linspace(0.5, 0.9, 128).double()
    rim = (seamless(tilted, image, missing) - image)[:, 45:80, 50]
    assert rim.abs().max() < 0.1, "most of what is off at the rim is gone there"
    light = torch.tensor([1.0, 0.5, 0.1]).double()[:, None, None]
    torch.testing.assert_close(
        seamless(tilted * light, image * light, missing), light * seamless(tilted, image, missing)
    )


def test_a_fill_that_is_too_bright_at_the_rim_leaves_no_complementary_color():
    image = torch.ones(3, 128, 128, dtype=torch.float64) * 0.8
    missing = torch.zeros(1, 128, 128, dtype=torch.bool)
    missing[:, 45:80, 50:85] = True
    filling = image * 0.5
    filling[0, :, 82:] = 3.0
    filled = seamless(filling, image, missing)[:, 45:80, 50:85]
    assert (filled[0] > 0.5 * filled[1]).all() and filled.max() <= 0.8 + 1e-12


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif"])
def test_files_keep_what_they_carry(inpainter, pixels, tmp_path, suffix):
    source, target = tmp_path / f"photo{suffix}", tmp_path / f"out{suffix}"
    exif = Image.Exif()
    exif[EXIF_MAKER] = "a camera"
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.fromarray(pixels).save(source, exif=exif, icc_profile=profile)
    before = source.read_bytes()
    assert fill_file(source, target, [(60, 40, 30, 20)], inpainter) == 1
    assert source.read_bytes() == before
    with Image.open(target) as image:
        assert image.getexif()[EXIF_MAKER] == "a camera" and image.info["icc_profile"] == profile
        written = np.asarray(image.convert("RGB")).astype(int)
    decoded = read_photo(source).pixels.astype(int)
    mask = mask_of((40, 60, 20, 30))
    difference = np.abs(written - decoded)[~mask]
    assert difference.max() == 0 if suffix != ".jpg" else difference.mean() < 2


def test_another_kind_of_file_can_be_asked_for(inpainter, pixels, tmp_path):
    source = tmp_path / "photo.jpg"
    Image.fromarray(pixels).save(source, quality=90)
    fill_file(source, tmp_path / "out.png", [(60, 40, 30, 20)], inpainter)
    first, second = read_photo(source), read_photo(tmp_path / "out.png")
    kept = ~mask_of((40, 60, 20, 30))
    assert second.kind == "PNG" and (first.pixels[kept] == second.pixels[kept]).all()
    deep = Photo(pixels.astype(np.uint16) * 257, "PNG", alpha=np.full((150, 200), 65535, np.uint16))
    write_photo(deep, tmp_path / "deep.png")
    fill_file(tmp_path / "deep.png", tmp_path / "deep.jpg", [(60, 40, 30, 20)], inpainter)
    assert read_photo(tmp_path / "deep.jpg").pixels.dtype == np.uint8


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_are_those_of_the_upright_picture(inpainter, pixels, tmp_path, orientation, suffix):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray(pixels).save(tmp_path / f"photo{suffix}", exif=exif)
    fill_file(tmp_path / f"photo{suffix}", tmp_path / f"out{suffix}", [(10, 20, 30, 15)], inpainter)
    upright = []
    for name in ("photo", "out"):
        with Image.open(tmp_path / f"{name}{suffix}") as image:
            upright.append(np.asarray(ImageOps.exif_transpose(image)).astype(int))
    before, after = upright
    assert fill(tmp_path / f"photo{suffix}", [(10, 20, 30, 15)], inpainter).holes == ((10, 20, 30, 15),)
    changed = np.argwhere((before != after).any(2))
    assert changed.min(0).tolist() == [20, 10] and changed.max(0).tolist() == [34, 39]


def test_the_command_fills_a_box_and_a_mask(model, pixels, tmp_path):
    photo, mask = tmp_path / "photo.png", tmp_path / "mask.png"
    Image.fromarray(pixels).save(photo)
    Image.fromarray((255 * mask_of((40, 60, 20, 30), (100, 10, 8, 8))).astype(np.uint8)).save(mask)
    arguments = [sys.executable, "-m", "lightfast.cli", "inpaint", str(photo), "--model", str(model)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*arguments, "--box", "60,40,30,20"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "1 hole filled" in done.stdout and (tmp_path / "photo-filled.png").exists()
    out = tmp_path / "both.png"
    done = subprocess.run(
        [*arguments, "--mask", str(mask), "-o", str(out)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0 and "2 holes filled" in done.stdout
    kept = ~mask_of((40, 60, 20, 30), (100, 10, 8, 8))
    assert (read_photo(out).pixels[kept] == pixels[kept]).all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "either with --box"),
        (["--box", "1,2,3"], "is not a box"),
        (["--box", "1,2,3,x"], "is not a box"),
        (["--box", "190,10,20,20"], "reaches outside of the photograph, which is 200 x 150"),
        (["--box", "-1,0,5,5"], "reaches outside"),
        (["--box", "5,5,0,5"], "is empty"),
        (["--box", "0,0,200,150"], "the whole photograph is missing"),
        (["--box", "5,5,5,5", "--mask", "small.png"], "either with --box"),
        (["--mask", "small.png"], "the mask small.png is 20 x 10, and the photograph 200 x 150"),
        (["--mask", "black.png"], "no pixel is missing"),
        (["--mask", "nowhere.png"], "there is no file nowhere.png"),
        (["--mask", "notes.txt"], "cannot be read as an image"),
        (["--box", "5,5,5,5", "-o", "photo.png"], "would be overwritten"),
        (["--box", "5,5,5,5", "-o", "photo.gif"], "ends in"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_answered_with_a_sentence(run, model, pixels, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(pixels).save("photo.png")
    Image.fromarray(np.zeros((10, 20), np.uint8)).save("small.png")
    Image.fromarray(np.zeros((150, 200), np.uint8)).save("black.png")
    (tmp_path / "notes.txt").write_text("not an image")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, _, err = run("inpaint", "photo.png", *arguments, "--model", model)
    assert code == 2 and sentence in err and "Traceback" not in err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_photos_and_models_that_are_not_there(run, model, inpainter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("inpaint", "photo.png", "--box", "1,1,2,2", "--model", model)
    assert code == 2 and "there is no file photo.png" in err
    code, _, err = run("inpaint", "photo.png", "--box", "1,1,2,2", "--model", "nowhere")
    assert code == 2 and "'nowhere' is no model" in err
    code, _, err = run("inpaint", "photo.png", "--box", "1,1,2,2", "--model", "resnet20-cifar10")
    assert code == 2 and "of the kind Classifier, not Inpainter" in err
    with pytest.raises(PhotoError, match="develop it first"):
        (tmp_path / "photo.nef").write_bytes(b"raw")
        fill_file(tmp_path / "photo.nef", tmp_path / "out.png", [(1, 1, 2, 2)], inpainter)


def test_every_kind_of_picture_and_of_mask_is_filled_alike(inpainter, pixels, tmp_path):
    boxes, mask = [(60, 40, 30, 20), (5, 5, 4, 4)], mask_of((40, 60, 20, 30), (5, 5, 4, 4))
    wanted = lf.fill(pixels, mask, inpainter)
    assert wanted.holes == ((5, 5, 4, 4), (60, 40, 30, 20)) and wanted.picture.dtype == np.uint8
    white = Image.fromarray((255 * mask).astype(np.uint8))
    white.save(tmp_path / "mask.png")
    for kind in (boxes, torch.from_numpy(mask), mask.astype(np.float32), white, tmp_path / "mask.png"):
        assert np.array_equal(lf.fill(pixels, kind, inpainter).picture, wanted.picture)
    tensor = lf.fill(torch.from_numpy(pixels).permute(2, 0, 1), boxes, inpainter).picture
    assert torch.equal(tensor, torch.from_numpy(wanted.picture).permute(2, 0, 1))
    image = lf.fill(Image.fromarray(pixels), boxes, inpainter).picture
    assert isinstance(image, Image.Image) and np.array_equal(np.asarray(image), wanted.picture)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    photo = lf.fill(tmp_path / "photo.png", boxes, inpainter).picture
    photo.save(tmp_path / "out.tif")
    assert np.array_equal(read_photo(tmp_path / "out.tif").pixels, wanted.picture)
    floats = (pixels / 255).astype(np.float32)
    floats[mask] = np.nan
    # Without texture: which of two patches is the better one may turn on how light was rounded.
    filled, smooth = (lf.fill(each, boxes, inpainter, texture=False).picture for each in (floats, pixels))
    assert np.array_equal(filled[~mask], floats[~mask])
    assert np.abs(filled[mask] * 255 - smooth[mask]).max() < 0.51


def test_gray_pictures_stay_gray(inpainter, pixels):
    gray, mask = pixels[..., 0], mask_of((40, 60, 20, 30))
    filled = lf.fill(gray, mask, inpainter).picture
    assert filled.shape == gray.shape and np.array_equal(filled[~mask], gray[~mask])
    assert (filled[mask] != gray[mask]).any()
