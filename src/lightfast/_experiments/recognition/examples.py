"""A few test images under growing saturation, and what two classifiers make of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from lightfast._experiments.recognition.evaluation import evaluation_lights
from lightfast._experiments.recognition.pictures import Images, in_batches
from lightfast._pipelines.classifier import Classifier
from lightfast.light import relight

__all__ = ["EXAMPLE_SATURATIONS", "Answer", "Example", "collect_examples", "decode_png"]

EXAMPLE_SATURATIONS = (0.0, 0.2, 0.4, 0.6, 0.8)

_CANDIDATES = 1000


@dataclass(frozen=True)
class Answer:
    """The most probable classes, best first, and their probabilities."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Example:
    """An image under several lights.

    Attributes:
        truth: the name of its class.
        saturations: of the lights.
        pngs: the image under each, as base64 of a PNG file.
        original: what the conventional network says under each.
        equivariant: what the equivariant one says.
    """

    truth: str
    saturations: tuple[float, ...]
    pngs: tuple[str, ...]
    original: tuple[Answer, ...]
    equivariant: tuple[Answer, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


@torch.no_grad()
def collect_examples(
    original: Classifier,
    equivariant: Classifier,
    images: Images,
    labels: Tensor,
    *,
    count: int = 3,
    top: int = 3,
    saturations: Sequence[float] = EXAMPLE_SATURATIONS,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> list[Example]:
    """Images of different classes that the original network loses on the way, and the equivariant one keeps if it can.

    They are the first such ones among a thousand test images spread over the set: chosen to show what happens, and not
    evidence of how often. The error over all images is in the table.
    """
    originals, equivariants = original.to(device).eval(), equivariant.to(device).eval()
    chosen = torch.linspace(0, len(labels) - 1, min(_CANDIDATES, len(labels))).long().unique()
    few = images[chosen] if isinstance(images, Tensor) else torch.stack([images[int(index)] for index in chosen])
    lights = evaluation_lights(len(chosen), saturations, seed)
    said: dict[str, list[Tensor]] = {"original": [], "equivariant": []}
    for light in lights:
        for name, classifier in (("original", originals), ("equivariant", equivariants)):
            parts = [
                classifier(relight(batch, illuminants=light[place].to(device))).softmax(1).cpu()
                for place, batch in in_batches(few, 250, device)
            ]
            said[name].append(torch.cat(parts))
    places = _instructive(said, labels[chosen].cpu(), count)
    return [
        Example(
            original.classes[int(labels[chosen[place]])],
            tuple(saturations),
            tuple(_png(relight(few[place][None].cpu() / 255, illuminants=light[place])[0]) for light in lights),
            tuple(_answer(scores[place], original.classes, top) for scores in said["original"]),
            tuple(_answer(scores[place], original.classes, top) for scores in said["equivariant"]),
        )
        for place in places
    ]


def _instructive(said: dict[str, list[Tensor]], labels: Tensor, count: int) -> list[int]:
    """The most telling images, one a class while classes last."""
    right = {name: torch.stack([scores.argmax(1) == labels for scores in all_]) for name, all_ in said.items()}
    starts_right = right["original"][0] & right["equivariant"][0]
    kept = right["equivariant"].all(0)
    lost = ~right["original"][-1]
    telling = 4 * starts_right.int() + 2 * kept.int() + lost.int()
    order = telling.argsort(descending=True, stable=True).tolist()
    places: list[int] = []
    for new_class in (True, False):
        for place in order:
            seen = {int(labels[other]) for other in places}
            if len(places) < count and place not in places and (int(labels[place]) not in seen or not new_class):
                places.append(place)
    return places


def _answer(probabilities: Tensor, classes: list[str], top: int) -> Answer:
    values, places = probabilities.topk(min(top, len(classes)))
    return Answer(tuple(classes[place] for place in places.tolist()), tuple(values.tolist()))


def _png(image: Tensor) -> str:
    from PIL import Image

    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def decode_png(text: str) -> Any:
    """The pixels (H, W, 3) of a PNG file in base64."""
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB"))
