"""The report of a comparison of illuminant estimators: `results.json`, `table.md`, figures and `report.html`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightfast._atomic import write_json, write_whole
from lightfast._experiments.data.nus import LitScenes
from lightfast._experiments.illuminant.protocols import splits_of
from lightfast._experiments.illuminant.study import results_of
from lightfast._experiments.report.figures import DARK, LIGHT, Theme
from lightfast._experiments.report.page import Picture, Section, Table, page
from lightfast._experiments.report.tables import Rows, markdown
from lightfast._pipelines.estimator import Estimator
from lightfast.color import linear_to_srgb
from lightfast.constancy import correct
from lightfast.light import random_illuminants, von_kries

__all__ = ["PUBLISHED_ILLUMINANT", "corrected_figure", "saturation_figure", "write_illuminant_report"]

PUBLISHED_ILLUMINANT: Mapping[str, Rows] = {
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
    ],
}
"""What others report on NUS, by protocol. The paper's nine cameras have 117 images more than the eight here."""

SHOWN_SATURATIONS = (0.0, 0.5, 0.9, 0.99)
_STATISTICS = {
    "mean": "mean",
    "median": "median",
    "trimean": "trimean",
    "best25": "best 25 %",
    "worst25": "worst 25 %",
    "p95": "95 %",
}
_NETWORK_LINES = {
    "original": ("#8a909c", "-", "o"),
    "wrapped": ("#2aa198", "--", "s"),
    "equivariant": ("#2f7fdf", "-", "o"),
    "equivariant-ensemble": ("#2f7fdf", ":", "D"),
    "local": ("#6f5bd6", "-", "^"),
    "local-ensemble": ("#6f5bd6", ":", "v"),
    "histogram": ("#3f9a4c", "-", "P"),
    "statistics": ("#7a5230", "-", "p"),
    "general": ("#d1495b", "-", "h"),
    "general-ensemble": ("#d1495b", ":", "H"),
    "joint": ("#b8860b", "-", "*"),
    "joint-ensemble": ("#b8860b", ":", "X"),
    "gray-world": ("#c2528b", "-", "v"),
    "shades-of-gray": ("#c2528b", "--", "^"),
    "gray-edge-1": ("#e0892b", "-", "s"),
    "pca": ("#e0892b", "--", "D"),
}
_EXAMPLE_SATURATIONS = (0.0, 0.2, 0.4, 0.6, 0.8)


def write_illuminant_report(
    out: Path, scenes: LitScenes, classical: Mapping[str, Tensor], photographs: bool = True
) -> str:
    """Write everything from the finished runs in a folder, and return the table.

    Args:
        out: the folder of the study.
        scenes: the ones it was made with.
        classical: what :func:`~lightfast._experiments.illuminant.study.classical_estimates` gave for them.
        photographs: whether to show images of the data set in a figure of corrected images and in the page.
    """
    results = results_of(out, scenes, classical)
    write_json(out / "results.json", results)
    table = illuminant_tables(results)
    write_whole(out / "table.md", table.encode())
    curves = [saturation_figure(results, theme) for theme in (LIGHT, DARK)]
    write_whole(out / "errors.png", curves[0])
    shown = _corrected(out, scenes, results) if photographs else []
    if shown:
        write_whole(out / "corrected.png", shown[0])
    write_whole(out / "report.html", _page(results, curves, shown).encode())
    return table


def illuminant_tables(results: Mapping[str, Any]) -> str:
    """The tables of a study, in Markdown."""
    parts = [
        f"{_title(results)}. {results['explanation']} Errors in degrees.",
        "Median reproduction error over all images under added light of saturation S and random hue, and recovery "
        "error without it:",
        markdown(_short_rows(results)),
        *(
            text
            for kind, over, caption in _FULL_TABLES
            for text in (f"{caption}:", markdown(_full_rows(results, kind, over)))
        ),
        "Median recovery error of each camera, S = 0:",
        markdown(_camera_rows(results)),
    ]
    if published := PUBLISHED_ILLUMINANT.get(results["protocol"]) if results["data"] == "NUS" else None:
        parts += ["Published:", markdown([list(row) for row in published])]
    return "\n\n".join(parts) + "\n"


_FULL_TABLES = (
    ("reproduction", "all", "Reproduction error, all images, S = 0"),
    ("recovery", "all", "Recovery error, all images, S = 0"),
    ("reproduction", "geometric_mean", "Reproduction error, geometric mean over cameras, S = 0"),
    ("recovery", "geometric_mean", "Recovery error, geometric mean over cameras, S = 0"),
)


