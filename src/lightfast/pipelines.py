"""Whole models, from image to answer: colour conversion, normalisation and network in one module.

A pipeline is saved as two files: weights (`.safetensors`) and what they belong to (`.json`). Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from torch import Tensor, nn

from lightfast.color import EPSILON, ChannelNorm, linear_to_log, linear_to_srgb, srgb_to_linear
from lightfast.constancy import QuasiUnsupervised, correct, gray_world, shades_of_gray
from lightfast.functional import Scope, center
from lightfast.nn._group_dropout import GroupFill

__all__ = [
    "BALANCES",
    "Balance",
    "Classifier",
    "ColourSpace",
    "Pipeline",
    "Preparation",
    "load_weights",
    "read_pipeline",
    "save_weights",
    "write_whole",
]

ColourSpace = Literal["srgb", "log"]
Balance = Literal["gray-world", "shades-of-gray", "quasi-unsupervised"]


class _Estimate(nn.Module):
    """An estimator without weights, as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, linear_images: Tensor) -> Tensor:
        return self.function(linear_images)


BALANCES: dict[str, Callable[[], nn.Module]] = {
    "gray-world": lambda: _Estimate(gray_world),
    "shades-of-gray": lambda: _Estimate(shades_of_gray),
    "quasi-unsupervised": QuasiUnsupervised,
}
"""Automatic colour balancing, by name: makes an estimator from linear images (N, 3, H, W) to illuminants (N, 3)."""


