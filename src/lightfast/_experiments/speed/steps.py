"""The two things that are timed: a training step, and inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightfast import fuse
from lightfast._experiments.speed.subjects import Mode, Subject, build, loss_of, sample

PrecisionName = Literal["float32", "bfloat16"]

LAYOUTS = {"channels-last": torch.channels_last, "contiguous": torch.contiguous_format}


def model_of(subject: Subject, variant: str, mode: Mode, layout: str, device: torch.device) -> nn.Module:
    """A variant of a subject, ready for a mode: in its memory format, and fused if it is to be."""
    model: Any = build(subject, variant)
    model = model.to(device, memory_format=LAYOUTS[layout]).train(mode == "training")
    return fuse(model) if variant.startswith("fused") else model


def step_of(
    subject: Subject, precision: PrecisionName, mode: Mode, layout: str, model: nn.Module, network: Any = None
) -> Callable[[], None]:
    """What does a training step of the model, or its inference, each time it is called.

    A step is gradient, forward and backward pass of one batch, and SGD with momentum. In `bfloat16` it is autocast. The
    model is on its device and in that mode; `network`, the compiled model, is called in its place.
    """
    device = next(model.parameters()).device
    images, answers = sample(subject, device)
    images = images.contiguous(memory_format=LAYOUTS[layout])
    network = model if network is None else network

    def autocast() -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False)

    def infer() -> None:
        with torch.no_grad(), autocast():
            network(images)

    return infer if mode == "inference" else _training(model, network, images, answers, loss_of(subject), autocast)


def _training(
    model: nn.Module,
    network: Any,
    images: Tensor,
    answers: Tensor,
    loss: Callable[[Any, Tensor], Tensor],
    autocast: Callable[[], torch.autocast],
) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4, foreach=True)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            value = loss(network(images), answers)
        value.backward()
        optimizer.step()

    return train
