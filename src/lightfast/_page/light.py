"""The tab *Under any light*: two networks on one picture, while the light changes."""

from __future__ import annotations

import base64
import io
import math
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr
import torch
from PIL import Image
from torch import Tensor

from lightfast._page.visitors import checked, in_sentences, kept
from lightfast._photographs.decode import load_image
from lightfast._pipelines.classifier import Classifier
from lightfast.color import hsv_to_rgb
from lightfast.light import gradient_light, relight

__all__ = ["Seen", "answers", "light_tab", "lit"]

CONVENTIONAL, EQUIVARIANT = "resnet20-cifar10-original", "resnet20-cifar10"
_CAT = Path(__file__).with_name("cat.jpg")
# Of the picture on the page, in pixels.
_SIDE = 288


@dataclass(frozen=True)
class Seen:
    """A square picture, sRGB in [0, 1].

    Attributes:
        large: as it is shown (1, 3, S, S).
        small: as networks see it (1, 3, 32, 32).
        in_white: what each of the two takes it for in white light.
    """

    large: Tensor
    small: Tensor
    in_white: tuple[str, str]


@cache
def networks() -> tuple[Classifier, Classifier]:
    """The conventional and the equivariant one, from the package."""
    return Classifier.load(CONVENTIONAL), Classifier.load(EQUIVARIANT)


def read(path: Path) -> Seen:
    """The middle of a picture file."""
    size = networks()[1].config["size"]
    large, small = (load_image(path, side)[None].float() / 255 for side in (_SIDE, size))
    conventional, equivariant = answers(small)
    return Seen(large, small, (_best(conventional), _best(equivariant)))


def lit(picture: Tensor, hue: float, saturation: float, direction: float, falloff: float) -> Tensor:
    """The picture (1, 3, S, S) under a light from one side.

    Args:
        picture: sRGB in [0, 1].
        hue: of the light, in degrees.
        saturation: of the light, from 0 to 1.
        direction: where the light comes from, in degrees: 0 is the left, 90 the top.
        falloff: how far it has turned white at the opposite side; with 0 it is the same everywhere.
    """
    light = hsv_to_rgb(torch.tensor([[hue % 360 / 360, saturation, 1.0]]))
    far = light + falloff * (1 - light)
    size = (picture.shape[-2], picture.shape[-1])
    return relight(picture, illuminants=gradient_light(light, far, size, angle=math.radians(direction)))


@torch.inference_mode()
def answers(images: Tensor) -> list[dict[str, float]]:
    """Probabilities by class of the conventional and of the equivariant network, for an image (1, 3, 32, 32)."""
    return [dict(zip(net.classes, net(images).softmax(1)[0].tolist(), strict=True)) for net in networks()]


def _shown(picture: Tensor) -> str:
    """The picture inside the page's own text: a slider would leave hundreds of files behind."""
    pixels = (picture[0] * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=88)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img class="lit" alt="The picture under this light" src="data:image/jpeg;base64,{data}">'


def _best(answer: dict[str, float]) -> str:
    return max(answer, key=lambda name: answer[name])


def _answered(seen: Seen, *light: float) -> tuple[str, dict[str, float], dict[str, float], str]:
    started = time.perf_counter()
    shown = _shown(lit(seen.large, *light))
    conventional, equivariant = answers(lit(seen.small, *light))
    took = 1000 * (time.perf_counter() - started)
    now = (_best(conventional), _best(equivariant))
    said = "Both as in white light." if now == seen.in_white else f"In white light: {' and '.join(seen.in_white)}."
    return shown, conventional, equivariant, f"{said} Computed in {took:.0f} ms."


def light_tab() -> None:
    """Build the tab."""
    start = read(_CAT)
    first = (120.0, 0.0, 0.0, 0.0)
    shown, conventional, equivariant, said = _answered(start, *first)
    seen = gr.State(start)
    gr.Markdown(
        "Two networks (ResNet-20) that know the ten classes of CIFAR-10. Turn up the saturation of the light, then "
        "move its hue."
    )
    with gr.Row():
        with gr.Column(min_width=240):
            picture = gr.HTML(shown, label="The picture under this light", elem_id="lit")
        with gr.Column(scale=2, min_width=300):
            with gr.Row():
                left, right = (
                    gr.Label(answer, num_top_classes=3, label=name, elem_id=name.lower(), min_width=130)
                    for name, answer in (("Conventional", conventional), ("Equivariant", equivariant))
                )
            status = gr.HTML(said, elem_id="light-status", elem_classes="status")
            hue = gr.Slider(0, 360, first[0], step=1, label="Hue of the light, degrees", elem_id="hue")
            saturation = gr.Slider(0, 1, first[1], step=0.01, label="Saturation of the light", elem_id="saturation")
            direction = gr.Slider(
                *(0, 360, first[2]),
                step=1,
                label="Where it comes from, degrees (0 left, 90 top, 180 right)",
                elem_id="direction",
            )
            falloff = gr.Slider(0, 1, first[3], step=0.01, label="How white it is at the far side", elem_id="falloff")
    upload = gr.File(label="Another picture", height=130, elem_id="light-upload")
    light = [hue, saturation, direction, falloff]
    shows = [picture, left, right, status]
    # Not in the queue, where an event waits for a stream to be opened.
    now: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    for slider in light:
        slider.input(_answered, [seen, *light], shows, trigger_mode="always_last", **now)

    @in_sentences
    def taken(path: str | None, request: gr.Request) -> tuple[Any, ...]:
        if path is None:
            raise ValueError("nothing was uploaded: choose a picture")
        chosen = read(checked(kept(request, path)))
        return chosen, None

    upload.upload(taken, upload, [seen, upload], show_progress="hidden", api_visibility="private").success(
        _answered, [seen, *light], shows, **now
    )
