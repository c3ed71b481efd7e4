"""A few test images under growing saturation, and what two classifiers make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightfast._experiments.lights import Images, evaluation_lights, in_batches
from lightfast._experiments.report.figures import LIGHT, Theme, png_of
from lightfast._pipelines.classifier import Classifier
from lightfast.light import relight

EXAMPLE_SATURATIONS = (0.0, 0.2, 0.4, 0.6, 0.8)

_CANDIDATES = 1000
_TOP = 3

Answer = list[tuple[str, float]]
"""The most probable classes with their probabilities, best first."""


@dataclass(frozen=True)
class Example:
    """An image under several lights.

    Attributes:
        truth: the name of its class.
        images: under each of the lights, sRGB in [0, 1], (3, H, W).
        answers: what each network says under each, by its name.
    """

    truth: str
    images: Sequence[Tensor]
    answers: Mapping[str, Sequence[Answer]]


@torch.no_grad()
def collect_examples(
    classifiers: Mapping[str, Classifier],
    images: Images,
    labels: Tensor,
    *,
    count: int = 3,
    device: torch.device | str = "cpu",
) -> list[Example]:
    """Images of different classes that the first network loses on the way, and the second one keeps if it can.

    They are the first such ones among a thousand test images spread over the set: chosen to show what happens, and not
    evidence of how often. The error over all images is in the table.
    """
    chosen = torch.linspace(0, len(labels) - 1, min(_CANDIDATES, len(labels))).long().unique()
    few = images[chosen] if isinstance(images, Tensor) else torch.stack([images[int(index)] for index in chosen])
    lights = evaluation_lights(len(chosen), EXAMPLE_SATURATIONS, seed=0)
    said = {name: _probabilities(each.to(device).eval(), few, lights, device) for name, each in classifiers.items()}
    names = next(iter(classifiers.values())).classes

    def answer(probabilities: Tensor) -> Answer:
        values, places = probabilities.topk(min(_TOP, len(names)))
        return [(names[place], value) for place, value in zip(places.tolist(), values.tolist(), strict=True)]

    return [
        Example(
            names[int(labels[chosen[place]])],
            [relight(few[place][None].cpu() / 255, illuminants=light[place])[0].clamp(0, 1) for light in lights],
            {name: [answer(under[place]) for under in each] for name, each in said.items()},
        )
        for place in _instructive(list(said.values()), labels[chosen].cpu(), count)
    ]


def _probabilities(classifier: Classifier, images: Tensor, lights: Sequence[Tensor], device: Any) -> Tensor:
    """Of the classes, for each light and image: (S, N, classes)."""
    every = []
    for light in lights:
        batches = in_batches(images, 250, device)
        scores = [classifier(relight(batch, illuminants=light[place].to(device))) for place, batch in batches]
        every.append(torch.cat(scores).softmax(1).cpu())
    return torch.stack(every)


def _instructive(said: Sequence[Tensor], labels: Tensor, count: int) -> list[int]:
    """The most telling images, one a class while classes last."""
    original, equivariant = (probabilities.argmax(2) == labels for probabilities in said)
    starts_right, kept, lost = original[0] & equivariant[0], equivariant.all(0), ~original[-1]
    telling = 4 * starts_right.int() + 2 * kept.int() + lost.int()
    order = telling.argsort(descending=True, stable=True).tolist()
    places: list[int] = []
    for new_class in (True, False):
        for place in order:
            seen = {int(labels[other]) for other in places}
            if len(places) < count and place not in places and (int(labels[place]) not in seen or not new_class):
                places.append(place)
    return places


def examples_figure(examples: Sequence[Example], theme: Theme = LIGHT) -> bytes:
    """Images under growing saturation, and below each the most probable classes of both networks."""
    from matplotlib.figure import Figure

    columns = len(examples[0].images)
    figure = Figure(figsize=(2.15 * columns + 1.1, 3.9 * len(examples) + 0.5), facecolor=theme.paper)
    groups = figure.add_gridspec(len(examples), 1, hspace=0.14, left=0.085, right=0.99, top=0.955, bottom=0.015)
    for number, example in enumerate(examples):
        cells = groups[number].subgridspec(3, columns, height_ratios=(2.1, 1, 1), hspace=0.16, wspace=0.12)
        for column, image in enumerate(example.images):
            axes = figure.add_subplot(cells[0, column])
            axes.imshow(image.permute(1, 2, 0).numpy(), interpolation="nearest")
            axes.set_axis_off()
            if number == 0:
                axes.set_title(f"S = {EXAMPLE_SATURATIONS[column]:g}", fontsize=11, color=theme.ink, pad=8)
            for row, (name, answers) in enumerate(example.answers.items(), start=1):
                bars = figure.add_subplot(cells[row, column])
                _draw_bars(bars, answers[column], example.truth, theme)
                if column == 0:
                    bars.set_ylabel(name, fontsize=9, color=theme.ink, labelpad=8)
    return png_of(figure)


def _draw_bars(axes: Any, answer: Answer, truth: str, theme: Theme) -> None:
    for place, (name, probability) in enumerate(answer):
        is_right = name == truth
        axes.barh(place, 1, color=theme.faint, alpha=0.45, height=0.82)
        axes.barh(place, probability, color=theme.right if is_right else theme.wrong, height=0.82)
        weight = "bold" if is_right else "normal"
        axes.text(0.03, place, name, va="center", ha="left", fontsize=8, color=theme.ink, weight=weight)
        axes.text(0.97, place, f"{100 * probability:.0f} %", va="center", ha="right", fontsize=8, color=theme.ink)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(answer) - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_facecolor(theme.paper)
    for spine in axes.spines.values():
        spine.set_visible(False)
