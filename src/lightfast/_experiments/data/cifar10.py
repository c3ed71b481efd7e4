"""CIFAR-10 in its binary version: six files of 10,000 records, each a label and the bytes of a 32x32 image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightfast._experiments.data.error import DataError

FOLDER = "cifar-10-batches-bin"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_TRAIN = [f"data_batch_{number}.bin" for number in range(1, 6)]
_TEST = ["test_batch.bin"]
_RECORDS = 10_000
_RECORD_BYTES = 1 + 3 * 32 * 32


@dataclass(frozen=True)
class CIFAR10:
    """The 60,000 images. Shapes: images (N, 3, 32, 32) uint8, labels (N,) int64."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...] = CLASSES


def load_cifar10(root: str | Path) -> CIFAR10:
    """Read CIFAR-10 from `root`, the folder `cifar-10-batches-bin` or the one that holds it.

    Raises:
        DataError: a file is missing or is not what it should be; the message names it.
    """
    folder = _find(Path(root))
    train, test = _read_all(folder, _TRAIN), _read_all(folder, _TEST)
    return CIFAR10(*train, *test)


def _find(root: Path) -> Path:
    for folder in (root / FOLDER, root):
        if (folder / _TRAIN[0]).is_file():
            return folder
    if any(folder.is_dir() for folder in (root / "cifar-10-batches-py", root / "cifar-10-batches-mat")):
        raise DataError(f"{root} has the Python or Matlab version of CIFAR-10: get the binary version, {FOLDER}")
    what = f"has no {FOLDER}/{_TRAIN[0]}" if root.is_dir() else "is not a folder"
    raise DataError(f"{root} {what}: name the folder that holds {FOLDER}, the binary version of CIFAR-10")


def _read_all(folder: Path, names: list[str]) -> tuple[Tensor, Tensor]:
    records = torch.cat([_read(folder / name) for name in names])
    return records[:, 1:].reshape(-1, 3, 32, 32).contiguous(), records[:, 0].long()


def _read(path: Path) -> Tensor:
    """The records of a file, (10000, 3073) uint8."""
    if not path.is_file():
        raise DataError(f"{path} is missing: CIFAR-10 has {', '.join(_TRAIN + _TEST)}")
    size = path.stat().st_size
    if size != _RECORDS * _RECORD_BYTES:
        raise DataError(
            f"{path} has {size} bytes instead of {_RECORDS * _RECORD_BYTES}: it is truncated or another file; "
            "get CIFAR-10 again"
        )
    records = torch.from_numpy(np.fromfile(path, dtype=np.uint8)).view(_RECORDS, _RECORD_BYTES)
    if int(records[:, 0].max()) >= len(CLASSES):
        raise DataError(f"{path} has labels above {len(CLASSES) - 1}, so it is not of CIFAR-10: get CIFAR-10 again")
    return records
