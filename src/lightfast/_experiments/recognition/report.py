"""The report of a comparison of strategies: `results.json`, `table.md`, three figures and `report.html`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lightfast._atomic import write_json, write_whole
from lightfast._experiments.provenance import provenance
from lightfast._experiments.recognition.examples import Example, collect_examples
from lightfast._experiments.recognition.pictures import Pictures
from lightfast._experiments.recognition.published import Published, published_for
from lightfast._experiments.recognition.study import finished_runs, run_folder
from lightfast._experiments.recognition.summary import StrategySummary, summarize
from lightfast._experiments.report.figures import DARK, LIGHT, error_figure, examples_figure, varying_figure
from lightfast._experiments.report.page import Facts, Picture, Section, Table, page
from lightfast._experiments.report.tables import SHOWN, Rows, curve_rows, markdown, summary_rows, varying_rows
from lightfast._pipelines.classifier import Classifier

__all__ = ["write_report"]

_OURS = (
    "equivariant",
    "group-dropout",
    "wrapped",
    "wrapped-plane",
    "wrapped-quadratic",
    "equivariant-pixel",
    "group-fill",
    "equivariant-free",
    "free-group-fill",
)
_VARYING = (
    "Test error, %, and its standard deviation over seeds if there are several, under light of saturation 0.9 that is "
    "the same everywhere, turns from one hue into another (evenly in log or in linear light), falls on a spot, has a "
    "soft shadow, or a hard edge."
)


def write_report(out: Path, pictures: Pictures, device: torch.device) -> str:
    """Write everything from the finished runs in a folder, and return the table.

    Args:
        out: the folder of the comparison.
        pictures: the ones it was made with, for the examples.
        device: where to compute the examples.
    """
    records = finished_runs(out)
    if not records:
        raise ValueError(f"{out} has no finished runs to report on")
    settings = json.loads((out / "settings.json").read_text(encoding="utf-8"))
    summaries = summarize(records)
    write_json(out / "results.json", _results(out, settings, records, summaries))
    table = _markdown(settings, summaries)
    write_whole(out / "table.md", table.encode())
    errors = [error_figure(summaries, _title(settings), theme) for theme in (LIGHT, DARK)]
    write_whole(out / "errors.png", errors[0])
    varying = []
    if varying_rows(summaries):
        varying = [varying_figure(summaries, _title(settings), theme) for theme in (LIGHT, DARK)]
        write_whole(out / "varying.png", varying[0])
    examples = _examples(out, pictures, device)
    shown = [examples_figure(examples, theme) for theme in (LIGHT, DARK)] if examples else []
    if shown:
        write_whole(out / "examples.png", shown[0])
    html = _page(settings, records, summaries, errors, varying, shown)
    write_whole(out / "report.html", html.encode())
    return table


def _examples(out: Path, pictures: Pictures, device: torch.device) -> list[Example]:
    folders = [run_folder(out, (name, 0)) for name in ("original", "equivariant")]
    if not all((folder / "model.safetensors").exists() for folder in folders):
        return []
    original, equivariant = (Classifier.load(folder) for folder in folders)
    return collect_examples(original, equivariant, pictures.test_images, pictures.test_labels, device=device)


def _results(
    out: Path, settings: dict[str, Any], records: Sequence[dict[str, Any]], summaries: Sequence[StrategySummary]
) -> dict[str, Any]:
    together = {(record["provenance"]["command"], record["train_seconds"]): record for record in records}
    jitter = out / "jitter.json"
    return {
        **settings,
        "report": provenance(),
        "train_seconds": round(sum(record["train_seconds"] for record in together.values()), 1),
        "evaluate_seconds": round(sum(record["evaluate_seconds"] for record in records), 1),
        "jitter": json.loads(jitter.read_text(encoding="utf-8")) if jitter.exists() else None,
        "summary": {
            summary.name: {
                "title": summary.title,
                "parameters": summary.parameters,
                "seeds": summary.seeds,
                "saturations": summary.saturations,
                "mean": [round(error.mean, 4) for error in summary.errors],
                "spread": [None if error.spread is None else round(error.spread, 4) for error in summary.errors],
                "mixed_mean": round(summary.mixed.mean, 4),
                "mixed_spread": None if summary.mixed.spread is None else round(summary.mixed.spread, 4),
                "varying": {
                    kind: {
                        "mean": round(error.mean, 4),
                        "spread": None if error.spread is None else round(error.spread, 4),
                    }
                    for kind, error in summary.varying.items()
                },
            }
            for summary in summaries
        },
        "runs": records,
    }


def _title(settings: dict[str, Any]) -> str:
    return f"{settings['data']}, {settings['plan']['model']}, {settings['plan']['recipe']['steps']:,} steps"


def _markdown(settings: dict[str, Any], summaries: Sequence[StrategySummary]) -> str:
    parts = [
        f"{_title(settings)}: test error in per cent under light of saturation S and random hue, and under light that "
        "varies over the image (a gradient between two lights of saturation 0.9)"
        + (", mean ± standard deviation over seeds." if any(summary.seeds > 1 for summary in summaries) else "."),
        markdown(summary_rows(summaries)),
        "At every saturation:",
        markdown(curve_rows(summaries)),
    ]
    published = published_for(settings)
    if published is not None:
        parts += [f"Published (Cotogni and Cusano 2022), {published.title}:", markdown(_published_rows(published))]
    if varying_rows(summaries):
        parts += [_VARYING, markdown(varying_rows(summaries))]
    return "\n\n".join(parts) + "\n"


def _published_rows(published: Published) -> Rows:
    return [
        ["Strategy", *(f"S = {saturation:g}" for saturation in SHOWN)],
        *(
            [title, *(f"{errors[saturation]:.2f}" if saturation in errors else "" for saturation in SHOWN)]
            for title, errors in published.errors.items()
        ),
    ]


def _page(
    settings: dict[str, Any],
    records: Sequence[dict[str, Any]],
    summaries: Sequence[StrategySummary],
    errors: Sequence[bytes],
    varying: Sequence[bytes],
    shown: Sequence[bytes],
) -> str:
    strong = tuple(number for number, summary in enumerate(summaries, start=1) if summary.name in _OURS)
    description = "; ".join(
        f"{summary.title}: {summary.at(0.0).mean:.1f} % in white light, {summary.at(1.0).mean:.1f} % at saturation 1"
        for summary in summaries
    )
    sections = [
        Section(
            "Error over the saturation of the light",
            [
                Picture(errors[0], errors[1], description),
                Table(
                    summary_rows(summaries),
                    "Test error, %, and its standard deviation over seeds if there are several. Varying light is a "
                    "gradient between two lights of saturation 0.9.",
                    strong,
                ),
            ],
        )
    ]
    if varying:
        rows = varying_rows(summaries)
        ours = {summary.title for summary in summaries if summary.name in _OURS}
        marked = tuple(number for number, row in enumerate(rows) if row[0] in ours)
        described = "; ".join(", ".join(row) for row in rows)
        sections.append(
            Section(
                "Light that varies over the image",
                [Picture(varying[0], varying[1], described), Table(rows, _VARYING, marked)],
            )
        )
    if shown:
        sections.append(
            Section(
                "The same pictures under other light",
                [
                    "Three test images that show what happens, and the three most probable classes under each light; "
                    "the right one is in bold. How often it happens is in the table above.",
                    Picture(shown[0], shown[1], "Three test images at saturations from 0 to 0.8 with probability bars"),
                ],
            )
        )
    details: list[str | Picture | Table] = [
        Table(curve_rows(summaries), "Mean test error, %, at every saturation.", strong)
    ]
    published = published_for(settings)
    if published is not None:
        caption = f"Published: Cotogni and Cusano, Neurocomputing 502 (2022), {published.title}."
        details.append(Table(_published_rows(published), caption))
    sections += [Section("All numbers", details), Section("How it was made", [Facts(_facts(settings, records))])]
    return page(f"Recognition under colored light: {settings['data']}", _lead(summaries), sections)


def _lead(summaries: Sequence[StrategySummary]) -> str:
    by_name = {summary.name: summary for summary in summaries}
    if not {"original", "equivariant"} <= by_name.keys():
        return "Test error of networks trained in ordinary light, under light of growing saturation and random hue."
    original, equivariant = by_name["original"], by_name["equivariant"]
    return (
        f"Trained in ordinary light, the conventional network goes from {original.at(0.0).mean:.1f} % errors in white "
        f"light to {original.at(0.9).mean:.1f} % in strongly colored light (saturation 0.9); the equivariant one from "
        f"{equivariant.at(0.0).mean:.1f} % to {equivariant.at(0.9).mean:.1f} %."
    )


def _facts(settings: dict[str, Any], records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    made = records[0]["provenance"]
    recipe, plan = settings["plan"]["recipe"], settings["plan"]
    machine = made["machine"]
    seconds = sum({(r["provenance"]["command"], r["train_seconds"]): r["train_seconds"] for r in records}.values())
    return [
        (
            "Pictures",
            f"{settings['data']}: {settings['train_images']:,} to train on, {settings['test_images']:,} to test on",
        ),
        (
            "Recipe",
            f"{plan['name']}: {recipe['steps']:,} steps of {recipe['batch_size']}, {recipe['optimizer']}, "
            f"lr {recipe['lr']:g}, {recipe['schedule']} schedule, weight decay {recipe['weight_decay']:g}",
        ),
        ("Network", f"{plan['model']}, {recipe['precision']}"),
        ("Runs", f"{len(records)}, {seconds / 60:.1f} minutes of training"),
        ("Command", made["command"]),
        ("Commit", made["commit"] or "not from a checkout"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in made["versions"].items())),
        ("Machine", ", ".join([machine["system"], f"{machine['cores']} cores", *machine["gpus"]])),
        ("Date", made["date"]),
    ]
