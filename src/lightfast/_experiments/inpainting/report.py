"""The report of a comparison of inpainting networks: `results.json`, `table.md`, figures and `report.html`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lightfast._atomic import write_json, write_whole
from lightfast._experiments.data.street import HoleImages
from lightfast._experiments.inpainting.evaluation import STABLE_UP_TO, HoleEvaluation, worst_stability
from lightfast._experiments.inpainting.pictures import curves_figure, filled_figure, square_figure
from lightfast._experiments.inpainting.study import inpainting_results
from lightfast._experiments.recognition.study import run_folder
from lightfast._experiments.report.figures import DARK, LIGHT
from lightfast._experiments.report.page import Facts, Picture, Section, Table, page
from lightfast._experiments.report.tables import Rows, markdown
from lightfast._pipelines.inpainter import Inpainter

__all__ = ["PUBLISHED_INPAINTING", "evaluation_table", "inpainting_tables", "write_inpainting_report"]

SHOWN_SATURATIONS = (0.0, 0.3, 0.5, 0.8, 0.9, 1.0)

PUBLISHED_INPAINTING: Rows = [
    ["PSNR, dB", "S = 0", "S = 0.5", "S = 0.9"],
    ["Cotogni and Cusano 2022, original", "17.65", "18.44", "19.05"],
    ["Cotogni and Cusano 2022, equivariant", "17.67", "18.68", "19.78"],
]
"""On the images of `paris_eval`, by networks that were trained on images of Paris that are no longer to be had."""

_EXAMPLES = 3
_STRONG = ("equivariant", "equivariant-free", "wrapped")


def write_inpainting_report(out: Path, images: HoleImages, photographs: bool = True) -> str:
    """Write everything from the finished runs in a folder, and return the table.

    Args:
        out: the folder of the study.
        images: the ones it was made with.
        photographs: whether to show images of a data set of photographs; drawn ones always are.
    """
    results = inpainting_results(out)
    write_json(out / "results.json", results)
    table = inpainting_tables(results)
    write_whole(out / "table.md", table.encode())
    tests = list(results["networks"][next(iter(results["networks"]))]["tests"])
    curves = {test: [curves_figure(results, test, theme) for theme in (LIGHT, DARK)] for test in tests}
    for number, (light, _) in enumerate(curves.values()):
        write_whole(out / ("psnr.png" if number == 0 else f"psnr-{number + 1}.png"), light)
    models = _models(out) if photographs or not images.photographs else {}
    pictures: dict[str, list[bytes]] = {}
    if models:
        shown = next(iter(images.tests.values()))
        few = shown[torch.linspace(0, len(shown) - 1, _EXAMPLES + 2).long()[1:-1]].float() / 255
        pictures["filled"] = [filled_figure(models, few, theme) for theme in (LIGHT, DARK)]
        pictures["square"] = [square_figure(models, few[1], theme) for theme in (LIGHT, DARK)]
        for name, (light, _) in pictures.items():
            write_whole(out / f"{name}.png", light)
    write_whole(out / "report.html", _page(results, curves, pictures).encode())
    return table


def inpainting_tables(results: Mapping[str, Any]) -> str:
    """The tables of a study, in Markdown."""
    parts = [
        f"{_title(results)}. A hole of 50x50 pixels in images of 128x128, under light of saturation S and random hue; "
        "all numbers are over the missing pixels alone, of sRGB values in [0, 1]."
    ]
    for test in _tests(results):
        parts += [
            f"{test}: PSNR in dB, and pattern stability up to S = {STABLE_UP_TO:g}:",
            markdown(_rows(results, test)),
        ]
    for test in _tests(results):
        parts += [f"{test}, every saturation:", markdown(_curve_rows(results, test))]
    if results["data"] == "street128":
        parts += ["Published, Paris Street View:", markdown(PUBLISHED_INPAINTING)]
    return "\n\n".join(parts) + "\n"


def evaluation_table(found: HoleEvaluation) -> str:
    """What was measured of one inpainter on a set of images, as a table."""
    rows: Rows = [["saturation", *(f"{saturation:g}" for saturation in found.saturations)]]
    for title, numbers in (
        ("PSNR, dB", found.psnr),
        ("L1, %", found.l1),
        ("L2, %", found.l2),
        ("stability, dB", found.stability),
    ):
        rows.append([title, *("" if number is None else f"{number:.2f}" for number in numbers)])
    return markdown(rows)


def _tests(results: Mapping[str, Any]) -> list[str]:
    return list(next(iter(results["networks"].values()))["tests"])


def _rows(results: Mapping[str, Any], test: str) -> Rows:
    head = ["Network", *(f"S = {s:g}" for s in SHOWN_SATURATIONS), "L1, %", "L2, %", "stability", "parameters", "seeds"]
    rows: Rows = [head]
    for network in results["networks"].values():
        found = network["tests"][test]
        places = [found["saturations"].index(saturation) for saturation in SHOWN_SATURATIONS]
        rows.append(
            [
                network["title"],
                *(_with_spread(found, "psnr", place) for place in places),
                _with_spread(found, "l1", 0),
                _with_spread(found, "l2", 0),
                f"{worst_stability(found['saturations'], found['stability']):.1f}",
                f"{network['parameters']:,}",
                str(network["seeds"]),
            ]
        )
    return rows


def _with_spread(found: Mapping[str, Any], kind: str, place: int) -> str:
    number = f"{found[kind][place]:.2f}"
    return f"{number} ± {found[f'{kind}_spread'][place]:.2f}" if f"{kind}_spread" in found else number


def _curve_rows(results: Mapping[str, Any], test: str) -> Rows:
    first = next(iter(results["networks"].values()))["tests"][test]
    rows: Rows = [["S", *(f"{saturation:g}" for saturation in first["saturations"])]]
    for kind, title in (("psnr", "PSNR"), ("l1", "L1, %"), ("l2", "L2, %"), ("stability", "stability")):
        for network in results["networks"].values():
            numbers = network["tests"][test][kind]
            rows.append(
                [f"{title}, {network['title']}", *("" if number is None else f"{number:.2f}" for number in numbers)]
            )
    return rows


def _models(out: Path) -> dict[str, Inpainter]:
    """The first run's models to show: the original and the equivariant ones that are there; none without either."""
    folders = {name: run_folder(out, (name, 0)) for name in ("original", "equivariant", "equivariant-free")}
    there = {name: folder for name, folder in folders.items() if (folder / "model.safetensors").exists()}
    if "original" not in there or len(there) < 2:
        return {}
    return {name: Inpainter.load(folder) for name, folder in there.items()}


