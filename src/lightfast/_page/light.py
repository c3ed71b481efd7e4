"""The tab *Under any light*: networks on one picture, while the light changes."""

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
        small: as networks see it (1, 3, s, s).
        in_white: what each network takes it for in white light.
    """

    large: Tensor
    small: Tensor
    in_white: tuple[str, ...]


Networks = dict[str, Classifier]


@cache
def packaged() -> Networks:
    """The conventional and the equivariant one, from the package."""
    return {"Conventional": Classifier.load(CONVENTIONAL), "Equivariant": Classifier.load(EQUIVARIANT)}


def read(path: Path, networks: Networks) -> Seen:
    """The middle of a picture file."""
    size = next(iter(networks.values())).image_size or (_SIDE, _SIDE)
    large, small = (load_image(path, side)[None].float() / 255 for side in (_SIDE, size[0]))
    return Seen(large, small, tuple(map(_best, answers(small, networks))))


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
def answers(images: Tensor, networks: Networks) -> list[dict[str, float]]:
    """Probabilities by class of each network, for an image (1, 3, s, s)."""
    return [dict(zip(net.classes, net(images).softmax(1)[0].tolist(), strict=True)) for net in networks.values()]


def _shown(picture: Tensor) -> str:
    """The picture inside the page's own text: a slider would leave hundreds of files behind."""
    pixels = (picture[0] * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=88)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img class="lit" alt="The picture under this light" src="data:image/jpeg;base64,{data}">'


def _best(answer: dict[str, float]) -> str:
    return max(answer, key=lambda name: answer[name])


def light_tab(own: Classifier | None = None) -> None:
    """Build the tab: with the networks in the package, or with a classifier of one's own."""
    networks = packaged() if own is None else {"Yours": own}
    unchanged = "Both as in white light." if own is None else "As in white light."

    def answered(seen: Seen, *light: float) -> tuple[Any, ...]:
        started = time.perf_counter()
        shown = _shown(lit(seen.large, *light))
        given = answers(lit(seen.small, *light), networks)
        took = 1000 * (time.perf_counter() - started)
        now = tuple(map(_best, given))
        said = unchanged if now == seen.in_white else f"In white light: {' and '.join(seen.in_white)}."
        return shown, *given, f"{said} Computed in {took:.0f} ms."

    start = read(_CAT, networks)
    first = (120.0, 0.0, 0.0, 0.0)
    shown, *given, said = answered(start, *first)
    seen = gr.State(start)
    about = "Two networks (ResNet-20) that know the ten classes of CIFAR-10." if own is None else "Your classifier."
    gr.Markdown(f"{about} Turn up the saturation of the light, then move its hue.")
    with gr.Row():
        with gr.Column(min_width=240):
            picture = gr.HTML(shown, label="The picture under this light", elem_id="lit")
        with gr.Column(scale=2, min_width=300):
            with gr.Row():
                labels = [
                    gr.Label(answer, num_top_classes=3, label=name, elem_id=name.lower(), min_width=130)
                    for name, answer in zip(networks, given, strict=True)
                ]
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
    shows = [picture, *labels, status]
    # Not in the queue, where an event waits for a stream to be opened.
    now: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    for slider in light:
        slider.input(answered, [seen, *light], shows, trigger_mode="always_last", **now)

    @in_sentences
    def taken(path: str | None, request: gr.Request) -> tuple[Any, ...]:
        if path is None:
            raise ValueError("nothing was uploaded: choose a picture")
        chosen = read(checked(kept(request, path)), networks)
        return chosen, None

    upload.upload(taken, upload, [seen, upload], show_progress="hidden", api_visibility="private").success(
        answered, [seen, *light], shows, **now
    )
