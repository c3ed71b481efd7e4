"""Photographs of streets from folders, and the textures that the project draws."""

import pytest
import torch
from PIL import Image

from lightfast._experiments.data import DataError
from lightfast._experiments.data.generated_textures import draw_textures, drawn_textures
from lightfast._experiments.data.street import load_street
from lightfast._photographs.photo import PhotoError


def write(folder, count, size, seed=0):
    folder.mkdir(parents=True)
    for number, image in enumerate(draw_textures(count, seed=seed, size=size)):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number:03}.png")


def test_folders_are_read_and_scaled(tmp_path):
    write(tmp_path / "street128" / "train", 3, 128)
    write(tmp_path / "street128" / "test", 2, 128, seed=1)
    write(tmp_path / "paris_eval", 2, 227, seed=2)
    images = load_street(tmp_path)
    assert torch.equal(images.train, draw_textures(3, seed=0))
    assert {name: tuple(test.shape) for name, test in images.tests.items()} == {
        "Paris Street View": (2, 3, 128, 128),
        "street128": (2, 3, 128, 128),
    }
    assert torch.equal(images.tests["street128"], draw_textures(2, seed=1)) and images.photographs


def test_images_are_held_out():
    images = drawn_textures(train=10, test=2)
    kept, held_out = images.held_out(3)
    assert len(kept.train) == 7 and len(held_out) == 3 and not kept.photographs
    everything = torch.cat([kept.train, held_out]).flatten(1).double().mean(1).sort().values
    torch.testing.assert_close(everything, images.train.flatten(1).double().mean(1).sort().values)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere is not a folder"):
        load_street(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no folder street128/train"):
        load_street(tmp_path)
    write(tmp_path / "street128" / "train", 1, 128)
    with pytest.raises(DataError, match="neither street128/test nor paris_eval"):
        load_street(tmp_path)
    (tmp_path / "paris_eval").mkdir()
    with pytest.raises(DataError, match=r"the folder .*paris_eval has no images"):
        load_street(tmp_path)
    (tmp_path / "paris_eval" / "broken.png").write_bytes(b"no image")
    with pytest.raises(PhotoError, match=r"broken.png cannot be read"):
        load_street(tmp_path)


def test_textures_are_the_same_for_the_same_seed():
    assert torch.equal(draw_textures(3, seed=7, size=32), draw_textures(3, seed=7, size=32))
    assert not torch.equal(draw_textures(3, seed=7, size=32), draw_textures(3, seed=8, size=32))
    assert draw_textures(3).float().std() > 20


@pytest.mark.data
def test_the_real_photographs(data_folder):
    if not (data_folder / "street128").is_dir():
        pytest.skip("there is no street128 in LIGHTFAST_DATA")
    images = load_street(data_folder)
    assert images.train.shape == (4102, 3, 128, 128)
    assert [len(test) for test in images.tests.values()] == [100, 851]
