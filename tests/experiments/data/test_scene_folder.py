"""Reading folders of images with their light, joining them, and drawing scenes."""

import dataclasses
import lzma

import numpy as np
import pytest
import torch

from lightfast._experiments.data.error import DataError
from lightfast._experiments.data.generated_scenes import draw_scenes
from lightfast._experiments.data.lit_scenes import LitScenes, join_scenes
from lightfast._experiments.data.scene_folder import load_scenes
from lightfast._photographs.photo import Photo

HEAD = "file,camera,source,scene,fold,r,g,b\n"


def _folder(tmp_path, sizes=((4, 6), (4, 6))):
    rows = []
    for number, size in enumerate(sizes):
        pixels = np.random.default_rng(number).integers(0, 65536, (*size, 3)).astype(np.uint16)
        Photo(pixels).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,Camera{1 - number},x,{number + 5},{number + 1},0.6,0.8,0.0\n")
    (tmp_path / "index.csv").write_text(HEAD + "".join(rows))
    return tmp_path


def test_all_sixteen_bits_are_read(tmp_path):
    scenes = load_scenes(_folder(tmp_path))
    expected = np.random.default_rng(1).integers(0, 65536, (4, 6, 3)).transpose(2, 0, 1) / 65535
    torch.testing.assert_close(scenes.images[1], torch.from_numpy(expected).float(), atol=1e-7, rtol=0)
    assert scenes.camera_names == ("Camera0", "Camera1") and scenes.cameras.tolist() == [1, 0]
    assert scenes.scenes.tolist() == [5, 6] and scenes.folds.tolist() == [1, 2]
    assert len(scenes.subset([1])) == 1 and scenes.subset([1]).scenes.tolist() == [6]


def test_wrong_folders_are_named(tmp_path):
    with pytest.raises(DataError, match=r"index\.csv"):
        load_scenes(tmp_path)
    (tmp_path / "index.csv").write_text("file,camera\n")
    with pytest.raises(DataError, match="no column scene"):
        load_scenes(tmp_path)
    (tmp_path / "index.csv").write_text(HEAD)
    with pytest.raises(DataError, match="names no images"):
        load_scenes(tmp_path)
    (tmp_path / "index.csv").write_text(HEAD + "a.png,C,x,1,1,1,1,1\n")
    (tmp_path / "a.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"a\.png"):
        load_scenes(tmp_path)


def test_images_of_another_size_are_named(tmp_path):
    with pytest.raises(DataError, match=r"1\.png has another size"):
        load_scenes(_folder(tmp_path, ((4, 6), (5, 6))))


def _write_shard(path, images):
    """The reverse of `read_shard`, for images (N, 3, H, W)."""
    roots = np.round(511 * np.sqrt(images)).astype(np.int32)
    roots[:, ::2] -= roots[:, 1:2]
    difference = np.diff(roots, axis=3, prepend=0)
    coded = np.where(difference >= 0, 2 * difference, -2 * difference - 1)
    with lzma.open(path, "wb") as file:
        np.save(file, np.stack([coded >> 8, coded & 255]).astype(np.uint8))


def _packed(tmp_path):
    images = np.random.default_rng(3).random((3, 3, 5, 4)).astype(np.float32)
    images[1, :, 2] = 0
    tmp_path.mkdir(exist_ok=True)
    _write_shard(tmp_path / "one.xz", images)
    rows = [f"one,{n},Cube+,Camera1,field,{n + 1},,,{n + 1},0.6,0.8,0\n" for n in (2, 0, 1)]
    missing = "two,0,INTEL-TAU,Camera3,field,1,,,1,1,1,1\n"
    (tmp_path / "index.csv").write_text(
        "shard,number,set,camera,kind,image,print,light,fold,r,g,b\n" + "".join(rows) + missing
    )
    return images


def test_packed_shards_are_read_without_those_that_are_not_there(tmp_path):
    images = _packed(tmp_path)
    scenes = load_scenes(tmp_path)
    assert scenes.set_names == ("Cube+",) and scenes.scenes.tolist() == [3, 1, 2] and len(scenes) == 3
    torch.testing.assert_close(scenes.images, torch.from_numpy(images[[2, 0, 1]]), atol=3e-3, rtol=0)
    assert (scenes.images[2, :, 2] == 0).all()
    (tmp_path / "one.xz").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"one\.xz is not a packed shard"):
        load_scenes(tmp_path)
    (tmp_path / "one.xz").unlink()
    with pytest.raises(DataError, match="no images that are there"):
        load_scenes(tmp_path)


def test_a_folder_of_folders_is_read_as_one_at_the_smallest_size(tmp_path):
    (tmp_path / "nus").mkdir()
    _folder(tmp_path / "nus")
    _packed(tmp_path / "others")
    scenes = load_scenes(tmp_path)
    assert scenes.images.shape == (5, 3, 4, 4) and scenes.set_names == ("NUS", "Cube+")
    assert scenes.camera_names == ("Camera0", "NUS Camera1", "Cube+ Camera1")
    assert scenes.cameras.tolist() == [1, 0, 2, 2, 2] and scenes.sets.tolist() == [0, 0, 1, 1, 1]
    assert scenes.subset([4, 0]).sets.tolist() == [1, 0]


def test_resizing_averages_what_is_not_masked():
    images = torch.rand(2, 3, 4, 6) + 0.1
    images[0, :, :2, :3] = 0
    images[1, :, :2, :2] = 0
    joined = join_scenes([_lit(images), _lit(torch.ones(1, 3, 2, 2))]).images
    assert (joined[0, :, 0, 0] == 0).all(), "a cell of which nothing is left is masked"
    torch.testing.assert_close(joined[1, :, 0, 0], images[1, :, :2, 2].mean(1))
    torch.testing.assert_close(joined[0, :, 1, 1], images[0, :, 2:, 3:].mean((1, 2)))


def _lit(images):
    n = len(images)
    zeros = torch.zeros(n, dtype=torch.int64)
    return LitScenes("a", images, torch.ones(n, 3), ("C",), zeros, zeros, zeros)


def test_scenes_are_found_in_each_set_alone():
    first = draw_scenes(scenes=3, cameras=1)
    shown = join_scenes([first, dataclasses.replace(first, name="again", set_names=())]).shown
    assert not set(shown[:3].tolist()) & set(shown[3:].tolist())


@pytest.mark.data
def test_the_real_ones(data_folder):
    if not (data_folder / "nus8").is_dir():
        pytest.skip("there is no nus8 in the folder of real data sets")
    scenes = load_scenes(data_folder / "nus8")
    assert scenes.images.shape == (1736, 3, 64, 96) and len(scenes.camera_names) == 8
    assert scenes.folds.bincount().tolist() == [0, 583, 583, 570] and len(scenes.scenes.unique()) == 264
    masked = (scenes.images == 0).all(1).float().mean()
    assert 0.04 < masked < 0.07
    sizes = scenes.shown.bincount()
    assert 330 < len(sizes) < 400 and (sizes >= 6).sum() > 140


def test_drawn_scenes_are_the_same_for_the_same_seed():
    first, second, other = (draw_scenes(scenes=5, cameras=2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.images, second.images) and not torch.equal(first.images, other.images)
    assert first.images.shape == (10, 3, 32, 48) and first.images.max() <= 1 and first.images.min() == 0
    masked = (first.images == 0).all(1).flatten(1).sum(1)
    assert (masked == masked[0]).all() and masked[0] > 20
    torch.testing.assert_close(first.illuminants.norm(dim=1), torch.ones(10))
    with pytest.raises(ValueError, match="at least 3 scenes"):
        draw_scenes(scenes=1)
