"""A likely mistake, noticed at the first call: sRGB where log RGB is expected."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from lightfast._backends.tensors import observed

__all__ = ["notice_srgb"]


def notice_srgb(module: nn.Module) -> None:
    """Have a network on log RGB warn if the first images that it gets, (N, 3, H, W), lie in [0, 1] altogether.

    Log RGB of a picture goes up to `log(1 / epsilon)`, about 8.5; one without any value above 1 is nowhere darker than
    37 % of white, which hardly a photograph is. Later calls cost an attribute, and compilers see nothing of this.
    """
    module.register_forward_pre_hook(_look_once)


def _look_once(module: nn.Module, inputs: tuple[object, ...]) -> None:
    if getattr(module, "_has_looked", False) or torch.compiler.is_compiling():
        return
    images = inputs[0] if inputs else None
    if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] != 3 or images.numel() == 0:
        return
    if observed(images) or (images.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    module._has_looked = True  # pyright: ignore[reportArgumentType]
    low, high = (value.item() for value in images.detach().aminmax())
    if 0 <= low < high <= 1:
        warnings.warn(
            "the images lie in [0, 1] altogether, as sRGB does, but this network expects log RGB, where a change of "
            "light is an offset: give it lightfast.color.srgb_to_log(images)",
            stacklevel=4,
        )
