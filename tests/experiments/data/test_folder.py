import numpy as np
import pytest
import torch
from PIL import Image

from lightfast._experiments.data import DataError, LazyImages, load_folder
from lightfast._experiments.engine import Draw
from lightfast._photographs.decode import load_image
from lightfast._photographs.photo import PhotoError


def write(path, size=(8, 8), seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return torch.from_numpy(pixels).permute(2, 0, 1)


@pytest.fixture
def root(tmp_path):
    for seed, name in enumerate(["cat/a.png", "cat/deeper/b.PNG", "dog/c.png", "ant/d.png", "ant/e.bmp"]):
        write(tmp_path / name, seed=seed)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def test_one_folder_a_class(root):
    data = load_folder(root)
    assert data.classes == ("ant", "cat", "dog") and data.labels.tolist() == [0, 0, 1, 1, 2]
    assert data.images.shape == (5, 3, 8, 8) and data.images.dtype == torch.uint8
    assert torch.equal(data.images[2], write(root / "cat/a.png", seed=0))


def test_train_and_val(root, tmp_path_factory):
    divided = tmp_path_factory.mktemp("divided")
    root.rename(divided / "train")
    for name in ("ant", "cat", "dog"):
        write(divided / "val" / name / "x.png", seed=9)
    assert load_folder(divided).labels.tolist() == [0, 0, 1, 1, 2]
    held_out = load_folder(divided, split="val")
    assert held_out.labels.tolist() == [0, 1, 2] and held_out.classes == ("ant", "cat", "dog")
    write(divided / "val" / "emu" / "x.png")
    with pytest.raises(DataError, match="train has no class folder emu"):
        load_folder(divided, split="val")
    (divided / "val" / "emu").rename(divided / "emu")
    (divided / "val" / "cat").rename(divided / "cat")
    with pytest.raises(DataError, match="val has no class folder cat"):
        load_folder(divided, split="val")


def test_sizes(root):
    write(root / "dog" / "wide.png", size=(20, 10), seed=3)
    with pytest.raises(DataError, match=r"wide.png has 20 x 10 pixels.*--size"):
        load_folder(root)
    data = load_folder(root, size=5)
    assert data.images.shape == (6, 3, 5, 5)
    middle = load_image(root / "dog" / "wide.png", 10)
    assert torch.equal(middle, load_image(root / "dog" / "wide.png")[:, :, 5:15])


def test_photographs_are_upright_and_rgb(tmp_path):
    pixels = np.zeros((4, 6, 3), dtype=np.uint8)
    pixels[:, :3] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    turned = load_image(tmp_path / "turned.png")
    assert turned.shape == (3, 6, 4) and turned[:, :3].all() and not turned[:, 3:].any()
    Image.fromarray(pixels[:, :, 0]).save(tmp_path / "gray.png")
    assert load_image(tmp_path / "gray.png").shape == (3, 4, 6)


def test_lazy_is_the_same(root):
    now, later = load_folder(root, size=6), load_folder(root, size=6, memory=100)
    assert isinstance(later.images, LazyImages) and len(later.images) == 5
    assert torch.equal(torch.stack([later.images[i] for i in range(5)]), now.images)
    assert torch.equal(later.labels, now.labels)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_streaming(root, workers):
    images = load_folder(root, size=6, memory=0).images
    order = [torch.tensor([3, 1]), torch.tensor([4, 0]), torch.tensor([2])]
    before = torch.get_rng_state()
    for found, indices in zip(images.stream([(i, None) for i in order], workers=workers), order, strict=True):
        assert torch.equal(found[1], indices)
        assert torch.equal(found[0], torch.stack([images[i] for i in indices.tolist()]))
    draws = [Draw(indices, seed) for seed, indices in enumerate(order)]
    crops = [batch for batch, _ in images.stream(draws, workers=workers)]
    assert torch.equal(crops[0][1], images.random_crop(1, seed=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_random_crops_cover_the_image(tmp_path):
    x, y = np.meshgrid(np.arange(64), np.arange(48))
    pixels = np.stack([x * 4, y * 4, 0 * x], 2).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "ramp.png")
    images = LazyImages([tmp_path / "ramp.png"], size=8)
    crops = torch.stack([images.random_crop(0, seed) for seed in range(200)]).float() / 4
    left, right = crops[:, 0, :, 0].mean(1), crops[:, 0, :, -1].mean(1)
    top, bottom = crops[:, 1, 0].mean(1), crops[:, 1, -1].mean(1)
    area = (right - left) * (bottom - top) / (7 / 8) ** 2 / (64 * 48)
    assert 0.05 < area.min() < 0.15 and 0.75 < area.max() < 1.05
    assert left.min() < 5 and right.max() > 59 and top.min() < 4 and bottom.max() > 44


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("content", [b"", b"not an image at all", "half"])
def test_corrupt_images_are_named(root, content):
    path = root / "dog" / "broken.png"
    write(path)
    path.write_bytes(path.read_bytes()[:100] if content == "half" else content)
    for memory in (1 << 20, 0):
        with pytest.raises(PhotoError, match=r"broken.png cannot be read as an image"):
            images = load_folder(root, size=6, memory=memory).images
            list(images.stream([(torch.arange(len(images)), None)], workers=1))


def test_wrong_folders(root):
    with pytest.raises(DataError, match="nowhere is not a folder"):
        load_folder(root / "nowhere")
    with pytest.raises(DataError, match="deeper has 0 class folders"):
        load_folder(root / "cat" / "deeper")
    with pytest.raises(DataError, match="no folders train and val"):
        load_folder(root, split="val")
    (root / "empty").mkdir()
    with pytest.raises(DataError, match=r"class folder .*empty has no images"):
        load_folder(root)
    (root / "train").mkdir()
    with pytest.raises(DataError, match="no val"):
        load_folder(root, split="val")


@pytest.mark.data
def test_tiny_imagenet(data_folder):
    if not (data_folder / "tiny25").is_dir():
        pytest.skip(f"{data_folder} has no tiny25")
    train, val = (load_folder(data_folder / "tiny25", split=split) for split in ("train", "val"))
    assert train.images.shape == (12_500, 3, 64, 64) and len(train.classes) == 25
    assert torch.bincount(val.labels).tolist() == [50] * 25
