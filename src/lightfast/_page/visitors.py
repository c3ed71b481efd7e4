"""Files of visitors: a folder for each, which goes when they go; and what is refused, in sentences."""

from __future__ import annotations

import os
import re
import shutil
import uuid
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr

from lightfast._photographs.photo import Photo, PhotoError
from lightfast._photographs.raw import RawPhoto

__all__ = [
    "MEGABYTES",
    "MEGAPIXELS",
    "PHOTOS",
    "SIDE",
    "checked",
    "forget",
    "fresh",
    "in_sentences",
    "kept",
    "sentence",
    "shown",
    "upright_size",
]

MEGABYTES, MEGAPIXELS, PHOTOS = 200, 100, 200
"""The largest file, the largest picture, and the most photographs at a time."""

SIDE = 1024
"""The longer side of pictures that are shown, in pixels."""


def folder_of(request: gr.Request) -> Path:
    """The visitor's folder, inside of the one that the page serves files from."""
    # Only the server names sessions, but a name from outside must never become a path.
    name = "".join(letter for letter in str(request.session_hash) if letter.isalnum())
    folder = Path(os.environ["GRADIO_TEMP_DIR"], "visitors", name or "nobody")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def forget(request: gr.Request) -> None:
    """Delete all that a visitor brought and got."""
    shutil.rmtree(folder_of(request), ignore_errors=True)


def fresh(request: gr.Request, name: str) -> Path:
    """A path for a new file of the visitor: this name, in a folder of its own."""
    folder = folder_of(request) / uuid.uuid4().hex[:12]
    folder.mkdir()
    return folder / name


def kept(request: gr.Request, upload: str) -> Path:
    """The visitor's own copy of an upload. Who uploads the same bytes gets the same file from gradio, which ages."""
    path = fresh(request, Path(upload).name)
    try:
        os.link(upload, path)
    except OSError:
        shutil.copyfile(upload, path)
    return path


def shown(request: gr.Request, photo: Photo | RawPhoto, name: str) -> str:
    """A file to look at, upright, whose address changes with its content."""
    path = fresh(request, f"{name}.jpg")
    profile = photo.kept.get("icc_profile") if isinstance(photo, Photo) else None
    photo.upright(SIDE).convert("RGB").save(path, quality=92, icc_profile=profile)
    return str(path)


def upright_size(photo: Photo) -> tuple[int, int]:
    """Height and width of a photograph as it is seen."""
    height, width = photo.pixels.shape[:2]
    return (width, height) if photo.orientation >= 5 else (height, width)


def checked(path: Path) -> Path:
    """The path itself; what is too large to be decoded is refused by its header."""
    from PIL import Image

    if path.stat().st_size > MEGABYTES * 10**6:
        raise PhotoError(f"{path.name} has more than {MEGABYTES} megabytes: reduce it first")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                pixels = image.width * image.height
    except Image.DecompressionBombError:
        pixels = MEGAPIXELS * 10**6 + 1
    except Exception:
        # Raw files, HEIC, and what is damaged: its own reader says what there is to say.
        pixels = 0
    if pixels > MEGAPIXELS * 10**6:
        raise PhotoError(f"{path.name} has more than {MEGAPIXELS} megapixels: reduce it first")
    return path


def sentence(error: Exception) -> str:
    """What went wrong, without the folders that files happen to lie in."""
    folder = re.escape(os.environ["GRADIO_TEMP_DIR"])
    return re.sub(rf"{folder}/(visitors/\w+/)?(\w+/)?", "", str(error))


def in_sentences(work: Callable[..., Any]) -> Callable[..., Any]:
    """What a visitor got wrong is shown as a sentence, instead of "Error"."""

    @wraps(work)
    def guarded(*arguments: Any, **named: Any) -> Any:
        try:
            return work(*arguments, **named)
        except (ValueError, OSError, ImportError) as error:
            raise gr.Error(sentence(error), duration=None, print_exception=False) from error

    return guarded
