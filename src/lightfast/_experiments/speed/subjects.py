"""What is measured: networks, each in several ways of computing it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightfast import models
from lightfast.models._resnet import CifarResNet, ImageNetResNet
from lightfast.models._vocabulary import ConventionalVocabulary, LiftedVocabulary

Mode = Literal["training", "inference"]

VARIANTS: dict[str, str] = {
    "plain": "the conventional network",
    "same-widths": "the conventional network with as many features as the equivariant one",
    "straightforward": "the equivariant network, each formula its own operation",
    "ours": "the equivariant network",
    "fused": "the equivariant network after lf.fuse",
    "plain-compiled": "the conventional network under torch.compile",
    "ours-compiled": "the equivariant network under torch.compile",
    "fused-compiled": "the equivariant network after lf.fuse under torch.compile",
}
"""What the variants are, by name."""

COMPILED = tuple(name for name in VARIANTS if name.endswith("-compiled"))

_OTHER_WIDTHS: dict[str, dict[str, Any]] = {
    "cerberus": {"channels": (15, 33, 63, 129), "hidden": 399},
    "context-encoder": {"base": 63, "bottleneck": 3999},
}


@dataclass(frozen=True)
class Subject:
    """A network, by its name in :func:`lightfast.models.names`, on batches of images of this height and width."""

    network: str
    batch: int
    size: int

    @property
    def title(self) -> str:
        """What tables show."""
        return f"{self.network}, {self.batch} x {self.size} px"

    @property
    def modes(self) -> tuple[Mode, ...]:
        """What is measured. A single image is what an application has: it infers, and nobody trains with it."""
        return ("inference",) if self.batch == 1 else ("training", "inference")


SUBJECTS: dict[str, tuple[Subject, ...]] = {
    "cuda": (
        Subject("resnet20", 128, 32),
        Subject("resnet20", 1, 32),
        Subject("resnet50", 64, 224),
        Subject("resnet50", 1, 224),
        Subject("resnet20", 1024, 32),
        Subject("cerberus", 128, 64),
        Subject("cerberus", 1, 64),
        Subject("context-encoder", 64, 128),
        Subject("context-encoder", 1, 128),
    ),
    "cpu": (
        Subject("resnet20", 128, 32),
        Subject("resnet20", 64, 32),
        Subject("resnet20", 1, 32),
        Subject("resnet50", 4, 224),
        Subject("resnet50", 1, 224),
        Subject("cerberus", 64, 64),
        Subject("cerberus", 1, 64),
        Subject("context-encoder", 8, 128),
        Subject("context-encoder", 1, 128),
    ),
}
"""What is measured on a kind of device, the most telling first."""

LARGE: dict[str, tuple[Subject, ...]] = {"cuda": (), "cpu": (Subject("resnet20", 1024, 32),)}
"""What takes as long as many others: measured after all of them, and only where no network was named."""


def parse_subject(text: str, device: str) -> list[Subject]:
    """What users type: NAME, for all of its batches in :data:`SUBJECTS`, or NAME:BATCH.

    >>> parse_subject("resnet20:16", "cpu")
    [Subject(network='resnet20', batch=16, size=32)]
    """
    name, _, batch = text.partition(":")
    known = [subject for subject in SUBJECTS[device] if subject.network == name]
    if not known or (batch and not batch.isdigit()):
        every = dict.fromkeys(subject.network for subject in SUBJECTS[device])
        raise ValueError(
            f"{text!r} is not NETWORK or NETWORK:BATCH, such as resnet20:128; networks: {', '.join(every)}"
        )
    return [Subject(name, int(batch), known[0].size)] if batch else known


class _SameWidths(ConventionalVocabulary):
    """The conventional vocabulary with the widths of the equivariant one."""

    def width(self, features: int) -> int:
        return LiftedVocabulary(3).width(features)


def build(subject: Subject, variant: str) -> nn.Module:
    """A network with the same random weights each time; those of all equivariant variants are equal.

    Raises:
        LookupError: there is no such variant of this network, for the reason that the message gives.
    """
    if subject.network not in models.names():
        raise LookupError(f"this version has no network {subject.network}")
    torch.manual_seed(0)
    if variant in ("plain", "plain-compiled"):
        return models.create(subject.network, None)
    if variant == "same-widths":
        return _same_widths(subject.network)
    ours = models.create(subject.network, 3)
    if variant != "straightforward":
        return ours
    module = _straightforward()
    if subject.network not in module.names():
        raise LookupError(f"benchmarks/straightforward.py has no {subject.network}")
    network = module.create(subject.network)
    module.share_weights(network, ours)
    return network


def _same_widths(network: str) -> nn.Module:
    if network == "resnet20":
        return CifarResNet(_SameWidths(), 20)
    if network == "resnet50":
        return ImageNetResNet(_SameWidths(), network)
    if network in _OTHER_WIDTHS:
        return models.create(network, None, **_OTHER_WIDTHS[network])
    raise LookupError(f"there is no {network} of other widths here")


@cache
def _straightforward() -> ModuleType:
    """`benchmarks/straightforward.py` of the checkout that this package is in: no part of an installed one."""
    path = Path(__file__).parents[4] / "benchmarks" / "straightforward.py"
    if not path.is_file():
        raise LookupError("benchmarks/straightforward.py is in the repository alone: run the benchmark from a checkout")
    spec = importlib.util.spec_from_file_location("lightfast_straightforward", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def sample(subject: Subject, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random images, and random answers to learn."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(subject.batch, 3, subject.size, subject.size, generator=generator)
    if subject.network == "context-encoder":
        half = subject.size // 2
        answers = torch.rand(subject.batch, 3, half, half, generator=generator)
    elif subject.network.startswith("resnet"):
        answers = torch.randint(0, 10, (subject.batch,), generator=generator)
    else:
        answers = torch.rand(subject.batch, 3, generator=generator)
    return images.to(device), answers.to(device)


def loss_of(subject: Subject) -> Callable[[Any, Tensor], Tensor]:
    """Cross entropy for classifiers, mean squared error for the others."""
    if subject.network.startswith("resnet"):
        return lambda scores, labels: F.cross_entropy(scores.float(), labels)
    return lambda found, wanted: F.mse_loss(found.float(), wanted)
