"""The tab *Fill*: paint over what should go."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from lightfast._page.visitors import SIDE, checked, fresh, in_sentences, kept, shown, upright_size
from lightfast._photographs.files import read_photo, suffix_for
from lightfast._photographs.fill import DEFAULT_INPAINTER, Filled, fill
from lightfast._photographs.photo import Photo, PhotoError
from lightfast._pipelines.inpainter import Inpainter

__all__ = ["fill_tab", "missing_of"]


@cache
def inpainter() -> Inpainter:
    """The one in the package."""
    return Inpainter.load(DEFAULT_INPAINTER)


def missing_of(painted: dict[str, Any] | None, rectangles: str, size: tuple[int, int]) -> np.ndarray:
    """Which pixels of a photograph (H, W), as it is seen, are to be filled in.

    Args:
        painted: what gradio's editor says; whatever is painted, in any color, is missing.
        rectangles: x,y,width,height in pixels, one a line.
        size: height and width.
    """
    from PIL import Image

    from lightfast._photographs.fill import missing_pixels, parse_box

    missing = np.zeros(size, dtype=bool)
    for layer in (painted or {}).get("layers") or ():
        mask = Image.fromarray(np.asarray(layer)[..., 3]).resize((size[1], size[0]), Image.Resampling.BILINEAR)
        missing |= np.asarray(mask) > 127
    boxes = [parse_box(line) for line in rectangles.splitlines() if line.strip()]
    if boxes:
        missing |= missing_pixels(size, boxes)
    if not missing.any():
        raise ValueError("nothing is painted over: draw on the picture what should go, or name a rectangle")
    return missing_pixels(size, missing)


@in_sentences
def _opened(upload: str | None, request: gr.Request) -> tuple[Any, ...]:
    if upload is None:
        raise ValueError("nothing was uploaded: choose a photograph")
    path = checked(kept(request, upload))
    photo = _read(path)
    height, width = upright_size(photo)
    said = f"{path.name}, {width} x {height} pixels. Paint over what should go, then press Fill."
    canvas = {"background": photo.upright(SIDE).convert("RGB"), "layers": [], "composite": None}
    hidden = {"value": None, "visible": False}
    return path, canvas, said, gr.ImageSlider(**hidden), gr.File(**hidden), None


def _read(path: Path) -> Photo:
    photo = read_photo(path)
    if not isinstance(photo, Photo):
        raise PhotoError(f"{path.name} is a camera raw file: develop it first, and fill the holes of what comes out")
    return photo


@in_sentences
def _filled(
    path: Path | None, painted: dict[str, Any] | None, rectangles: str, request: gr.Request, progress: Any
) -> tuple[Any, ...]:
    if path is None:
        raise ValueError("there is no photograph yet: choose one first")
    photo = _read(path)
    missing = missing_of(painted, rectangles or "", upright_size(photo))
    done: Filled = fill(photo, missing, inpainter(), progress=lambda part: progress(part, desc="Filling"))
    target = fresh(request, f"{path.stem}-filled{suffix_for(photo.kind, path)}")
    done.picture.save(target)
    pair = (shown(request, photo, "before"), shown(request, done.picture, "after"))
    holes = f"{len(done.holes)} {'hole' if len(done.holes) == 1 else 'holes'} filled"
    again = "A JPEG file is compressed again, with the quality it had." if photo.kind == "JPEG" else ""
    said = f"{holes}. All other pixels are as they were. {again}"
    return gr.ImageSlider(value=pair, visible=True), said, gr.File(value=str(target), visible=True)


def fill_tab() -> None:
    """Build the tab."""
    path = gr.State(None)
    upload = gr.File(label="A photograph", height=130, elem_id="fill-upload")
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            editor = gr.ImageEditor(
                type="numpy",
                image_mode="RGBA",
                sources=(),
                transforms=(),
                layers=False,
                brush=gr.Brush(default_size=24, colors=["#ff2d2d"], color_mode="fixed"),
                label="Paint over what should go",
                elem_id="painting",
                height=520,
            )
        with gr.Column(min_width=280):
            with gr.Accordion("Rectangles instead of painting", open=False):
                boxes = gr.Textbox(
                    label="x,y,width,height in pixels, one a line", lines=2, placeholder="120,80,64,64", elem_id="boxes"
                )
            go = gr.Button("Fill", variant="primary", elem_id="fill")
            status = gr.Markdown("Choose a photograph first.", elem_id="fill-status", elem_classes="status")
            download = gr.File(label="Download", interactive=False, visible=False, elem_id="fill-download")
    compared = gr.ImageSlider(
        label="Before and after",
        interactive=False,
        visible=False,
        elem_id="fill-compared",
        max_height=560,
        buttons=["fullscreen"],
    )
    shows = [path, editor, status, compared, download, upload]
    upload.upload(_opened, upload, shows, api_visibility="private")

    # Gradio finds a progress bar by the default of an argument.
    def work(path: Any, painted: Any, boxes: str, request: gr.Request, progress: Any = gr.Progress()) -> Any:  # noqa: B008
        return _filled(path, painted, boxes, request, progress)

    go.click(work, [path, editor, boxes], [compared, status, download], api_visibility="private")
