"""The report of inpainting: PSNR and pattern stability over the saturation of the light, and filled images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lightfast._experiments.inpainting.evaluation import STABLE_UP_TO, VARYING_SATURATION, worst_stability
from lightfast._experiments.inpainting.figures import curves_figure, filled_figure, square_figure
from lightfast._experiments.lights import VARYING
from lightfast._experiments.records import run_folder
from lightfast._experiments.report import Chapter, Figure, Report
from lightfast._experiments.report.tables import Rows, Table, comparison, markdown
from lightfast._experiments.summary import Summary
from lightfast._pipelines.inpainter import Inpainter

if TYPE_CHECKING:
    from lightfast._experiments.inpainting.experiment import Inpainting

PUBLISHED: Rows = [
    ["PSNR, dB", "S = 0", "S = 0.5", "S = 0.9"],
    ["Cotogni and Cusano 2022, original", "17.65", "18.44", "19.05"],
    ["Cotogni and Cusano 2022, equivariant", "17.67", "18.68", "19.78"],
]
"""On the images of `paris_eval`, by networks that were trained on images of Paris that are no longer to be had."""

_SHOWN = (0.0, 0.3, 0.5, 0.8, 0.9, 1.0)
_NUMBERS = {"psnr": "PSNR", "l1": "L1, %", "l2": "L2, %", "stability": "stability"}
_EXAMPLES = 3
_LEAD = (
    "Networks that fill a hole of 50x50 pixels in images of 128x128, trained in ordinary light and used under light of "
    "saturation S and random hue; all numbers are over the missing pixels alone, of sRGB values in [0, 1]. Pattern "
    "stability says whether they fill in the same under another light: it is the PSNR between what is filled in in "
    "white light and in colored light, once the color of the light is divided out."
)


def inpainting_report(study: Inpainting, summaries: Sequence[Summary]) -> Report:
    """Tables, curves and pictures of a comparison."""
    plan, data = study.plan, study.data
    tests = list(summaries[0].mean["tests"])
    numbers = [_curve_table(summaries, test) for test in tests]
    if data.name == "street128":
        numbers.append(Table(PUBLISHED, "Published, on the images of Paris Street View."))
    counts = ", ".join(f"{len(images):,} of {name}" for name, images in data.tests.items())
    return Report(
        f"Inpainting under colored light: {data.name}, {plan.model}, {plan.recipe.steps:,} steps",
        _LEAD,
        summaries,
        [
            *(_test_chapter(summaries, test, place) for place, test in enumerate(tests, start=1)),
            *_pictures(study),
            Chapter("All numbers", numbers),
        ],
        [
            ("Images", f"{len(data.train) - plan.held_out:,} to train on; to test on {counts}"),
            (
                "Loss",
                f"{1 - plan.adversarial:g} squared error of sRGB values, times {plan.border:g} on the border, and "
                f"{plan.adversarial:g} adversarial",
            ),
            ("Network", f"{plan.model}; log RGB with softness {plan.softness:g}"),
        ],
    )


def evaluation_table(found: Mapping[str, Any]) -> str:
    """What was measured of one inpainter on a set of images, as a table."""
    rows: Rows = [["saturation", *(f"{saturation:g}" for saturation in found["saturations"])]]
    for kind, title in {**_NUMBERS, "psnr": "PSNR, dB", "stability": "stability, dB"}.items():
        rows.append([title, *_texts(found[kind])])
    return markdown(rows)


def _texts(numbers: Sequence[float | None]) -> list[str]:
    return ["" if number is None else f"{number:.2f}" for number in numbers]


def _worst(summary: Summary, test: str) -> float:
    found = summary.mean["tests"][test]
    return worst_stability(found["saturations"], found["stability"])


def _test_chapter(summaries: Sequence[Summary], test: str, number: int) -> Chapter:
    described = "; ".join(
        f"{summary.title}: PSNR {summary.at('tests', test, 'psnr', 0):.2f} dB in white light, stability at least "
        f"{_worst(summary, test):.0f} dB"
        for summary in summaries
    )
    name = "psnr" if number == 1 else f"psnr-{number}"
    saturations = summaries[0].mean["tests"][test]["saturations"]
    places = [saturations.index(saturation) for saturation in _SHOWN]
    table = comparison(
        summaries,
        ["Network", *(f"S = {saturation:g}" for saturation in _SHOWN), "L1, %", "L2, %", "stability"],
        lambda s: [
            *(s.text("tests", test, "psnr", place) for place in places),
            *(s.text("tests", test, kind, 0) for kind in ("l1", "l2")),
            f"{_worst(s, test):.1f}",
        ],
        f"{test}: PSNR in dB of the missing pixels, L1 and L2 at S = 0, and the lowest pattern stability in dB up to "
        f"S = {STABLE_UP_TO:g}. With several seeds, their mean and standard deviation.",
        seeds=True,
    )
    figure = Figure(name, lambda theme: curves_figure(summaries, test, theme), described)
    tables = [table, *_varying_tables(summaries, test)]
    return Chapter(f"{test}: over the saturation of the light", [figure, *tables])


def _varying_tables(summaries: Sequence[Summary], test: str) -> list[Table]:
    """PSNR and pattern stability under light that varies over the image, of the networks that have them."""
    measured = [summary for summary in summaries if "varying" in summary.mean["tests"][test]]
    words = {
        "psnr": "PSNR in dB of the missing pixels",
        "stability": "pattern stability in dB, the light divided out pixel by pixel",
    }
    return [
        comparison(
            measured,
            ["Network", *VARYING.values()],
            lambda s, number=number: [s.text("tests", test, "varying", kind, number) for kind in VARYING],
            f"{test}: {said}, under light of saturation {VARYING_SATURATION:g} that varies over the image.",
        )
        for number, said in words.items()
        if measured
    ]


def _curve_table(summaries: Sequence[Summary], test: str) -> Table:
    saturations = summaries[0].mean["tests"][test]["saturations"]
    rows: Rows = [["S", *(f"{saturation:g}" for saturation in saturations)]]
    for kind, title in _NUMBERS.items():
        rows += [[f"{title}, {s.title}", *_texts(s.mean["tests"][test][kind])] for s in summaries]
    return Table(rows, f"{test}, at every saturation.")


def _pictures(study: Inpainting) -> list[Chapter]:
    """Images filled by the first run's models: the original and the equivariant ones; none without either."""
    folders = {name: run_folder(study.out, (name, 0)) for name in ("original", "equivariant", "equivariant-free")}
    there = {name: folder for name, folder in folders.items() if (folder / "model.safetensors").exists()}
    if "original" not in there or len(there) < 2 or (study.data.photographs and not study.photographs):
        return []
    models = {name: Inpainter.load(folder) for name, folder in there.items()}
    shown = next(iter(study.data.tests.values()))
    few = shown[torch.linspace(0, len(shown) - 1, _EXAMPLES + 2).long()[1:-1]].float() / 255
    filled = "Images under growing saturation, cut, and filled by both networks"
    square = "An image filled and relit in both orders, and the difference"
    return [
        Chapter(
            "The same images under other light",
            [Figure("filled", lambda theme: filled_figure(models, few, theme), filled)],
        ),
        Chapter(
            "Relight, then fill; fill, then relight",
            [
                "For the equivariant network the order does not matter.",
                Figure("square", lambda theme: square_figure(models, few[1], theme), square),
            ],
        ),
    ]
