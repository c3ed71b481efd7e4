import numpy as np
import pytest
import torch

from lightfast._experiments.data import DataError, load_cifar10

NAMES = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
BYTES = 30_730_000


@pytest.fixture
def root(tmp_path):
    """Files of the right size that are zeros, except for one image."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in NAMES:
        with (folder / name).open("wb") as file:
            file.truncate(BYTES)
    with (folder / "data_batch_2.bin").open("r+b") as file:
        file.seek(3 * 3073)
        file.write(bytes([7]) + (np.arange(3072) % 256).astype(np.uint8).tobytes())
    return tmp_path


def test_layout(root):
    data = load_cifar10(root)
    assert data.train_images.shape == (50_000, 3, 32, 32) and data.train_images.dtype == torch.uint8
    assert data.test_images.shape == (10_000, 3, 32, 32)
    assert data.train_labels.dtype == torch.int64 and data.train_labels.nonzero().flatten().tolist() == [10_003]
    assert data.classes[data.train_labels[10_003]] == "horse"
    image = (torch.arange(3072) % 256).view(3, 32, 32)
    assert torch.equal(data.train_images[10_003].long(), image)
    assert torch.equal(load_cifar10(root / "cifar-10-batches-bin").test_labels, data.test_labels)


@pytest.mark.parametrize("name", ["data_batch_3.bin", "test_batch.bin"])
def test_damaged_files_are_named(root, name):
    path = root / "cifar-10-batches-bin" / name
    path.write_bytes(b"123")
    with pytest.raises(DataError, match=f"{name} has 3 bytes instead of 30730000"):
        load_cifar10(root)
    path.write_bytes(bytes([200]) * BYTES)
    with pytest.raises(DataError, match=f"{name} has labels above 9"):
        load_cifar10(root)
    path.unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        load_cifar10(root)


def test_wrong_folders(tmp_path):
    with pytest.raises(DataError, match="nowhere is not a folder"):
        load_cifar10(tmp_path / "nowhere")
    with pytest.raises(DataError, match="has no cifar-10-batches-bin"):
        load_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match="get the binary version"):
        load_cifar10(tmp_path)


@pytest.mark.data
def test_the_real_one(data_folder):
    if not (data_folder / "cifar-10-batches-bin").is_dir():
        pytest.skip(f"{data_folder} has no cifar-10-batches-bin")
    data = load_cifar10(data_folder)
    assert torch.bincount(data.train_labels).tolist() == [5000] * 10
    assert torch.bincount(data.test_labels).tolist() == [1000] * 10
    means = [data.train_images[:, channel].double().mean().item() / 255 for channel in range(3)]
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
