"""The report of a study: `results.json`, `table.md`, figures and `report.html`, from what the study says they show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightfast._atomic import write_json, write_whole
from lightfast._experiments.provenance import provenance
from lightfast._experiments.report.figures import DARK, LIGHT, Theme
from lightfast._experiments.report.page import Chapter, Facts, Picture, page
from lightfast._experiments.report.tables import Table
from lightfast._experiments.summary import Summary

__all__ = ["Chapter", "Figure", "Report", "train_seconds", "write_report"]


@dataclass(frozen=True)
class Figure:
    """A figure to be drawn on white and on black: its file without `.png`, the bytes for a theme, and it in words."""

    name: str
    draw: Callable[[Theme], bytes]
    description: str


@dataclass(frozen=True)
class Report:
    """What a report shows. `table.md` has its tables in this order; the page has everything.

    Args:
        title: of the page.
        lead: what was found, in a sentence or two.
        summaries: of everything that is compared.
        chapters: tables, figures and texts.
        facts: more to say of how it was made: names, and what belongs to them.
        results: more to keep in `results.json`.
    """

    title: str
    lead: str
    summaries: Sequence[Summary]
    chapters: Sequence[Chapter]
    facts: Sequence[tuple[str, str]] = ()
    results: Mapping[str, Any] = field(default_factory=dict)


def write_report(out: Path, report: Report, settings: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """Write everything into the folder, and return the tables in Markdown."""
    results = {
        **settings,
        **report.results,
        "report": provenance(),
        "train_seconds": round(train_seconds(records), 1),
        "evaluate_seconds": round(sum(record["evaluate_seconds"] for record in records), 1),
        "summary": {summary.name: summary.to_dict() for summary in report.summaries},
        "runs": records,
    }
    write_json(out / "results.json", results)
    tables = [part for chapter in report.chapters for part in chapter.parts if isinstance(part, Table)]
    blocks = [f"{report.title}. {report.lead}", *(text for table in tables for text in (table.caption, str(table)))]
    text = "\n\n".join(blocks) + "\n"
    write_whole(out / "table.md", text.encode())
    facts = [*report.facts, *how_it_was_made(settings, records)]
    chapters = [
        *(Chapter(chapter.heading, [_drawn(part, out) for part in chapter.parts]) for chapter in report.chapters),
        Chapter("How it was made", [Facts(facts)]),
    ]
    write_whole(out / "report.html", page(report.title, report.lead, chapters).encode())
    return text


def _drawn(part: Any, out: Path) -> Any:
    """A figure as a picture, of which the one on white is also a file in the folder."""
    if not isinstance(part, Figure):
        return part
    picture = Picture(part.draw(LIGHT), part.draw(DARK), part.description)
    write_whole(out / f"{part.name}.png", picture.light)
    return picture


def train_seconds(records: Sequence[Mapping[str, Any]]) -> float:
    """How long all trainings took; those that were trained together, once."""
    return sum({(r["provenance"]["command"], r["train_seconds"]): r["train_seconds"] for r in records}.values())


def how_it_was_made(settings: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Recipe, command, commit, versions, machine and date, in words."""
    plan, made = settings["plan"], records[0]["provenance"]
    recipe, machine = plan["recipe"], made["machine"]
    return [
        (
            "Recipe",
            f"{plan['name']}: {recipe['steps']:,} steps of {recipe['batch_size']}, {recipe['optimizer']}, "
            f"lr {recipe['lr']:g}, {recipe['schedule']} schedule, weight decay {recipe['weight_decay']:g}, "
            f"{recipe['precision']}",
        ),
        ("Runs", f"{len(records)}, {train_seconds(records) / 60:.1f} minutes of training"),
        ("Command", made["command"]),
        ("Commit", made["commit"] or "not from a checkout"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in made["versions"].items())),
        ("Machine", ", ".join([machine["system"], f"{machine['cores']} cores", *machine["gpus"]])),
        ("Date", made["date"]),
    ]
