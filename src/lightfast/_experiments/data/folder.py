"""Folders of images with one sub-folder a class: all decoded at once where they fit in memory, lazily otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightfast._experiments.data.error import DataError
from lightfast._photographs.decode import Box, image_size, load_image, read_square
from lightfast._photographs.photo import PhotoError

Split = Literal["train", "val"]

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}
_MEMORY = 8 << 30
_SPLIT_NAMES: dict[Split, tuple[str, ...]] = {"train": ("train",), "val": ("val", "valid", "validation", "test")}


@dataclass(frozen=True)
class ImageFolder:
    """Images and their classes.

    Args:
        images: (N, 3, S, S) uint8 sRGB where they fit in memory, else :class:`LazyImages`, with the same length and
            items.
        labels: (N,) int64, the number of the class.
        classes: names of the classes, which are those of the sub-folders, sorted.
    """

    images: Tensor | LazyImages
    labels: Tensor
    classes: tuple[str, ...]


class LazyImages(Dataset[Tensor]):
    """Images decoded when they are asked for. Item `i` is image `i`, (3, S, S) uint8: scaled, its middle cut out."""

    def __init__(self, paths: Sequence[Path], size: int) -> None:
        self.paths, self.size = list(paths), size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return load_image(self.paths[index], self.size)

    def random_crop(self, index: int, seed: int, scale: tuple[float, float] = (0.08, 1.0)) -> Tensor:
        """A random part of the original of image `index`, resized to (3, S, S); the same for the same seed.

        It has this share of the image's area, from the smallest to the largest, and is up to 4/3 as wide as high, or as
        high as wide.
        """
        area, shape, across, down = torch.rand(4, generator=torch.Generator().manual_seed(seed)).tolist()
        share, aspect = scale[0] + (scale[1] - scale[0]) * area, 3 / 4 * (16 / 9) ** shape

        def choose(width: int, height: int) -> Box:
            pixels = share * width * height
            wide, tall = min(round((pixels * aspect) ** 0.5), width), min(round((pixels / aspect) ** 0.5), height)
            left, top = int(across * (width - wide + 1)), int(down * (height - tall + 1))
            return left, top, left + wide, top + tall

        return read_square(self.paths[index], self.size, choose)

    def stream(
        self,
        batches: Iterable[tuple[Tensor, int | None]],
        *,
        device: torch.device | str = "cpu",
        workers: int | None = None,
        scale: tuple[float, float] = (0.08, 1.0),
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of images (B, 3, S, S) uint8 and their indices (B,) on the device, read ahead by worker processes.

        Args:
            batches: for each, indices (B,) and the seed of random crops, or None for the middle of each image. The
                draws of the engine are such.
            device: where the images are wanted.
            workers: how many processes decode; by default one per core, up to 16, shared with the other processes that
                train on this machine. With 0 this process does.
            scale: of :meth:`random_crop`.

        Raises:
            DataError: an image cannot be decoded; the message names it.
        """
        if workers is None:
            workers = min(max((os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1), 16)
        on_gpu = torch.device(device).type == "cuda"
        loader = DataLoader(
            _Batches(self, scale),
            sampler=((indices.tolist(), seed) for indices, seed in batches),  # pyright: ignore[reportArgumentType]
            batch_size=None,
            num_workers=workers,
            pin_memory=on_gpu,
            # The loader seeds its workers from this, and would else draw from torch's own.
            generator=torch.Generator(),
        )
        for batch in loader:
            if isinstance(batch, str):
                raise DataError(batch)
            images, indices = batch
            yield images.to(device, non_blocking=on_gpu), indices.to(device, non_blocking=on_gpu)


class _Batches(Dataset[tuple[Tensor, Tensor] | str]):
    """Whole batches of images and indices by (indices, seed); one that cannot be read is the sentence that says so."""

    def __init__(self, images: LazyImages, scale: tuple[float, float]) -> None:
        self.images, self.scale = images, scale

    def __getitem__(self, request: tuple[list[int], int | None]) -> tuple[Tensor, Tensor] | str:
        indices, seed = request
        try:
            if seed is None:
                images = [self.images[index] for index in indices]
            else:
                # Image k of a batch has seed + k: neighbors differ, and batches' seeds are far from each other.
                images = [self.images.random_crop(i, (seed + k) % (1 << 63), self.scale) for k, i in enumerate(indices)]
        except PhotoError as error:
            return str(error)
        return torch.stack(images), torch.tensor(indices)


def load_folder(
    root: str | Path, size: int | None = None, *, split: Split = "train", memory: int = _MEMORY
) -> ImageFolder:
    """Read `root/CLASS/*.jpg` (and other kinds of images), or `root/train/CLASS` and `root/val/CLASS`.

    Args:
        root: the folder. Where it is divided, classes are those of `train`, and both parts must have them all.
        size: S, to which the shorter side is scaled before the middle is cut out; None to take the images as they are,
            which then must be squares of one size.
        split: which part, where the folder is divided. One that is not divided is all `train`.
        memory: images that would take more bytes than this are decoded lazily.

    Raises:
        DataError: the folder is missing or laid out otherwise, a class has no images, an image cannot be decoded; the
            message names the file or folder.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: name one that has a sub-folder of images for each class")
    folder, train = _split_folder(root, split), _split_folder(root, "train")
    classes = _class_names(train)
    if folder != train and _class_names(folder) != classes:
        differing = min(set(classes) ^ set(_class_names(folder)))
        lacking, having = (folder, train) if differing in classes else (train, folder)
        raise DataError(f"{lacking} has no class folder {differing}, but {having} has: both need the same classes")
    by_class = [images_in(folder / name, "class folder") for name in classes]
    paths = [path for images in by_class for path in images]
    labels = torch.tensor([label for label, images in enumerate(by_class) for _ in images])
    if size is None:
        size = _common_size(paths)
    lazy = LazyImages(paths, size)
    images = decode_all(lazy) if len(paths) * 3 * size * size <= memory else lazy
    return ImageFolder(images, labels, classes)


def _split_folder(root: Path, split: Split) -> Path:
    if not (root / "train").is_dir():
        if split == "val":
            raise DataError(f"{root} has no folders train and val: it is all training images")
        return root
    for name in _SPLIT_NAMES[split]:
        if (root / name).is_dir():
            return root / name
    raise DataError(f"{root} has a folder train, but no val: put the images to test on into {root / 'val'}")


def _class_names(folder: Path) -> tuple[str, ...]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith((".", "_")))
    if len(names) < 2:
        raise DataError(
            f"{folder} has {len(names)} class folders, and at least 2 are needed: put the images of each class into a "
            f"folder of its own, as {folder / 'CLASS' / 'image.jpg'}"
        )
    return tuple(names)


def images_in(folder: Path, kind: str = "folder") -> list[Path]:
    """The image files in a folder and the folders in it, sorted by path; `kind` is what an error calls it."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)
    if not paths:
        raise DataError(f"the {kind} {folder} has no images ({', '.join(sorted(_SUFFIXES))})")
    return paths


def _common_size(paths: Sequence[Path]) -> int:
    """The side of images that are squares of one size."""
    first = image_size(paths[0])
    for path in paths:
        width, height = image_size(path)
        if (width, height) != first or width != height:
            raise DataError(
                f"{path} has {width} x {height} pixels, but all pictures are to be squares of one size: "
                "say to which they are to be scaled, as --size 64 does"
            )
    return first[0]


def decode_all(images: LazyImages) -> Tensor:
    """All images, (N, 3, S, S). Threads suffice: decoders let others run meanwhile."""
    decoded = torch.empty(len(images), 3, images.size, images.size, dtype=torch.uint8)

    def decode(index: int) -> None:
        decoded[index] = images[index]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(decode, range(len(images))):
            pass
    return decoded