def _short_rows(results: Mapping[str, Any]) -> Rows:
    places = [list(results["saturations"]).index(saturation) for saturation in SHOWN_SATURATIONS]
    head = ["Method", *(f"S = {saturation:g}" for saturation in SHOWN_SATURATIONS)]
    rows: Rows = [[*head, "recovery mean", "recovery median", "parameters", "seeds"]]
    for method in results["methods"].values():
        medians = [_with_spread(method, "reproduction", place, "all", "median") for place in places]
        recovery = [_with_spread(method, "recovery", 0, "geometric_mean", name) for name in ("mean", "median")]
        seeds = str(method["seeds"]) if method["seeds"] else ""
        rows.append([method["title"], *medians, *recovery, f"{method['parameters']:,}", seeds])
    return rows


def _with_spread(method: Mapping[str, Any], kind: str, place: int, over: str, name: str) -> str:
    number = f"{method[kind][place][over][name]:.2f}"
    return f"{number} ± {method['spread'][kind][place][over][name]:.2f}" if "spread" in method else number


def _full_rows(results: Mapping[str, Any], kind: str, over: str) -> Rows:
    return [
        ["Method", *_STATISTICS.values()],
        *(
            [method["title"], *(f"{method[kind][0][over][name]:.2f}" for name in _STATISTICS)]
            for method in results["methods"].values()
        ),
    ]


def _camera_rows(results: Mapping[str, Any]) -> Rows:
    cameras = results["cameras"]
    return [
        ["Method", *cameras],
        *(
            [method["title"], *(f"{method['recovery'][0]['cameras'][camera]['median']:.2f}" for camera in cameras)]
            for method in results["methods"].values()
        ),
    ]


def saturation_figure(results: Mapping[str, Any], theme: Theme = LIGHT) -> bytes:
    """Median reproduction error over the saturation of the added light, a line a method."""
    figure, axes = _new_axes((8.6, 4.8), theme)
    saturations = results["saturations"]
    for name, method in results["methods"].items():
        if name not in _NETWORK_LINES:
            continue
        color, dash, marker = _NETWORK_LINES[name]
        medians = [error["all"]["median"] for error in method["reproduction"]]
        axes.plot(
            saturations, medians, dash, color=color, marker=marker, markersize=4, linewidth=1.8, label=method["title"]
        )
    axes.set_yscale("log")
    ticks = [1, 2, 3, 5, 10, 20, 40]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xticks([step / 10 for step in range(11)])
    axes.set_xlabel("saturation of the added light")
    axes.set_ylabel("median reproduction error, degrees")
    axes.set_title(_title(results), loc="left", fontsize=11, color=theme.ink, pad=12)
    axes.grid(axis="y", color=theme.faint, linewidth=0.8)
    legend = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False, "fontsize": 9}
    axes.legend(**legend, labelcolor=theme.ink)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return _png(figure)