def _page(
    results: Mapping[str, Any], curves: Mapping[str, Sequence[bytes]], pictures: Mapping[str, Sequence[bytes]]
) -> str:
    strong = tuple(number for number, name in enumerate(results["networks"], start=1) if name in _STRONG)
    sections = [
        Section(
            f"{test}: over the saturation of the light",
            [
                Picture(light, dark, _description(results, test)),
                Table(
                    _rows(results, test),
                    "PSNR in dB of the missing pixels, L1 and L2 at S = 0, and the lowest pattern stability in dB up "
                    f"to S = {STABLE_UP_TO:g}. With several seeds, their mean and standard deviation.",
                    strong,
                ),
            ],
        )
        for test, (light, dark) in curves.items()
    ]
    if pictures:
        sections += [
            Section(
                "The same images under other light",
                [
                    Picture(
                        *_pair(pictures["filled"]), "Images under growing saturation, cut, and filled by both networks"
                    )
                ],
            ),
            Section(
                "Relight, then fill; fill, then relight",
                [
                    "For the equivariant network the order does not matter.",
                    Picture(*_pair(pictures["square"]), "An image filled and relit in both orders, and the difference"),
                ],
            ),
        ]
    numbers: list[str | Picture | Table | Facts] = [
        Table(_curve_rows(results, test), f"{test}, at every saturation.") for test in _tests(results)
    ]
    if results["data"] == "street128":
        numbers.append(Table(PUBLISHED_INPAINTING, "Published, on the images of Paris Street View."))
    sections += [Section("All numbers", numbers), Section("How it was made", [Facts(_facts(results))])]
    return page(f"Inpainting under colored light: {results['data']}", _lead(results), sections)


def _pair(images: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The picture on white, and on black."""
    light, dark = images
    return light, dark


def _description(results: Mapping[str, Any], test: str) -> str:
    return "; ".join(
        f"{network['title']}: PSNR {network['tests'][test]['psnr'][0]:.2f} dB in white light, stability at least "
        f"{worst_stability(network['tests'][test]['saturations'], network['tests'][test]['stability']):.0f} dB"
        for network in results["networks"].values()
    )


def _lead(results: Mapping[str, Any]) -> str:
    return (
        "Networks that fill a hole in an image, trained in ordinary light and used under light of growing saturation. "
        "Pattern stability says whether they fill in the same under another light: it is the PSNR between what is "
        "filled in in white light and in colored light, once the color of the light is divided out."
    )


def _title(results: Mapping[str, Any]) -> str:
    return f"{results['data']}, {results['plan']['model']}, {results['plan']['recipe']['steps']:,} steps"


def _facts(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    plan, made = results["plan"], results["runs"][0]["provenance"]
    recipe, machine = plan["recipe"], made["machine"]
    tests = ", ".join(f"{count:,} of {name}" for name, count in results["test_images"].items())
    return [
        ("Images", f"{results['data']}: {results['train_images']:,} to train on; to test on {tests}"),
        (
            "Recipe",
            f"{plan['name']}: {recipe['steps']:,} steps of {recipe['batch_size']}, {recipe['optimizer']}, "
            f"lr {recipe['lr']:g}, betas {recipe['betas'][0]:g} and {recipe['betas'][1]:g}, {recipe['schedule']} "
            "schedule",
        ),
        (
            "Loss",
            f"{1 - plan['adversarial']:g} squared error of sRGB values, times {plan['border']:g} on the border, and "
            f"{plan['adversarial']:g} adversarial",
        ),
        ("Network", f"{plan['model']}, {recipe['precision']}; log RGB with softness {plan['softness']:g}"),
        ("Runs", f"{len(results['runs'])}, {results['train_seconds'] / 60:.1f} minutes of training"),
        ("Command", made["command"]),
        ("Commit", made["commit"] or "not from a checkout"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in made["versions"].items())),
        ("Machine", ", ".join([machine["system"], f"{machine['cores']} cores", *machine["gpus"]])),
        ("Date", made["date"]),
    ]
