"""The report of illuminant estimation: errors over the saturation of an added light, and corrected images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightfast._experiments.illuminant.evaluation import LIT_SATURATIONS
from lightfast._experiments.illuminant.protocols import PROTOCOLS, Split
from lightfast._experiments.records import run_folder
from lightfast._experiments.report import Chapter, Figure, Report
from lightfast._experiments.report.figures import LIGHT, LINES, Theme, curve_figure, image_grid
from lightfast._experiments.report.tables import Rows, Table, comparison, markdown
from lightfast._experiments.summary import Summary
from lightfast._pipelines.estimator import Estimator
from lightfast.color import linear_to_srgb
from lightfast.constancy import correct
from lightfast.light import random_illuminants, von_kries

if TYPE_CHECKING:
    from lightfast._experiments.illuminant.experiment import Illuminant

PUBLISHED: Mapping[str, Rows] = {
    "pooled": [
        ["median reproduction error, °", "S = 0", "S = 0.5", "S = 0.9"],
        ["Cotogni and Cusano 2022, original", "1.93", "11.5", "30.3"],
        ["Cotogni and Cusano 2022, equivariant", "2.03", "2.30", "3.44"],
    ],
    "per-camera": [
        ["recovery error, °, geometric mean over cameras", "mean", "median"],
        ["CLCC (Lo et al. 2021)", "1.84", "1.31"],
    ],
    "leave-one-camera-out": [
        ["recovery error, °, geometric mean over cameras", "mean", "median"],
        ["best published mean (GCC)", "2.03", ""],
        ["best published median (SIIE, Afifi and Brown 2019)", "", "1.50"],
        ["C5 (Afifi et al. 2021), other sets added", "1.77", "1.37"],
        ["CCMNet (Kim et al. 2025), other sets added", "1.71", "1.31"],
    ],
    "leave-one-set-out": [
        [
            "recovery error, °",
            "NUS mean",
            "NUS median",
            "Cube+ mean",
            "Cube+ median",
            "INTEL-TAU mean",
            "INTEL-TAU median",
        ],
        ["C5 (Afifi et al. 2021)", "2.54", "1.90", "1.87", "1.27", "2.52", "1.70"],
        ["CCMNet (Kim et al. 2025)", "2.32", "1.71", "1.68", "1.16", "", ""],
    ],
}
"""What others report, by protocol, on NUS where nothing else is said.

