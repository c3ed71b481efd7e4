"""The report of recognition: error over the saturation of the light, under light that varies, and what networks say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightfast._experiments.lights import VARYING
from lightfast._experiments.recognition.evaluation import MIXED_SATURATION, Evaluation
from lightfast._experiments.recognition.examples import collect_examples, examples_figure
from lightfast._experiments.records import run_folder
from lightfast._experiments.report import Chapter, Figure, Report
from lightfast._experiments.report.figures import LIGHT, LINES, Theme, curve_figure, label_axes, new_figure, png_of
from lightfast._experiments.report.tables import Rows, Table, comparison, markdown
from lightfast._experiments.summary import Summary
from lightfast._pipelines.classifier import Classifier

if TYPE_CHECKING:
    from lightfast._experiments.recognition.experiment import Recognition

SHOWN = (0.0, 0.5, 0.8, 0.9, 1.0)
"""The saturations of the short table."""

_PUBLISHED: Mapping[str, tuple[str, Mapping[str, Mapping[float, float]]]] = {
    "CIFAR-10": (
        "ResNet-20",
        {
            "Original": {0.0: 8.67, 0.5: 12.6, 0.9: 29.0},
            "Augmentation": {0.0: 9.20, 0.5: 9.91, 0.9: 11.9},
            "Preprocessing: quasi-unsupervised": {0.0: 9.19, 0.5: 9.43, 0.9: 11.0},
            "Equivariant": {0.0: 8.88, 0.5: 8.85, 0.9: 9.29, 1.0: 28.17},
        },
    ),
    "imagenet": (
        "ResNet-50 on the whole of ILSVRC-12, batch 48",
        {
            "Original": {0.0: 24.59, 0.5: 26.09, 0.9: 31.17},
            "Augmentation": {0.0: 28.09, 0.5: 29.21, 0.9: 33.91},
            "Preprocessing: quasi-unsupervised": {0.0: 24.95, 0.5: 25.32, 0.9: 26.53},
            "Equivariant": {0.0: 24.85, 0.5: 24.92, 0.9: 25.71},
        },
    ),
}
"""What the paper reports (test error, %, by saturation), by data or kind of recipe."""


_EXPLANATION = (
    "Networks were trained to name what is in a picture, all of them on the same pictures in ordinary light. Then "
    "the test pictures were put under lamps of other colors. The saturation of a lamp says how colored it is: 0 is "
    "white light, 0.9 is strongly colored, and at 1 one of red, green and blue has no light at all.",
    "Original is the ordinary network, which takes the color of the lamp for that of things. Augmentation was "
    "trained with jittered colors; preprocessing balances the colors of each picture first. Equivariant and wrapped "
    "networks see the logarithm of the colors relative to the picture's own mean, in which a lamp changes nothing: "
    "their error stays where it is, until at saturation 1 a channel is gone. Lower is better, and level is the "
    "point.",
)
"""For readers who have read nothing else."""


def recognition_report(study: Recognition, summaries: Sequence[Summary]) -> Report:
    """Tables, curves and pictures of a comparison."""
    plan, data = study.plan, study.data
    title = f"{data.name}, {plan.model}, {plan.recipe.steps:,} steps"
    chapters = [
        Chapter("What was done", _EXPLANATION),
        Chapter(
            "Error over the saturation of the light",
            [
                Figure("errors", lambda theme: error_figure(summaries, title, theme), _description(summaries)),
                comparison(
                    summaries,
                    ["Strategy", *(f"S = {saturation:g}" for saturation in SHOWN), "varying light"],
                    lambda s: [*(s.text("errors", _place(s, at)) for at in SHOWN), s.text("mixed")],
                    "Test error, %, under light of saturation S and random hue, and under light that varies over the "
                    "image (a gradient between two lights of saturation 0.9); mean ± standard deviation over seeds if "
                    "there are several.",
                    seeds=True,
                ),
            ],
        ),
        Chapter("All numbers", [_curve_table(summaries), *_published(data.name, plan.name)]),
    ]
    measured = [summary for summary in summaries if set(VARYING) <= set(summary.mean.get("varying", ()))]
    if measured:
        table = _varying_table(measured)
        described = "; ".join(", ".join(row) for row in table.rows)
        figure = Figure("varying", lambda theme: varying_figure(measured, title, theme), described)
        chapters.append(Chapter("Light that varies over the image", [figure, table]))
    chapters += _examples(study)
    jitter = study.out / "jitter.json"
    return Report(
        f"Recognition under colored light: {title}",
        _lead(summaries),
        summaries,
        chapters,
        [("Pictures", f"{len(data.train_labels):,} to train on, {len(data.test_labels):,} to test on")],
        {"jitter": json.loads(jitter.read_text(encoding="utf-8")) if jitter.exists() else None},
    )


def evaluation_table(evaluation: Evaluation) -> str:
    """One classifier's errors, as a table."""
    saturations = [f"{saturation:g}" for saturation in evaluation.saturations]
    uniform = markdown([["saturation", *saturations], ["error, %", *(f"{error:.2f}" for error in evaluation.errors)]])
    errors = [f"{evaluation.varying[kind]:.2f}" for kind in VARYING]
    return f"{uniform}\n\n{markdown([['varying light', *VARYING.values()], ['error, %', *errors]])}"


