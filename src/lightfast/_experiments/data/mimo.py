"""Pictures under several lights, with the light of every pixel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lightfast._experiments.data.error import DataError
from lightfast._experiments.data.scene_folder import read_image


class LitPicture(NamedTuple):
    """A picture (3, H, W), linear in light, and the light of every pixel (3, H, W); 0 where it is not known."""

    name: str
    image: Tensor
    light: Tensor

    @property
    def known(self) -> Tensor:
        """Where the light is known, (1, H, W): the pixels that count. In MIMO the others are in the dark."""
        return (self.light > 0).any(0, keepdim=True)


def is_mimo(root: Path) -> bool:
    """Whether a folder holds pictures with the light of every pixel."""
    return next(root.rglob("*_light.png"), None) is not None


def load_mimo(root: str | os.PathLike[str]) -> list[LitPicture]:
    """Read `NAME.png` and `NAME_light.png`, of 16 bits, in a folder and those in it; in order of their paths.

    Raises:
        DataError: there are none, or one is damaged or of another size than its light.
    """
    root = Path(root)
    pictures = []
    for path in sorted(root.rglob("*_light.png")):
        name = path.with_name(f"{path.stem.removesuffix('_light')}.png")
        image, light = (torch.from_numpy(read_image(each)) for each in (name, path))
        if image.shape != light.shape:
            raise DataError(f"{path} has another size than {name.name}")
        pictures.append(LitPicture(name.relative_to(root).with_suffix("").as_posix(), image, light))
    if not pictures:
        raise DataError(f"there are no NAME.png with NAME_light.png in {root}: name the folder that holds MIMO")
    return pictures