The paper's nine cameras have 117 images more than the eight here.
"""

_SHOWN = (0.0, 0.5, 0.9, 0.99)
_STATISTICS = {
    "mean": "mean",
    "median": "median",
    "trimean": "trimean",
    "best25": "best 25 %",
    "worst25": "worst 25 %",
    "p95": "95 %",
}
_FULL_TABLES = (
    ("reproduction", "all", "Reproduction error, all images"),
    ("recovery", "all", "Recovery error, all images"),
    ("reproduction", "geometric_mean", "Reproduction error, geometric mean over cameras"),
    ("recovery", "geometric_mean", "Recovery error, geometric mean over cameras"),
)
_EXAMPLE_SATURATIONS = (0.0, 0.2, 0.4, 0.6, 0.8)


def illuminant_report(study: Illuminant, summaries: Sequence[Summary], splits: Mapping[str, Split]) -> Report:
    """Tables, curves and pictures of a protocol."""
    protocol, plan, scenes = PROTOCOLS[study.protocol], study.plan, study.data
    tested = [name for name in scenes.set_names if name not in study.added]
    title = f"{' + '.join(tested)}, {protocol.title}" + (f", {', '.join(study.added)} added" if study.added else "")
    drawn = [summary for summary in summaries if summary.name in LINES]
    described = "; ".join(
        f"{summary.title}: {summary.at('reproduction', 0, 'all', 'median'):.2f}° at saturation 0 and "
        f"{summary.at('reproduction', -2, 'all', 'median'):.2f}° at 0.9"
        for summary in drawn
    )
    published = PUBLISHED.get(study.protocol) if "NUS" in tested else None
    augmentation = ", ".join(f"{name} {value}" for name, value in plan.to_dict()["augmentation"].items())
    return Report(
        f"The color of the light: {title}",
        f"{protocol.explanation} "
        + (f"Added to the training of every split: {', '.join(study.added)}. " if study.added else "")
        + "Errors in degrees.",
        summaries,
        [
            Chapter(
                "Error over the saturation of the added light",
                [
                    Figure("errors", lambda theme: saturation_figure(drawn, title, theme), described),
                    short_table(summaries),
                ],
            ),
            *_corrected(study, splits),
            Chapter(
                "All numbers",
                [
                    *full_tables(summaries),
                    *set_tables(summaries),
                    *([Table(published, "Published.")] if published else []),
                ],
            ),
        ],
        [
            ("Images", f"{len(scenes):,} from {len(scenes.camera_names)} cameras"),
            ("Splits", ", ".join(f"{name}: {len(s.train)} / {len(s.test)}" for name, s in splits.items())),
            ("Augmentation", augmentation),
            ("Seen by networks", f"{plan.size} x {plan.size}, softness {plan.softness:g}, {plan.views} views"),
        ],
        {
            "title": protocol.title,
            "explanation": protocol.explanation,
            "splits": {name: {"train": len(s.train), "test": len(s.test)} for name, s in splits.items()},
            "saturations": LIT_SATURATIONS,
        },
    )


def short_table(summaries: Sequence[Summary]) -> Table:
    """The main numbers of every method."""
    places = [LIT_SATURATIONS.index(saturation) for saturation in _SHOWN]
    return comparison(
        summaries,
        ["Method", *(f"S = {saturation:g}" for saturation in _SHOWN), "recovery mean", "recovery median"],
        lambda s: [
            *(s.text("reproduction", place, "all", "median") if place < _lights(s) else "" for place in places),
            *(s.text("recovery", 0, "geometric_mean", name) for name in ("mean", "median")),
        ],
        "Median reproduction error over all images under added light of saturation S and random hue, and recovery "
        "error without it (geometric mean over cameras); degrees. With several seeds, their mean and standard "
        "deviation.",
        seeds=True,
    )


def _lights(summary: Summary) -> int:
    """Under how many lights it was measured: images of a camera together are so without added light only."""
    return len(summary.mean["reproduction"])


def full_tables(summaries: Sequence[Summary]) -> list[Table]:
    """All statistics without added light: over all images, over cameras, and of each camera."""
    cameras = list(summaries[0].mean["recovery"][0]["cameras"])

    def numbers(kind: str, over: str, caption: str) -> Table:
        def cells(summary: Summary) -> list[str]:
            return [f"{summary.at(kind, 0, over, name):.2f}" for name in _STATISTICS]

        return comparison(summaries, ["Method", *_STATISTICS.values()], cells, f"{caption}, S = 0; degrees.")

    by_camera = comparison(
        summaries,
        ["Method", *cameras],
        lambda s: [f"{s.at('recovery', 0, 'cameras', camera, 'median'):.2f}" for camera in cameras],
        "Median recovery error of each camera, S = 0; degrees.",
    )
    return [*(numbers(*table) for table in _FULL_TABLES), by_camera]


def set_tables(summaries: Sequence[Summary]) -> list[Table]:
    """Where several data sets are tested, the numbers of each, without added light, and the drift under it."""
    over = {"all images": "all", "over cameras": "geometric_mean"}
    tables = [
        comparison(
            summaries,
            [
                "Method",
                *(f"{name}, {kind}" for kind in over for name in ("mean", "median")),
                *(_STATISTICS[name] for name in ("trimean", "best25", "worst25")),
                "reproduction mean",
                "reproduction median",
            ],
            lambda s, part=part: [
                *(s.text("recovery", 0, "sets", part, place, n) for place in over.values() for n in ("mean", "median")),
                *(s.text("recovery", 0, "sets", part, "all", name) for name in ("trimean", "best25", "worst25")),
                *(s.text("reproduction", 0, "sets", part, "all", name) for name in ("mean", "median")),
            ],
            f"{part}: recovery error over all images and as the geometric mean over cameras, and reproduction error, "
            "S = 0; degrees.",
            seeds=True,
        )
        for part in summaries[0].mean["recovery"][0].get("sets", {})
    ]
    drift = comparison(
        [summary for summary in summaries if _lights(summary) > 1],
        ["Method", *(f"S = {saturation:g}" for saturation in _SHOWN[1:])],
        lambda s: [f"{s.at('drift', LIT_SATURATIONS.index(saturation)):.4f}" for saturation in _SHOWN[1:]],
        "Drift: the largest angle over images between an estimate under added light and that without it, relit alike; "
        "degrees.",
    )
    return [*tables, drift]


def evaluation_table(found: Mapping[str, Any]) -> str:
    """One estimator's median errors, as a table."""
    rows = [["saturation", *(f"{saturation:g}" for saturation in LIT_SATURATIONS)]]
    for kind in ("reproduction", "recovery"):
        rows.append([f"median {kind} error, °", *(f"{place['all']['median']:.2f}" for place in found[kind])])
    return markdown(rows)


