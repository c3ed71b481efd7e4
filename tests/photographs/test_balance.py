"""`lightfast balance` on folders of good and bad files."""

import sys
import time

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from lightfast._commands import app
from lightfast._photographs.balance import choose_estimator, find_photos, gains_for, output_paths
from lightfast._pipelines.estimator import Estimator

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
    result = RUNNER.invoke(app, ["balance", str(source), "-o", str(out), "--estimator", "gray-world"])
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
    arguments = ["balance", str(photo), "-o", str(tmp_path), "--estimator", "gray-world", "--no-sheet"]
    assert RUNNER.invoke(app, arguments).exit_code == 0
    assert photo.read_bytes() == before and (tmp_path / "a-balanced.jpg").exists()
    assert not (tmp_path / "contact-sheet.jpg").exists()


def test_two_photographs_of_one_name_go_to_two_files(tmp_path):
    photos = [tmp_path / "x" / "a.jpg", tmp_path / "y" / "a.jpg", tmp_path / "y" / "a.png"]
    targets = output_paths(photos, tmp_path / "out")
    assert [target.name for target in targets] == ["a", "a-balanced", "a-balanced-2"]


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_strength(tmp_path, strength):
    photo = _photo(tmp_path / "a.png")
    arguments = ["balance", str(photo), "-o", str(tmp_path / "out"), "--estimator", "gray-world", "--no-sheet"]
    assert RUNNER.invoke(app, [*arguments, "--strength", str(strength)]).exit_code == 0
    left = _spread(tmp_path / "out" / "a.png") / _spread(photo)
    assert left == pytest.approx(1 - strength, abs=0.12)


def test_gains_take_the_light_away_and_keep_the_luminance():
    reduced = np.random.default_rng(0).uniform(0, 1, (3, 8, 8))
    light = np.array([0.8, 0.55, 0.2])
    gains = gains_for(light, reduced)
    np.testing.assert_allclose(gains * light, (gains * light)[0])
    luma = np.array([0.2126, 0.7152, 0.0722])
    assert luma @ (reduced.mean((1, 2)) * gains) == pytest.approx(luma @ reduced.mean((1, 2)))
    np.testing.assert_allclose(gains_for(light, reduced, 0.0), 1)
    assert np.isfinite(gains_for(np.array([1.0, 0.0, 0.0]), np.zeros((3, 4, 4)))).all()


def test_a_trained_estimator_is_taken_from_its_folder(tmp_path):
    Estimator("cerberus-local", size=32).save(tmp_path / "model")
    _photo(tmp_path / "a.jpg")
    arguments = ["balance", str(tmp_path / "a.jpg"), "-o", str(tmp_path / "out")]
    assert RUNNER.invoke(app, [*arguments, "--estimator", str(tmp_path / "model")]).exit_code == 0


def test_what_cannot_be_meant_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no estimator"):
        choose_estimator("magic")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no photographs"):
        find_photos([tmp_path / "empty"])
    result = RUNNER.invoke(app, ["balance", "a.jpg", "--strength", "2"])
    assert result.exit_code == 2


def test_a_large_photograph_takes_little_time_beyond_reading_and_writing(tmp_path):
    """24 megapixels: estimate and correction cost less than decoding and encoding do."""
    from lightfast._photographs.balance import balance_photo
    from lightfast._photographs.files import read_photo, write_photo

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
        balance_photo(photo, tmp_path / "out", estimate)
        times["files"].append(middle - start)
        times["whole"].append(time.process_time() - middle)
    assert min(times["whole"]) < 2.5 * min(times["files"]), times


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may have no sandbox without a terminal")
def test_help_names_the_estimators():
    assert "gray-edge-1" in RUNNER.invoke(app, ["balance", "--help"]).output