def corrected_figure(rows: Sequence[tuple[str, Sequence[np.ndarray]]], theme: Theme = LIGHT) -> bytes:
    """Rows of images (H, W, 3) in [0, 1], one a saturation, each row with its name."""
    from matplotlib.figure import Figure

    columns = len(rows[0][1])
    height, width = rows[0][1][0].shape[:2]
    size = 2.1 * columns + 1.0, (2.1 * height / width + 0.12) * len(rows) + 0.5
    figure = Figure(figsize=size, facecolor=theme.paper)
    grid = figure.add_gridspec(
        len(rows), columns, wspace=0.05, hspace=0.07, left=0.09, right=0.99, top=1 - 0.4 / size[1], bottom=0.1 / size[1]
    )
    for row, (name, images) in enumerate(rows):
        for column, image in enumerate(images):
            axes = figure.add_subplot(grid[row, column])
            axes.imshow(image, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_visible(False)
            if row == 0:
                axes.set_title(f"S = {_EXAMPLE_SATURATIONS[column]:g}", fontsize=11, color=theme.ink, pad=8)
            if column == 0:
                axes.set_ylabel(name, fontsize=10, color=theme.ink, labelpad=8)
    return _png(figure)


@torch.no_grad()
def _corrected(out: Path, scenes: LitScenes, results: Mapping[str, Any]) -> list[bytes]:
    """Three images of the first split's test set under growing saturation, and both networks' corrections of them."""
    folder = out / "models"
    names = ("original", "equivariant")
    if not all((folder / f"{name}.safetensors").exists() for name in names):
        return []
    models = {name: Estimator.load(folder / f"{name}.json") for name in names}
    test = splits_of(scenes, results["protocol"])[0].test
    places = test[torch.linspace(0, len(test) - 1, 5).long()[1:-1]]
    images = scenes.images[places].cpu()
    rows: list[tuple[str, list[np.ndarray]]] = []
    for number, image in enumerate(images):
        # Three hues that differ: reddish, greenish, bluish as they come.
        generator = torch.Generator().manual_seed(number)
        hue = random_illuminants(1, 1.0, generator=generator)
        relit = [von_kries(image[None], 1 - saturation * (1 - hue)) for saturation in _EXAMPLE_SATURATIONS]
        rows.append(("input", [_viewable(one) for one in relit]))
        for name, model in models.items():
            rows.append((name, [_viewable(correct(one, model(one))) for one in relit]))
    return [corrected_figure(rows, theme) for theme in (LIGHT, DARK)]


def _viewable(linear: Tensor) -> np.ndarray:
    """A linear image (1, 3, H, W) stretched so that its 99th percentile is white, and gamma-encoded: (H, W, 3)."""
    stretched = linear / linear.flatten().quantile(0.99).clamp(min=1e-6)
    return linear_to_srgb(stretched.clamp(0, 1))[0].permute(1, 2, 0).numpy()


def _page(results: Mapping[str, Any], curves: Sequence[bytes], shown: Sequence[bytes]) -> str:
    methods = results["methods"]
    strong = tuple(
        number for number, name in enumerate(methods, start=1) if name.startswith(("equivariant", "local", "wrapped"))
    )
    description = "; ".join(
        f"{method['title']}: {method['reproduction'][0]['all']['median']:.2f}° at saturation 0 and "
        f"{method['reproduction'][-2]['all']['median']:.2f}° at 0.9"
        for name, method in methods.items()
        if name in _NETWORK_LINES
    )
    sections = [
        Section(
            "Error over the saturation of the added light",
            [
                Picture(curves[0], curves[1], description),
                Table(
                    _short_rows(results),
                    "Median reproduction error over all images under added light, and recovery error without it "
                    "(geometric mean over cameras); degrees. With several seeds, their mean and standard deviation.",
                    strong,
                ),
            ],
        )
    ]
    if shown:
        sections.append(
            Section(
                "Images under added light, and corrected",
                [
                    "Test images of the first split, stretched and gamma-encoded.",
                    Picture(shown[0], shown[1], "Test images under growing saturation and their corrections"),
                ],
            )
        )
    details: list[str | Picture | Table] = [
        Table(_full_rows(results, kind, over), f"{caption}; degrees.", strong) for kind, over, caption in _FULL_TABLES
    ]
    details.append(Table(_camera_rows(results), "Median recovery error of each camera, S = 0; degrees.", strong))
    if published := PUBLISHED_ILLUMINANT.get(results["protocol"]) if results["data"] == "NUS" else None:
        details.append(Table(published, "Published."))
    sections += [Section("All numbers", details), Section("How it was made", [Table(_facts(results))])]
    return page(f"The color of the light: {_title(results)}", results["explanation"], sections)


def _title(results: Mapping[str, Any]) -> str:
    return f"{results['data']}, {results['title']}"


def _facts(results: Mapping[str, Any]) -> Rows:
    plan, made = results["plan"], results["provenance"]
    recipe, machine = plan["recipe"], made["machine"]
    augmentation = ", ".join(f"{name} {value}" for name, value in plan["augmentation"].items())
    return [
        ["what", "value"],
        ["Images", f"{results['images']:,} from {len(results['cameras'])} cameras"],
        ["Splits", ", ".join(f"{name}: {s['train']} / {s['test']}" for name, s in results["splits"].items())],
        [
            "Recipe",
            f"{plan['name']}: {recipe['steps']:,} steps of {recipe['batch_size']}, {recipe['optimizer']}, "
            f"lr {recipe['lr']:g}, {recipe['schedule']} schedule, weight decay {recipe['weight_decay']:g}",
        ],
        ["Augmentation", augmentation],
        ["Seen by networks", f"{plan['size']} x {plan['size']}, softness {plan['softness']:g}, {plan['views']} views"],
        ["Runs", f"{results['runs']}, {results['train_seconds'] / 60:.1f} minutes of training"],
        ["Command", made["command"]],
        ["Commit", made["commit"] or "not from a checkout"],
        ["Versions", ", ".join(f"{name} {version}" for name, version in made["versions"].items())],
        ["Machine", ", ".join([machine["system"], f"{machine['cores']} cores", *machine["gpus"]])],
        ["Date", made["date"]],
    ]


def _new_axes(size: tuple[float, float], theme: Theme) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, facecolor=theme.paper, layout="constrained")
    axes = figure.add_subplot()
    axes.set_facecolor(theme.paper)
    axes.tick_params(colors=theme.ink, length=0, labelsize=9)
    axes.xaxis.label.set_color(theme.ink)
    axes.yaxis.label.set_color(theme.ink)
    axes.spines["bottom"].set_color(theme.faint)
    return figure, axes


def _png(figure: Any) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    file = io.BytesIO()
    figure.set_dpi(150)
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()
