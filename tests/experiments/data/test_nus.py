"""Reading the reduced NUS images, and drawing scenes."""

import numpy as np
import pytest
import torch

from lightfast._experiments.data.error import DataError
from lightfast._experiments.data.generated_scenes import draw_scenes
from lightfast._experiments.data.nus import load_nus
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
    scenes = load_nus(_folder(tmp_path))
    expected = np.random.default_rng(1).integers(0, 65536, (4, 6, 3)).transpose(2, 0, 1) / 65535
    torch.testing.assert_close(scenes.images[1], torch.from_numpy(expected).float(), atol=1e-7, rtol=0)
    assert scenes.camera_names == ("Camera0", "Camera1") and scenes.cameras.tolist() == [1, 0]
    assert scenes.scenes.tolist() == [5, 6] and scenes.folds.tolist() == [1, 2]
    assert len(scenes.subset([1])) == 1 and scenes.subset([1]).scenes.tolist() == [6]


def test_wrong_folders_are_named(tmp_path):
    with pytest.raises(DataError, match=r"index\.csv"):
        load_nus(tmp_path)
    (tmp_path / "index.csv").write_text("file,camera\n")
    with pytest.raises(DataError, match="no column scene"):
        load_nus(tmp_path)
    (tmp_path / "index.csv").write_text(HEAD)
    with pytest.raises(DataError, match="names no images"):
        load_nus(tmp_path)
    (tmp_path / "index.csv").write_text(HEAD + "a.png,C,x,1,1,1,1,1\n")
    (tmp_path / "a.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"a\.png"):
        load_nus(tmp_path)


def test_images_of_another_size_are_named(tmp_path):
    with pytest.raises(DataError, match=r"1\.png has another size"):
        load_nus(_folder(tmp_path, ((4, 6), (5, 6))))


@pytest.mark.data
def test_the_real_ones(data_folder):
    if not (data_folder / "nus8").is_dir():
        pytest.skip("there is no nus8 in the folder of real data sets")
    scenes = load_nus(data_folder / "nus8")
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
