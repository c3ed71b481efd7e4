"""Converting the networks of a library, one after another: which convert, how long it takes, and why others do not."""

from __future__ import annotations

import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from lightfast._convert.converter import convert
from lightfast._tracing import quiet
from lightfast.nn._constrained import Constrained

Build = Callable[[], tuple[nn.Module, Tensor]]
"""Makes a network, without pretrained weights, and an example of its input."""


@dataclass(frozen=True)
class Row:
    """One network of a sweep.

    Args:
        name: in its library.
        converts: whether it does.
        seconds: of processor time, whether it converts or not.
        export_seconds: of one `torch.export` of the network in evaluation mode, before; 0 where that fails.
        outputs: the kinds of the responses of its outputs.
        constrained: how many linear layers and convolutions are constrained.
        layers: how many there are.
        reason: why it does not convert.
    """

    name: str
    converts: bool
    seconds: float
    export_seconds: float = 0.0
    outputs: tuple[str, ...] = ()
    constrained: int = 0
    layers: int = 0
    reason: str = ""


def networks(library: str) -> dict[str, Build]:
    """The networks of a library that is installed, by name.

    Raises:
        ValueError: for a library that is not known.
        ImportError: for one that is not installed.
    """
    known = {"timm": _timm, "transformers": _transformers, "monai": _monai}
    if library not in known:
        raise ValueError(f"there is no list of the networks of {library!r}; there are {', '.join(known)}")
    return known[library]()


def sweep(library: str, patterns: list[str], limit: float) -> Iterator[Row]:
    """Convert each network whose name fits one of the patterns, all of them if there are none.

    Args:
        library: `timm`, `transformers` or `monai`.
        patterns: such as `resnet*`. Without any, one network of each family is tried.
        limit: seconds after which a network is given up.
    """
    builds = networks(library)
    if patterns:
        names = [name for name in builds if any(fnmatchcase(name, pattern) for pattern in patterns)]
    else:
        names = _one_per_family(library, list(builds))
    for name in names:
        yield tried(name, builds[name], limit)


def tried(name: str, build: Build, limit: float) -> Row:
    """Convert one network, and say how that went."""
    start, export_seconds = time.process_time(), 0.0
    try:
        with _at_most(limit):
            torch.manual_seed(0)
            with quiet():
                model, example = build()
            start = time.process_time()
            with quiet():
                torch.export.export(model.eval(), (torch.cat([example, example]),))
            export_seconds, start = time.process_time() - start, time.process_time()
            net = convert(model, example)
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        return Row(name, False, round(time.process_time() - start, 2), round(export_seconds, 2), reason=reason)
    seconds = time.process_time() - start
    report: Any = net.conversion
    layers = [m for m in net.modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)]
    kinds = dict.fromkeys(output.response.kind for output in report.certificate.outputs)
    constrained = sum(isinstance(layer, Constrained) for layer in layers)
    return Row(name, True, round(seconds, 2), round(export_seconds, 2), tuple(kinds), constrained, len(layers))


def record(library: str, rows: list[Row]) -> dict[str, Any]:
    """What a sweep found, with date and versions."""
    return {
        "library": library,
        "versions": {name: version(name) for name in (library, "torch")} | {"python": platform.python_version()},
        "date": datetime.now(UTC).date().isoformat(),
        "networks": [asdict(row) for row in rows],
    }


def table(found: dict[str, Any]) -> str:
    """A record as a table in Markdown."""
    rows = found["networks"]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    works = sum(row["converts"] for row in rows)
    lines = [
        f"{works} of {len(rows)} networks convert; {found['date']}, {versions}.",
        "",
        "| network | converts | output | constrained layers | seconds | one export |",
        "|---|---|---|---:|---:|---:|",
    ]
    for row in rows:
        says = "yes" if row["converts"] else f"no: {row['reason']}"
        share = f"{row['constrained']} of {row['layers']}" if row["converts"] else ""
        lines.append(
            f"| {row['name']} | {says} | {', '.join(row['outputs'])} | {share} | {row['seconds']:.1f} | "
            f"{row['export_seconds']:.1f} |"
        )
    return "\n".join(lines) + "\n"


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer; where signals are not to be had, nothing is interrupted."""

    def interrupt(*_: object) -> None:
        raise TimeoutError(f"takes longer than {seconds:g} seconds")

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _timm() -> dict[str, Build]:
    import timm  # pyright: ignore[reportMissingImports]

    def builder(name: str) -> Build:
        def build() -> tuple[nn.Module, Tensor]:
            model = timm.create_model(name, pretrained=False)
            return model, torch.zeros(1, *model.pretrained_cfg.get("input_size", (3, 224, 224)))

        return build

    return {name: builder(name) for name in timm.list_models()}


def _transformers() -> dict[str, Build]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING as MODELS

    def builder(config: Any, model: Any) -> Build:
        def build() -> tuple[nn.Module, Tensor]:
            settings = config()
            if hasattr(settings, "num_hidden_layers"):
                # All layers are alike, and two show whether they convert.
                settings.num_hidden_layers = 2
            size = getattr(settings, "image_size", 224)
            height, width = size if isinstance(size, list | tuple) else (size, size)
            return model(settings), torch.zeros(1, getattr(settings, "num_channels", 3), height, width)

        return build

    found = {}
    for config, models in MODELS.items():
        for model in models if isinstance(models, list | tuple) else [models]:
            if model is not None:
                found[model.__name__] = builder(config, model)
    return found


def _monai() -> dict[str, Build]:
    from monai.networks import nets

    plane: dict[str, Any] = {"spatial_dims": 2, "in_channels": 3}
    settings: dict[str, dict[str, Any]] = {
        "UNet": {**plane, "out_channels": 3, "channels": (8, 16, 32), "strides": (2, 2)},
        "BasicUNet": {**plane, "out_channels": 3},
        "AttentionUnet": {**plane, "out_channels": 3, "channels": (8, 16, 32), "strides": (2, 2)},
        "SegResNet": {**plane, "out_channels": 3},
        "DenseNet121": {**plane, "out_channels": 10},
        "SEResNet50": {**plane, "num_classes": 10},
        "FlexibleUNet": {**plane, "out_channels": 3, "backbone": "efficientnet-b0"},
        "UNETR": {**plane, "out_channels": 3, "img_size": 64},
        "SwinUNETR": {**plane, "out_channels": 3},
        "ViT": {**plane, "img_size": 64, "patch_size": 16, "classification": True},
    }

    def builder(name: str, own: dict[str, Any]) -> Build:
        return lambda: (getattr(nets, name)(**own), torch.zeros(1, 3, 64, 64))

    return {name: builder(name, own) for name, own in settings.items()}


def _one_per_family(library: str, names: list[str]) -> list[str]:
    """Of timm, which has more than a thousand networks, the first of each of its files; of others, all."""
    if library != "timm":
        return names
    import timm  # pyright: ignore[reportMissingImports]

    return [timm.list_models(module=module)[0] for module in timm.list_modules() if timm.list_models(module=module)]
