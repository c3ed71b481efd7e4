"""The base of whole models, from image to answer: made from a configuration, saved, loaded and passed on."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from lightfast._pipelines.config import check_config, config_of
from lightfast._pipelines.saving import FORMAT, write_model
from lightfast.light import relight

__all__ = ["Pipeline"]


class Pipeline(nn.Module):
    """A module that can be saved with all that is needed to make it again.

    One that was loaded is in evaluation mode and its parameters want no gradient, until :meth:`train` is called: its
    answers come by the fast path, with or without `torch.no_grad()`.

    Attributes:
        config: the arguments that it was made with, by name; JSON holds them. Modules among them are in the weights.
        about: how it was trained, or whatever else JSON holds; saved beside the configuration, and asked by nothing.
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
    about: dict[str, Any]
    _frozen: Sequence[str] = ()
    """Parameters that want no gradient because they were loaded."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Pipeline.kinds[cls.__name__] = cls

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep what the constructor is called with, which is the configuration."""
        pipeline = super().__new__(cls)
        pipeline.config, pipeline.about = config_of(cls, args, kwargs), {}
        return pipeline

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The pipeline that a configuration describes, with fresh weights; a sentence if it is of another kind."""
        return cls(**check_config(cls, config))

    @classmethod
    def from_description(cls, described: Mapping[str, Any]) -> Self:
        """The pipeline that :meth:`describe` wrote down, with weights that are still to be loaded."""
        return cls(**(check_config(cls, described.get("config", {})) | cls._parts(described)))

    @classmethod
    def _parts(cls, described: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the constructor that are modules, from a description."""
        return {}

    def portable(self) -> Self:
        """The same pipeline as it is saved: of parts that can be made again without anyone's code."""
        return self

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

    def freeze(self) -> Self:
        """Evaluation mode without gradients, until :meth:`train` is called."""
        frozen = [name for name, parameter in self.named_parameters() if parameter.requires_grad]
        self.eval().requires_grad_(False)._frozen = frozen
        return self

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

    def describe(self) -> dict[str, Any]:
        """What is saved beside the weights: the kind of pipeline, the number of the format, `config` and `about`."""
        return {"lightfast": type(self).__name__, "format": FORMAT, "config": self.config, "about": self.about}

    def save(self, folder: str | os.PathLike[str], name: str = "model", *, half: bool = False) -> Path:
        """Write `folder/model.safetensors` and `folder/model.json`; the folder is made if need be, and returned.

        With `half`, weights of layers are stored in 16 bits, which :meth:`load` widens.
        """
        saved = copy.deepcopy(self.portable()) if half else self.portable()
        for parameter in saved.parameters() if half else ():
            if parameter.ndim > 1:
                parameter.data = parameter.data.half()
        write_model(saved, Path(folder), name)
        return Path(folder)

    @classmethod
    def load(cls, name: str | os.PathLike[str], **options: Any) -> Self:
        """:func:`lightfast.load`, for a pipeline of this kind: anything else is refused.

        Args:
            name: of a packaged model, a folder or file, or `OWNER/NAME` on the Hub.
            options: of the Hub, as :func:`lightfast.load` has them.
        """
        from lightfast._pipelines.load import load

        pipeline = load(name, **options)
        if not isinstance(pipeline, cls):
            raise ValueError(
                f"{os.fspath(name)!r} is a model of the kind {type(pipeline).__name__}, not {cls.__name__}"
            )
        return pipeline

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **options: Any) -> Self:
        """:meth:`load`, by the name that it has in other libraries on the Hugging Face Hub."""
        return cls.load(name, **options)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Write the files that :meth:`push_to_hub` uploads: weights, `config.json`, and a page about them, `README.md`.

        The folder is made if need be, and returned. A page that is there already is left as it is.
        """
        from lightfast._pipelines.hub import HubModel

        HubModel(self.portable()).save_pretrained(Path(folder))
        return Path(folder)

    def push_to_hub(self, name: str, **options: Any) -> str:
        """Upload to `OWNER/NAME` on the Hugging Face Hub, which is made if need be, and return the commit's address.

        Args:
            name: `OWNER/NAME`.
            options: those of `push_to_hub` in `huggingface_hub`: `private`, `token`, `branch`, `commit_message`.
        """
        from lightfast._pipelines.hub import HubModel

        return HubModel(self.portable()).push_to_hub(name, **options)
