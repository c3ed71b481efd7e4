"""Whole models, from image to answer: color conversion, normalization and network in one module.

A pipeline is saved as two files: weights (`.safetensors`) and what they belong to (`.json`). Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from lightfast._atomic import write_json
from lightfast._pipelines.saving import FORMAT, load_weights, save_weights
from lightfast.color import EPSILON, ChannelNorm, linear_to_log, linear_to_srgb, srgb_to_linear
from lightfast.constancy import QuasiUnsupervised, correct, gray_world, shades_of_gray
from lightfast.fields import FieldSpec, check_field, remove_field
from lightfast.functional import Scope
from lightfast.light import relight
from lightfast.nn._group_dropout import GroupFill

__all__ = [
    "BALANCES",
    "Balance",
    "Classifier",
    "ColorSpace",
    "Pipeline",
    "Preparation",
    "load_weights",
    "read_pipeline",
    "save_weights",
]

ColorSpace = Literal["srgb", "log"]
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
"""Automatic color balancing, by name: makes an estimator from linear images (N, 3, H, W) to illuminants (N, 3)."""


class Preparation(nn.Module):
    """From sRGB images in [0, 1] to what a network sees; the same shape, (N, 3, H, W).

    `srgb`: an optional automatic color balance, then the normalization. `log`: log RGB, the normalization, and each
    channel less its mean over the image. The network that follows does not see that mean (its scores are invariant, or
    it is wrapped), but without it half precision keeps its digits under any light. With a `field`, each channel is
    without its projection onto a plane, a quadratic or another field, which the network then cannot see.

    Args:
        norm: mean and standard deviation, in the color space.
        color: `srgb` or `log`.
        balance: an estimator, from :data:`BALANCES`.
        fill: give a channel that the light left dark the pattern of the others; see :class:`lightfast.nn.GroupFill`.
        epsilon: of log RGB.
        field: light that is taken away from log RGB: 0, 1, 2 or a basis; see :mod:`lightfast.fields`.

    >>> import torch
    >>> norm = ChannelNorm([0.5] * 3, [0.25] * 3)
    >>> Preparation(norm)(torch.full((1, 3, 1, 1), 0.75)).flatten()
    tensor([1., 1., 1.])
    """

    def __init__(
        self,
        norm: ChannelNorm,
        color: ColorSpace = "srgb",
        balance: nn.Module | None = None,
        fill: bool = False,
        epsilon: float = EPSILON,
        field: FieldSpec = 0,
    ) -> None:
        super().__init__()
        if color not in ("srgb", "log"):
            raise ValueError(f"a network sees srgb or log colors, not {color!r}")
        if color == "srgb" and field != 0:
            raise ValueError("a field of light is taken away from log RGB, not from sRGB: use color='log'")
        self.norm, self.color, self.balance, self.epsilon = norm, color, balance, epsilon
        self.field = check_field(field)
        self.fill = GroupFill(3) if fill else nn.Identity()

    def correct(self, images: Tensor) -> Tensor:
        """The images after automatic color balance, in [0, 1] again; unchanged if there is none."""
        if self.balance is None:
            return images
        linear = srgb_to_linear(images)
        return linear_to_srgb(correct(linear, self.balance(linear)).clamp(0, 1))

    def encode(self, images: Tensor) -> Tensor:
        """Color space and normalization, for images that are balanced already."""
        if self.color == "srgb":
            return self.norm(images)
        x = self.fill(self.norm(linear_to_log(srgb_to_linear(images), self.epsilon)))
        return remove_field(x, 3, self.field)[0]

    def forward(self, images: Tensor) -> Tensor:
        return self.encode(self.correct(images))


class Pipeline(nn.Module, ABC):
    """A module that can be saved with all that is needed to make it again.

    One that was loaded is in evaluation mode and its parameters want no gradient, until :meth:`train` is called: its
    answers come by the fast path, with or without `torch.no_grad()`.

    Attributes:
        config: what it is made from; JSON holds it.
        input_names: of what it is called with, for files that it is exported to.
        output_name: of its answer, likewise.
        hub_task: what the Hugging Face Hub calls what it does.
        dynamic_size: whether it takes images of any height and width.
    """

    kinds: ClassVar[dict[str, type[Pipeline]]] = {}
    input_names: ClassVar[tuple[str, ...]] = ("images",)
    output_name: ClassVar[str] = "answer"
    hub_task: ClassVar[str] = "image-feature-extraction"
    dynamic_size: ClassVar[bool] = False
    config: dict[str, Any]
    _frozen: Sequence[str] = ()
    """Parameters that want no gradient because they were loaded."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Pipeline.kinds[cls.__name__] = cls

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The pipeline that a configuration describes, with fresh weights."""

    def train(self, mode: bool = True) -> Self:
        """Torch's; and when training begins, what loading froze wants gradients again."""
        if mode:
            frozen, self._frozen = set(self._frozen), ()
            for name, parameter in self.named_parameters() if frozen else ():
                parameter.requires_grad_(parameter.requires_grad or name in frozen)
        return super().train(mode)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Torch's; :meth:`train` leaves it at that."""
        self._frozen = ()
        return super().requires_grad_(requires_grad)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the images that it is for, where `config` says so."""
        size = self.config.get("size")
        return None if size is None else (size, size)

    def example_inputs(
        self, batch: int, size: tuple[int, int], saturation: float = 0.0, seed: int = 0
    ) -> tuple[Tensor, ...]:
        """Random inputs, one for each of `input_names`: here, sRGB images in [0, 1].

        Args:
            batch: how many images.
            size: their height and width.
            saturation: of the random light that falls on each of them.
            seed: the images, and the hues of their lights, depend on nothing else.
        """
        generator = torch.Generator().manual_seed(seed)
        images = torch.rand(batch, 3, *size, generator=generator)
        return (relight(images, saturation, generator=generator),)

    def save(self, folder: str | os.PathLike[str], name: str = "model") -> Path:
        """Write `folder/model.safetensors` and `folder/model.json`; the folder is made if need be, and returned."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(self, folder / f"{name}.safetensors")
        write_json(folder / f"{name}.json", self.description())
        return folder

    def description(self) -> dict[str, Any]:
        """What is saved beside the weights: `config`, the kind of pipeline, and the number of this format."""
        return {"lightfast": type(self).__name__, "format": FORMAT, **self.config}

    @classmethod
    def load(cls, folder: str | os.PathLike[str], name: str = "model") -> Self:
        """Read what :meth:`save` wrote, in evaluation mode and without gradients until :meth:`train` is called."""
        return cls._of_this_kind(read_pipeline(folder, name), str(Path(folder, name)))

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
    ) -> Self:
        """Read a saved pipeline from a folder, or from the Hugging Face Hub, as :meth:`load` does.

        Args:
            name: the folder that :meth:`save` or :meth:`save_pretrained` wrote, for which no network is needed; or
                `OWNER/NAME` on the Hub.
            revision: a branch, tag or commit on the Hub; so are the others as `huggingface_hub` has them.
            token: of the user.
            cache_dir: where downloads are kept.
            force_download: load again what was downloaded already.
            local_files_only: only look at what was downloaded already.
        """
        if Path(name).is_dir():
            return cls.load(name)
        from lightfast._pipelines.hub import load_from_hub

        pipeline = load_from_hub(
            str(name),
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
        )
        return cls._of_this_kind(pipeline, str(name))

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Write the files that :meth:`push_to_hub` uploads: weights, `config.json`, and a page about them, `README.md`.

        The folder is made if need be, and returned. A page that is there already is left as it is.
        """
        from lightfast._pipelines.hub import HubModel

        HubModel(self).save_pretrained(Path(folder))
        return Path(folder)

    def push_to_hub(self, name: str, **options: Any) -> str:
        """Upload to `OWNER/NAME` on the Hugging Face Hub, which is made if need be, and return the commit's address.

        Args:
            name: `OWNER/NAME`.
            options: those of `push_to_hub` in `huggingface_hub`: `private`, `token`, `branch`, `commit_message`.
        """
        from lightfast._pipelines.hub import HubModel

        return HubModel(self).push_to_hub(name, **options)

    @classmethod
    def _of_this_kind(cls, pipeline: Pipeline, where: str) -> Self:
        if not isinstance(pipeline, cls):
            raise ValueError(f"{where} holds a {type(pipeline).__name__}, not a {cls.__name__}")
        return pipeline


class Classifier(Pipeline):
    """Image recognition in one module: sRGB images in [0, 1], (N, 3, H, W), to scores (N, classes).

    Args:
        model: a name that :func:`lightfast.models.create` knows.
        classes: the names of the classes.
        norm: mean and standard deviation of the training images, in the color space.
        color: what the network sees: `srgb`, or `log` RGB.
        offset_groups: 3 for an equivariant network, None for a conventional one. A conventional network on log RGB is
            wrapped: it sees each channel less its mean, so no light changes its scores either.
        scope: of the equivariant network's group pooling.
        constrained: whether the equivariant network's weights meet the paper's constraint.
        balance: automatic color balance before everything else, a name from :data:`BALANCES`.
        fill: on log RGB, give a channel that the light left dark the pattern of the others.
        field: on log RGB, light whose logarithm varies over the image as a plane (1) or a quadratic (2) changes no
            score either; 0 for light that is the same everywhere.
        details: more to keep in `config`, such as how the network was trained.

    Attributes:
        classes: the names of the classes.
        config: what the pipeline is made from.
        prepare: the :class:`Preparation`, from images to the network's input.
        network: the network.

    >>> import torch
    >>> norm = ChannelNorm([2.0] * 3, [1.0] * 3)
    >>> classifier = Classifier("resnet20", ["cat", "dog"], norm, color="log", offset_groups=3).eval()
    >>> images, light = torch.rand(2, 3, 32, 32) / 2 + 0.5, torch.tensor([1.0, 0.7, 0.4])
    >>> from lightfast.light import relight
    >>> with torch.no_grad():
    ...     torch.allclose(classifier(images), classifier(relight(images, illuminants=light)), atol=1e-4)
    True
    """

    output_name = "scores"
    hub_task = "image-classification"

    def __init__(
        self,
        model: str,
        classes: Sequence[str],
        norm: ChannelNorm | None = None,
        *,
        color: ColorSpace = "srgb",
        offset_groups: int | None = None,
        scope: Scope = "image",
        constrained: bool = True,
        balance: Balance | None = None,
        fill: bool = False,
        field: int = 0,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        from lightfast import models

        if len(classes) < 2:
            raise ValueError(f"a classifier needs at least two classes to choose from, not {list(classes)}")
        if balance is not None and balance not in BALANCES:
            raise ValueError(f"there is no color balance {balance!r}; there are {', '.join(BALANCES)}")
        self.classes = list(classes)
        self.config = {
            "model": model,
            "offset_groups": offset_groups,
            "scope": scope,
            "constrained": constrained,
            "color": color,
            "balance": balance,
            "fill": fill,
            "field": field,
            "classes": self.classes,
            **(details or {}),
        }
        norm = ChannelNorm([0.0] * 3, [1.0] * 3) if norm is None else norm
        self.prepare = Preparation(norm, color, None if balance is None else BALANCES[balance](), fill, field=field)
        self.network = models.create(
            model, offset_groups=offset_groups, classes=len(self.classes), scope=scope, constrained=constrained
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        needed = ("model", "classes", "color", "offset_groups", "scope", "balance", "fill")
        missing = [key for key in needed if key not in config]
        if missing:
            raise ValueError(f"it does not say {', '.join(missing)}")
        details = {key: value for key, value in config.items() if key not in (*needed, "constrained", "field")}
        return cls(
            config["model"],
            config["classes"],
            color=config["color"],
            offset_groups=config["offset_groups"],
            scope=config["scope"],
            constrained=config.get("constrained", True),
            balance=config["balance"],
            fill=config["fill"],
            field=config.get("field", 0),
            details=details,
        )

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise ValueError(
                f"expected sRGB images (N, 3, H, W) in [0, 1], but got {images.dtype} of shape {tuple(images.shape)}"
            )
        # A network in low precision gets what was prepared, and centered, in the precision of the images.
        return self.network(self.prepare(images).to(next(self.network.parameters()).dtype))

    def extra_repr(self) -> str:
        return f"{self.config['model']!r}, {len(self.classes)} classes"


def read_pipeline(folder: str | os.PathLike[str], name: str = "model") -> Pipeline:
    """The pipeline in `folder/name.safetensors` and `folder/name.json`, whatever its kind, as `load` gives it."""
    weights, description = Path(folder) / f"{name}.safetensors", Path(folder) / f"{name}.json"
    if not description.is_file() and Path(folder, "config.json").is_file():
        # As the Hub has it.
        description = Path(folder, "config.json")
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
    written = config.pop("format", FORMAT)
    if written != FORMAT:
        raise ValueError(
            f"{description} is in format {written!r}, but this version of lightfast reads format {FORMAT}: it was "
            "written by another version, which the model needs"
        )
    try:
        pipeline = Pipeline.kinds[kind].from_config(config)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{description} does not describe a {kind}: {error}") from None
    load_weights(pipeline, weights)
    frozen = [name for name, parameter in pipeline.named_parameters() if parameter.requires_grad]
    pipeline.eval().requires_grad_(False)._frozen = frozen
    return pipeline