def error_figure(summaries: Sequence[Summary], title: str, theme: Theme = LIGHT) -> bytes:
    """Error over the saturation of the light, a line a strategy, with the spread over seeds as a band."""
    labels = title, "saturation of the light", "test error, %"
    saturations = summaries[0].mean["saturations"]
    return curve_figure(summaries, saturations, lambda measured: measured["errors"], labels, theme)


def varying_figure(summaries: Sequence[Summary], title: str, theme: Theme = LIGHT) -> bytes:
    """Error in white light, under one light and under every kind of light that varies, a line of marks a strategy."""
    figure, (axes,) = new_figure((8.6, 4.8), theme)
    names = ["white", "one light", *VARYING.values()]
    for number, summary in enumerate(summaries):
        color, _, marker = LINES.get(summary.name, (theme.ink, "-", "o"))
        # Side by side, so that marks at the same height stay apart.
        places = [place + 0.6 * ((number + 0.5) / len(summaries) - 0.5) for place in range(len(names))]
        axes.errorbar(
            places,
            _under_all(summary, summary.mean),
            [0.0] * len(names) if summary.spread is None else _under_all(summary, summary.spread),
            fmt=marker,
            color=color,
            fillstyle="none" if marker != "o" else "full",
            markersize=6,
            elinewidth=1.4,
            label=summary.title,
        )
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(len(names)), names)
    label_axes(axes, theme, title, "", "test error, %", beside=True)
    return png_of(figure)


def _under_all(summary: Summary, measured: Any) -> list[float]:
    uniform = [measured["errors"][_place(summary, saturation)] for saturation in (0.0, MIXED_SATURATION)]
    return [*uniform, *(measured["varying"][kind] for kind in VARYING)]


def _place(summary: Summary, saturation: float) -> int:
    return summary.mean["saturations"].index(saturation)


def _error(summary: Summary, saturation: float) -> float:
    return summary.at("errors", _place(summary, saturation))


def _curve_table(summaries: Sequence[Summary]) -> Table:
    saturations = summaries[0].mean["saturations"]
    return comparison(
        summaries,
        ["Strategy", *(f"{saturation:g}" for saturation in saturations)],
        lambda summary: [f"{error:.2f}" for error in summary.mean["errors"]],
        "Mean test error, %, at every saturation.",
    )


def _varying_table(summaries: Sequence[Summary]) -> Table:
    return comparison(
        summaries,
        ["Strategy", "white", "one light", *VARYING.values(), "seeds"],
        lambda summary: [
            *(summary.text("errors", _place(summary, saturation)) for saturation in (0.0, MIXED_SATURATION)),
            *(summary.text("varying", kind) for kind in VARYING),
            str(summary.seeds),
        ],
        "Test error, %, and its standard deviation over seeds if there are several, under light of saturation 0.9 that "
        "is the same everywhere, turns from one hue into another (evenly in log or in linear light), falls on a spot, "
        "has a soft shadow, or a hard edge.",
    )


def _published(data: str, recipe: str) -> list[Table]:
    """The table of the paper to set beside a comparison, if there is one."""
    key = data if data in _PUBLISHED else recipe.removesuffix("-quick")
    if key not in _PUBLISHED:
        return []
    title, strategies = _PUBLISHED[key]
    rows: Rows = [["Strategy", *(f"S = {saturation:g}" for saturation in SHOWN)]]
    for name, errors in strategies.items():
        rows.append([name, *(f"{errors[saturation]:.2f}" if saturation in errors else "" for saturation in SHOWN)])
    return [Table(rows, f"Published: Cotogni and Cusano, Neurocomputing 502 (2022), {title}.")]


def _examples(study: Recognition) -> list[Chapter]:
    folders = {name: run_folder(study.out, (name, 0)) for name in ("original", "equivariant")}
    if not study.photographs or not all((folder / "model.safetensors").exists() for folder in folders.values()):
        return []
    classifiers = {name: Classifier.load(folder) for name, folder in folders.items()}
    examples = collect_examples(classifiers, study.data.test_images, study.data.test_labels, device=study.device)
    text = (
        "Three test images that show what happens, and the three most probable classes under each light; the right one "
        "is in bold. How often it happens is in the table above."
    )
    described = "Three test images at saturations from 0 to 0.8 with probability bars"
    figure = Figure("examples", lambda theme: examples_figure(examples, theme), described)
    return [Chapter("The same pictures under other light", [text, figure])]


def _description(summaries: Sequence[Summary]) -> str:
    return "; ".join(
        f"{summary.title}: {_error(summary, 0.0):.1f} % in white light, {_error(summary, 1.0):.1f} % at saturation 1"
        for summary in summaries
    )


def _lead(summaries: Sequence[Summary]) -> str:
    by_name = {summary.name: summary for summary in summaries}
    if not {"original", "equivariant"} <= by_name.keys():
        return "Test error of networks trained in ordinary light, under light of growing saturation and random hue."
    original, equivariant = by_name["original"], by_name["equivariant"]
    return (
        f"Trained in ordinary light, the conventional network goes from {_error(original, 0.0):.1f} % errors in white "
        f"light to {_error(original, 0.9):.1f} % in strongly colored light (saturation 0.9); the equivariant one from "
        f"{_error(equivariant, 0.0):.1f} % to {_error(equivariant, 0.9):.1f} %."
    )