def saturation_figure(summaries: Sequence[Summary], title: str, theme: Theme = LIGHT) -> bytes:
    """Median reproduction error over the saturation of the added light, a line a method."""
    labels = title, "saturation of the added light", "median reproduction error, degrees"

    def medians(measured: Any) -> list[float]:
        return [errors["all"]["median"] for errors in measured["reproduction"]]

    return curve_figure(summaries, LIT_SATURATIONS, medians, labels, theme, log_ticks=(1, 2, 3, 5, 10, 20, 40))


@torch.no_grad()
def _corrected(study: Illuminant, splits: Mapping[str, Split]) -> list[Chapter]:
    """Three images of the first split's test set under growing saturation, and both networks' corrections of them."""
    first, split = next(iter(splits.items()))
    folders = {name: run_folder(study.out, (name, 0, first)) for name in ("original", "equivariant")}
    if not study.photographs or not all((folder / "model.safetensors").exists() for folder in folders.values()):
        return []
    models = {name: Estimator.load(folder) for name, folder in folders.items()}
    places = split.test[torch.linspace(0, len(split.test) - 1, 5).long()[1:-1]]
    rows: list[tuple[str, list[Tensor]]] = []
    for number, image in enumerate(study.data.images[places].cpu()):
        # Three hues that differ: reddish, greenish, bluish as they come.
        hue = random_illuminants(1, 1.0, generator=torch.Generator().manual_seed(number))
        relit = [von_kries(image[None], 1 - saturation * (1 - hue)) for saturation in _EXAMPLE_SATURATIONS]
        rows.append(("input", [_viewable(one) for one in relit]))
        for name, model in models.items():
            rows.append((name, [_viewable(correct(one, model(one))) for one in relit]))
    titles = [f"S = {saturation:g}" for saturation in _EXAMPLE_SATURATIONS]
    text = "Test images of the first split, stretched and gamma-encoded."
    described = "Test images under growing saturation and their corrections"
    figure = Figure("corrected", lambda theme: image_grid(rows, titles, theme, group=3), described)
    return [Chapter("Images under added light, and corrected", [text, figure])]


def _viewable(linear: Tensor) -> Tensor:
    """A linear image (1, 3, H, W) stretched so that its 99th percentile is white, and gamma-encoded: (3, H, W)."""
    stretched = linear / linear.flatten().quantile(0.99).clamp(min=1e-6)
    return linear_to_srgb(stretched.clamp(0, 1))[0]