class Preparation(nn.Module):
    """From sRGB images in [0, 1] to what a network sees; the same shape, (N, 3, H, W).

    `srgb`: an optional automatic colour balance, then the normalisation. `log`: log RGB, the normalisation, and each
    channel less its mean over the image. The network that follows does not see that mean (its scores are invariant, or
    it is wrapped), but without it half precision keeps its digits under any light.

    Args:
        norm: mean and standard deviation, in the colour space.
        colour: `srgb` or `log`.
        balance: an estimator, from :data:`BALANCES`.
        fill: give a channel that the light left dark the pattern of the others; see :class:`lightfast.nn.GroupFill`.
        epsilon: of log RGB.

    >>> import torch
    >>> norm = ChannelNorm([0.5] * 3, [0.25] * 3)
    >>> Preparation(norm)(torch.full((1, 3, 1, 1), 0.75)).flatten()
    tensor([1., 1., 1.])
    """

    def __init__(
        self,
        norm: ChannelNorm,
        colour: ColourSpace = "srgb",
        balance: nn.Module | None = None,
        fill: bool = False,
        epsilon: float = EPSILON,
    ) -> None:
        super().__init__()
        if colour not in ("srgb", "log"):
            raise ValueError(f"a network sees srgb or log colours, not {colour!r}")
        self.norm, self.colour, self.balance, self.epsilon = norm, colour, balance, epsilon
        self.fill = GroupFill(3) if fill else nn.Identity()

    def correct(self, images: Tensor) -> Tensor:
        """The images after automatic colour balance, in [0, 1] again; unchanged if there is none."""
        if self.balance is None:
            return images
        linear = srgb_to_linear(images)
        return linear_to_srgb(correct(linear, self.balance(linear)).clamp(0, 1))

    def encode(self, images: Tensor) -> Tensor:
        """Colour space and normalisation, for images that are balanced already."""
        if self.colour == "srgb":
            return self.norm(images)
        return center(self.fill(self.norm(linear_to_log(srgb_to_linear(images), self.epsilon))), 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.encode(self.correct(images))


class Pipeline(nn.Module, ABC):
    """A module that can be saved with all that is needed to make it again.

    Attributes:
        config: what it is made from; JSON holds it.
    """

    kinds: ClassVar[dict[str, type[Pipeline]]] = {}
    config: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Pipeline.kinds[cls.__name__] = cls

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The pipeline that a configuration describes, with fresh weights."""

    def save(self, folder: str | os.PathLike[str], name: str = "model") -> Path:
        """Write `folder/model.safetensors` and `folder/model.json`; the folder is made if need be, and returned."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        description = {"lightfast": type(self).__name__, **self.config}
        save_weights(self, folder / f"{name}.safetensors")
        write_whole(folder / f"{name}.json", (json.dumps(description, indent=1) + "\n").encode())
        return folder

    @classmethod
    def load(cls, folder: str | os.PathLike[str], name: str = "model") -> Self:
        """Read what :meth:`save` wrote, in evaluation mode."""
        pipeline = read_pipeline(folder, name)
        if not isinstance(pipeline, cls):
            raise ValueError(f"{Path(folder) / name}.json holds a {type(pipeline).__name__}, not a {cls.__name__}")
        return pipeline


class Classifier(Pipeline):
    """Image recognition in one module: sRGB images in [0, 1], (N, 3, H, W), to scores (N, classes).

    Args:
        model: a name that :func:`lightfast.models.create` knows.
        classes: the names of the classes.
        norm: mean and standard deviation of the training images, in the colour space.
        colour: what the network sees: `srgb`, or `log` RGB.
        offset_groups: 3 for an equivariant network, None for a conventional one. A conventional network on log RGB is
            wrapped: it sees each channel less its mean, so no light changes its scores either.
        scope: of the equivariant network's group pooling.
        constrained: whether the equivariant network's weights meet the paper's constraint.
        balance: automatic colour balance before everything else, a name from :data:`BALANCES`.
        fill: on log RGB, give a channel that the light left dark the pattern of the others.
        details: more to keep in `config`, such as how the network was trained.

    Attributes:
        classes: the names of the classes.
        config: what the pipeline is made from.
        prepare: the :class:`Preparation`, from images to the network's input.
        network: the network.

    >>> import torch
    >>> norm = ChannelNorm([2.0] * 3, [1.0] * 3)
    >>> classifier = Classifier("resnet20", ["cat", "dog"], norm, colour="log", offset_groups=3).eval()
    >>> images, light = torch.rand(2, 3, 32, 32) / 2 + 0.5, torch.tensor([1.0, 0.7, 0.4])
    >>> from lightfast.light import relight
    >>> with torch.no_grad():
    ...     torch.allclose(classifier(images), classifier(relight(images, illuminants=light)), atol=1e-4)
    True
    """

    def __init__(
        self,
        model: str,
        classes: Sequence[str],
        norm: ChannelNorm | None = None,
        *,
        colour: ColourSpace = "srgb",
        offset_groups: int | None = None,
        scope: Scope = "image",
        constrained: bool = True,
        balance: Balance | None = None,
        fill: bool = False,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        from lightfast import models

        if len(classes) < 2:
            raise ValueError(f"a classifier needs at least two classes to choose from, not {list(classes)}")
        if balance is not None and balance not in BALANCES:
            raise ValueError(f"there is no colour balance {balance!r}; there are {', '.join(BALANCES)}")
        self.classes = list(classes)
        self.config = {
            "model": model,
            "offset_groups": offset_groups,
            "scope": scope,
            "constrained": constrained,
            "colour": colour,
            "balance": balance,
            "fill": fill,
            "classes": self.classes,
            **(details or {}),
        }
        norm = ChannelNorm([0.0] * 3, [1.0] * 3) if norm is None else norm
        self.prepare = Preparation(norm, colour, None if balance is None else BALANCES[balance](), fill)
        self.network = models.create(
            model, offset_groups=offset_groups, classes=len(self.classes), scope=scope, constrained=constrained
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        needed = ("model", "classes", "colour", "offset_groups", "scope", "balance", "fill")
        missing = [key for key in needed if key not in config]
        if missing:
            raise ValueError(f"it does not say {', '.join(missing)}")
        details = {key: value for key, value in config.items() if key not in (*needed, "constrained")}
        return cls(
            config["model"],
            config["classes"],
            colour=config["colour"],
            offset_groups=config["offset_groups"],
            scope=config["scope"],
            constrained=config.get("constrained", True),
            balance=config["balance"],
            fill=config["fill"],
            details=details,
        )

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise ValueError(
                f"expected sRGB images (N, 3, H, W) in [0, 1], but got {images.dtype} of shape {tuple(images.shape)}"
            )
        return self.network(self.prepare(images))

    def extra_repr(self) -> str:
        return f"{self.config['model']!r}, {len(self.classes)} classes"


def read_pipeline(folder: str | os.PathLike[str], name: str = "model") -> Pipeline:
    """The pipeline in `folder/name.safetensors` and `folder/name.json`, whatever its kind, in evaluation mode."""
    weights, description = Path(folder) / f"{name}.safetensors", Path(folder) / f"{name}.json"
    for path in (description, weights):
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no file {path}: a model is saved as {weights.name} and {description.name}"
            )
    try:
        config = json.loads(description.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{description} is not JSON: {error}") from None
    kind = config.pop("lightfast", None) if isinstance(config, dict) else None
    if not isinstance(kind, str) or kind not in Pipeline.kinds:
        raise ValueError(f"{description} does not describe a model of lightfast ({', '.join(Pipeline.kinds)})")
    try:
        pipeline = Pipeline.kinds[kind].from_config(config)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{description} does not describe a {kind}: {error}") from None
    load_weights(pipeline, weights)
    return pipeline.eval()


def save_weights(module: nn.Module, path: Path) -> None:
    """Write the module's state as safetensors, the whole file or nothing."""
    state = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
    write_whole(path, _safetensors().save(state))


def load_weights(module: nn.Module, path: Path) -> None:
    """Load the state that :func:`save_weights` wrote; a sentence if it is another module's, or no safetensors file."""
    safetensors = _safetensors()
    try:
        state: dict[str, Tensor] = safetensors.load(path.read_bytes())
    except Exception as error:
        raise ValueError(
            f"{path} is not a complete safetensors file ({error}): it was cut short, or is something else"
        ) from None
    wanted = module.state_dict()
    wrong = [f"{key} is missing" for key in wanted.keys() - state.keys()]
    wrong += [f"{key} has no place" for key in state.keys() - wanted.keys()]
    wrong += [
        f"{key} is {tuple(state[key].shape)} instead of {tuple(value.shape)}"
        for key, value in wanted.items()
        if key in state and state[key].shape != value.shape
    ]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(
            f"{path} holds the weights of another network than the one they are for: "
            f"{'; '.join(sorted(wrong)[:3])}{more}"
        )
    module.load_state_dict(state)


def _safetensors() -> Any:
    try:
        from safetensors import torch as safetensors_torch
    except ImportError:
        raise ImportError(
            "saved models are safetensors files, and that package is not installed: pip install lightfast[train]"
        ) from None
    return safetensors_torch


def write_whole(path: Path, content: bytes) -> None:
    """Write all of the file or nothing: a reader never sees half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    os.replace(partial, path)
