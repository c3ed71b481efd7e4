"""From a name to a model: those in the package, saved ones, and those on the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lightfast._pipelines.pipeline import Pipeline
from lightfast._pipelines.saving import read_model

__all__ = ["load", "pretrained", "pretrained_names"]

_PACKAGED = Path(__file__).with_name("weights")
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def load(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
) -> Pipeline:
    """A trained pipeline of any kind, in evaluation mode and without gradients; its `train()` brings them back.

    A name is looked for in the package (:func:`lightfast.pretrained`), then as a folder or file, then on the Hugging
    Face Hub. A folder that has the name of a packaged model is `./NAME`, or a :class:`pathlib.Path`.

    Args:
        name: of a packaged model; or the folder that `save` or `save_pretrained` wrote, or one of its files where they
            have another name than `model`; or `OWNER/NAME` on the Hub.
        revision: a branch, tag or commit on the Hub; so are the others as `huggingface_hub` has them.
        token: of the user.
        cache_dir: where downloads are kept.
        force_download: load again what was downloaded already.
        local_files_only: only look at what was downloaded already.

    >>> load("illuminant").image_size
    (64, 64)
    """
    if isinstance(name, str) and name in pretrained_names():
        return read_model(_PACKAGED, name, known=True)
    path = Path(name)
    if path.is_dir():
        return read_model(path)
    if path.is_file():
        return read_model(path.parent, path.stem)
    looked = (
        f"{os.fspath(name)!r} is no model: it is not in the package, which has {', '.join(pretrained_names())}; there "
        f"is no folder or file {path.absolute()}; "
    )
    if not isinstance(name, str) or not _HUB_NAME.fullmatch(name):
        raise ValueError(f"{looked}and on the Hugging Face Hub, names are of the form OWNER/NAME")
    try:
        from lightfast._pipelines.hub import download
    except ImportError as error:
        raise ImportError(f"{looked}and {error}") from None
    try:
        folder = download(
            name,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
        )
    except OSError as error:
        raise OSError(f"{looked}and the Hugging Face Hub does not give it: {error}") from error
    return read_model(folder)


def pretrained(name: str) -> Pipeline:
    """A trained pipeline from the weights inside the package, in evaluation mode and without gradients.

    Its `train()` makes it ready for training on: its parameters want gradients again.

    Args:
        name: `illuminant`, a :class:`lightfast.Estimator`; `context-encoder-slim`, a :class:`lightfast.Inpainter`;
            `resnet20-cifar10` or `resnet20-cifar10-original`, a :class:`lightfast.Classifier`.

    >>> pretrained("resnet20-cifar10").classes[3]
    'cat'
    """
    if name not in pretrained_names():
        raise ValueError(f"there is no pretrained model {name!r}; there are: {', '.join(pretrained_names())}")
    return read_model(_PACKAGED, name, known=True)


def pretrained_names() -> list[str]:
    """The names that :func:`pretrained` knows."""
    return sorted(path.stem for path in _PACKAGED.glob("*.safetensors") if path.with_suffix(".json").is_file())
