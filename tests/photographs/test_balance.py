"""`lightfast balance` on folders of good and bad files."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import lightfast as lf
from lightfast._commands import app
from lightfast._photographs.balance import choose_estimator, photo_gains
from lightfast._photographs.files import read_photo, write_photo
from lightfast._photographs.folder import balance_file, find_photos, output_paths
from lightfast._photographs.photo import Photo, PhotoError
from lightfast._pipelines.estimator import Estimator
from lightfast.color import SRGB_TO_XYZ, linear_to_srgb, srgb_to_linear

RUNNER = CliRunner()


def _photo(path, light=(1.0, 0.7, 0.4), size=(90, 120), seed=0):
    """A gray scene under a light, as a JPEG or PNG file."""
    gray = np.random.default_rng(seed).uniform(0.05, 0.9, (size[0] // 10, size[1] // 10, 1)).repeat(10, 0).repeat(10, 1)
    linear = gray * np.array(light)
    encoded = 255 * np.where(linear < 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    exif = Image.Exif()
    exif[0x0110] = "Camera X"
    Image.fromarray(encoded.round().astype(np.uint8)).save(path, exif=exif, **({"quality": 95}))
    return path


def _spread(path):
    """How far the mean of the channels lie apart, relative to their mean, in linear light."""
    linear = (np.asarray(Image.open(path).convert("RGB")) / 255.0) ** 2.2
    means = linear.mean((0, 1))
    return float((means.max() - means.min()) / means.mean())


def test_a_folder_of_good_and_bad_files(tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    _photo(source / "a.jpg")
    _photo(source / "b.png", (0.4, 0.8, 1.0))
    (source / "bad.jpg").write_bytes(b"nothing")
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    result = RUNNER.invoke(
        app, ["balance", str(source), "-o", str(out), "--estimator", "gray-world", "--prior", "none"]
    )
    assert result.exit_code == 1
    assert "bad.jpg" in result.output and "1 of 3 files" in result.output
    assert {path.name for path in out.iterdir()} == {"a.jpg", "b.png", "contact-sheet.jpg"}
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    for name in ("a.jpg", "b.png"):
        assert _spread(source / name) > 0.4 and _spread(out / name) < 0.05
    with Image.open(out / "a.jpg") as image:
        assert image.getexif()[0x0110] == "Camera X"
    with Image.open(out / "contact-sheet.jpg") as sheet:
        assert sheet.width > 300


def test_inputs_are_never_overwritten(tmp_path):
    photo = _photo(tmp_path / "a.jpg")
    before = photo.read_bytes()
    arguments = [
        "balance",
        str(photo),
        "-o",
        str(tmp_path),
        "--estimator",
        "gray-world",
        "--prior",
        "none",
        "--no-sheet",
    ]
    assert RUNNER.invoke(app, arguments).exit_code == 0
    assert photo.read_bytes() == before and (tmp_path / "a-balanced.jpg").exists()
    assert not (tmp_path / "contact-sheet.jpg").exists()


def test_two_photographs_of_one_name_go_to_two_files(tmp_path):
    photos = dict.fromkeys([tmp_path / "x" / "a.jpg", tmp_path / "y" / "a.jpg", tmp_path / "y" / "a.png"], Path())
    targets = output_paths(photos, tmp_path / "out")
    assert [target.name for target in targets] == ["a", "a-balanced", "a-balanced-2"]


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_strength(tmp_path, strength):
    photo = _photo(tmp_path / "a.png")
    arguments = [
        "balance",
        str(photo),
        "-o",
        str(tmp_path / "out"),
        "--estimator",
        "gray-world",
        "--prior",
        "none",
        "--no-sheet",
    ]
    assert RUNNER.invoke(app, [*arguments, "--strength", str(strength)]).exit_code == 0
    left = _spread(tmp_path / "out" / "a.png") / _spread(photo)
    assert left == pytest.approx(1 - strength, abs=0.12)


def test_gains_take_the_light_away_and_keep_the_luminance():
    reduced = np.random.default_rng(0).uniform(0, 1, (3, 8, 8))
    light = torch.tensor([0.8, 0.55, 0.2], dtype=torch.float64)
    gains = photo_gains(light, reduced)
    np.testing.assert_allclose(gains * light.numpy(), (gains * light.numpy())[0])
    luma = np.array(SRGB_TO_XYZ[1])
    assert luma @ (reduced.mean((1, 2)) * gains) == pytest.approx(luma @ reduced.mean((1, 2)))
    np.testing.assert_allclose(photo_gains(light, reduced, 0.0), 1)
    dark = photo_gains(torch.tensor([1.0, 0.0, 0.0]), np.zeros((3, 4, 4)))
    np.testing.assert_allclose(dark[1:] / dark[0], 100, rtol=1e-5)


def test_a_trained_estimator_is_taken_from_its_folder(tmp_path):
    Estimator("cerberus-local", size=32).save(tmp_path / "model")
    _photo(tmp_path / "a.jpg")
    arguments = ["balance", str(tmp_path / "a.jpg"), "-o", str(tmp_path / "out")]
    assert RUNNER.invoke(app, [*arguments, "--estimator", str(tmp_path / "model")]).exit_code == 0


def test_what_cannot_be_meant_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'magic' is no model"):
        choose_estimator("magic")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no photographs"):
        find_photos([tmp_path / "empty"])
    result = RUNNER.invoke(app, ["balance", "a.jpg", "--strength", "2"])
    assert result.exit_code == 2


def test_a_large_photograph_takes_little_time_beyond_reading_and_writing(tmp_path):
    """24 megapixels: half a second for estimate and correction, or a little more than decoding and encoding."""
    photo = tmp_path / "large.jpg"
    small = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8))
    small.resize((6000, 4000), Image.Resampling.BICUBIC).save(photo, quality=90)
    estimate = choose_estimator("shades-of-gray")
    # Time of this process alone: others that share the machine do not count.
    times: dict[str, list[float]] = {"files": [], "whole": []}
    for _ in range(2):
        start = time.process_time()
        write_photo(read_photo(photo), tmp_path / "copy.jpg")
        middle = time.process_time()
        balance_file(photo, tmp_path / "out", estimate)
        times["files"].append(middle - start)
        times["whole"].append(time.process_time() - middle)
    beyond = min(times["whole"]) - min(times["files"])
    assert beyond < max(0.5, 2.5 * min(times["files"])), times


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may have no sandbox without a terminal")
def test_help_names_the_estimators():
    assert "gray-edge-1" in RUNNER.invoke(app, ["balance", "--help"]).output


def _gray_scene(light=(0.9, 0.6, 0.3)):
    """Linear light (H, W, 3) of gray things under a light."""
    return np.random.default_rng(0).uniform(0.05, 0.9, (30, 40, 1)) * np.array(light)


def _imbalance(linear):
    means = np.asarray(linear, dtype=np.float64).reshape(-1, 3).mean(0)
    return float(means.max() / means.min() - 1)


def _srgb(linear):
    return linear_to_srgb(torch.from_numpy(linear)).numpy()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("alpha", [False, True])
def test_arrays_come_back_as_arrays(dtype, alpha):
    top = 1 if np.issubdtype(dtype, np.floating) else np.iinfo(dtype).max
    array = _srgb(_gray_scene()) * top
    array = (array if top == 1 else array.round()).astype(dtype)
    if alpha:
        array = np.dstack([array, np.arange(1200).reshape(30, 40).astype(dtype)])
    given = array.copy()
    found = lf.balance(array, "gray-world", prior="none")
    assert isinstance(found, lf.Balanced) and np.array_equal(array, given)
    assert found.picture.dtype == dtype and found.picture.shape == array.shape
    assert _imbalance(srgb_to_linear(torch.from_numpy(found.picture[..., :3] / top)).numpy()) < 0.02
    if alpha:
        assert np.array_equal(found.picture[..., 3], array[..., 3])
    light = np.array([0.9, 0.6, 0.3])
    np.testing.assert_allclose(found.light, light / np.linalg.norm(light), atol=5e-3)
    np.testing.assert_allclose(np.array(found.gains) * light, (np.array(found.gains) * light)[0], rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_come_back_as_tensors(dtype):
    top = 255 if dtype == torch.uint8 else 1
    tensor = (torch.from_numpy(_srgb(_gray_scene())).permute(2, 0, 1) * top).to(dtype)
    found = lf.balance(tensor, "gray-world", prior="none").picture
    assert found.dtype == dtype and found.shape == tensor.shape
    assert _imbalance(srgb_to_linear(found.double() / top).permute(1, 2, 0).numpy()) < 0.02


def test_linear_numbers_are_multiplied_and_nothing_is_clipped():
    linear = 3 * _gray_scene()
    found = lf.balance(linear, "gray-world", linear=True)
    np.testing.assert_allclose(found.picture, linear * found.gains, rtol=1e-12)
    assert _imbalance(found.picture) < 1e-6
    half = lf.balance(linear, "gray-world", linear=True, strength=0.5)
    assert 0.3 < _imbalance(half.picture) < 1


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_pillow_images_come_back_as_pillow_images(mode):
    image = Image.fromarray((_srgb(_gray_scene()) * 255).round().astype(np.uint8)).convert(mode)
    image.info["dpi"] = (72, 72)
    found = lf.balance(image, "gray-world", prior="none").picture
    assert isinstance(found, Image.Image) and found.mode == mode and found.info["dpi"] == (72, 72)
    assert np.array_equal(
        np.asarray(found)[..., :3], lf.balance(np.asarray(image.convert("RGB")), "gray-world", prior="none").picture
    )


def test_files_come_back_as_photos_that_can_be_saved(tmp_path):
    path = _photo(tmp_path / "a.jpg")
    found = lf.balance(path, prior="none")
    assert isinstance(found.picture, lf.Photo)
    found.picture.save(tmp_path / "b.jpg")
    assert _spread(tmp_path / "b.jpg") < 0.6 * _spread(path)
    with Image.open(tmp_path / "b.jpg") as image:
        assert image.getexif()[0x0110] == "Camera X"
    assert lf.balance(str(path), lf.pretrained("illuminant"), prior="none").light == found.light
    again = lf.balance(read_photo(path), lambda images: lf.constancy.gray_world(images))
    assert isinstance(again.picture, lf.Photo) and again.light != found.light


def test_photos_of_floating_point_are_balanced(tmp_path):
    Photo(_gray_scene().astype(np.float32), "TIFF", linear=True).save(tmp_path / "a.tif")
    found = lf.balance(tmp_path / "a.tif", "gray-world", prior="none").picture
    assert found.pixels.dtype == np.float32 and _imbalance(found.pixels) < 1e-4


def test_pictures_that_cannot_be_balanced():
    with pytest.raises(PhotoError, match="a gray picture has no red, green and blue"):
        lf.balance(np.zeros((4, 4), np.uint8), "gray-world", prior="none")
    with pytest.raises(ValueError, match=r"a tensor \(3, H, W\), but the shape is \(1, 3, 4, 4\)"):
        lf.balance(torch.zeros(1, 3, 4, 4), "gray-world", prior="none")
    with pytest.raises(ValueError, match="expected one picture"):
        lf.balance(np.zeros((3, 4, 40), np.uint8), "gray-world", prior="none")
    with pytest.raises(TypeError, match="uint8, uint16 or floating point"):
        lf.balance(np.zeros((4, 4, 3), np.int64), "gray-world", prior="none")
    with pytest.raises(TypeError, match="a picture is a path, an array"):
        lf.balance(None, "gray-world", prior="none")
    with pytest.raises(ValueError, match="from 0 to 1, not 2"):
        lf.balance(np.zeros((4, 4, 3), np.uint8), "gray-world", strength=2)
    with pytest.raises(ValueError, match="convert it first"):
        lf.balance(Image.new("CMYK", (4, 4)), "gray-world", prior="none")


def test_a_gray_file_is_named(tmp_path):
    Photo(np.zeros((8, 8, 1), np.uint8)).save(tmp_path / "gray.png")
    result = RUNNER.invoke(app, ["balance", str(tmp_path / "gray.png"), "-o", str(tmp_path / "out")])
    assert result.exit_code == 1 and "gray.png: a gray picture" in result.output


def test_the_prior_leaves_what_is_nearly_right_and_repairs_what_is_far_off():
    from lightfast._photographs.prior import likely_light, wrong_probability

    def tempered(angle_like):
        light = torch.nn.functional.normalize(torch.tensor([1.0 + angle_like, 1.0, 1.0 - angle_like]).double(), dim=0)
        return light, likely_light(light)

    def cast(light):
        return float((light.sum() / 3**0.5).clamp(max=1).acos().rad2deg())

    near, kept = tempered(0.05)
    assert 2 < cast(near) < 3 and cast(kept) < 0.2
    far, gone = tempered(0.4)
    assert cast(gone) > 0.4 * cast(far)
    warm, red = torch.tensor([[0.35, -0.35], [0.35, 0.35]])
    assert wrong_probability(warm) > 1.5 * wrong_probability(red), "light is rather warm than magenta"
    assert wrong_probability(torch.tensor([1.5, -0.8])) < 0.1, "no camera is as wrong as that"
    wild = likely_light(torch.tensor([1.0, 1e-5, 1e-3], dtype=torch.float64))
    assert wild.max() / wild.min() < 8.001


def test_raw_and_linear_pictures_have_no_prior():
    linear = _gray_scene((0.6, 0.55, 0.5))
    assert (
        lf.balance(linear, "gray-world", linear=True).light == lf.balance(linear, "gray-world", linear=True).estimated
    )
    rendered = lf.balance(_srgb(linear), "gray-world")
    assert max(rendered.light) - min(rendered.light) < 0.2 * (max(rendered.estimated) - min(rendered.estimated))
    with pytest.raises(ValueError, match="the prior is 'auto' or 'none'"):
        lf.balance(linear, "gray-world", prior="maybe")
