"""What sweeps found, in files: a record and a table per library, which grow as networks are tried, and a summary."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from lightfast._atomic import write_json, write_whole
from lightfast._convert.sweep import Row
from lightfast._version import __version__

Record = dict[str, Any]
"""`library`, `versions`, `source`: the commit, the command and the machine; and `networks`: the rows of networks as
mappings, each with the date on which it was tried. All rows of a record are of one commit."""

ENOUGH = 0.6
"""The share of layers that should be constrained in every network."""

EXPORTS = 3.0
"""How many times as long as one export a conversion should take at most."""

ROUNDING = 1e-6
"""Errors below this are rounding, in float64 and over hundreds of layers."""


def versions(library: str) -> dict[str, str]:
    """The versions that a sweep depends on."""
    names = (library.partition(":")[0].partition(".")[0], "torch")
    found = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"lightfast": __version__, "python": platform.python_version()}


def read(folder: Path, library: str, source: Mapping[str, Any]) -> Record:
    """What is known of a library; nothing where the record is missing, of other versions, or of another commit."""
    path = folder / f"{_file_name(library)}.json"
    kept = {key: source[key] for key in ("commit", "command", "machine")}
    new: Record = {"library": library, "versions": versions(library), "source": kept, "networks": []}
    if not path.exists():
        return new
    old: Record = json.loads(path.read_text(encoding="utf-8"))
    same = old["versions"] == new["versions"] and old.get("source", {}).get("commit") == kept["commit"]
    return old if same else new


def add(folder: Path, record: Record, row: Row, order: Iterable[str]) -> None:
    """Write the record with one more row, in the place of an older one of that network, its table and the summary."""
    rows = {old["name"]: old for old in record["networks"]}
    rows[row.name] = asdict(row) | {"date": datetime.now(UTC).date().isoformat()}
    places = {name: place for place, name in enumerate(order)}
    record["networks"] = sorted(rows.values(), key=lambda one: (places.get(one["name"], len(places)), one["name"]))
    folder.mkdir(parents=True, exist_ok=True)
    name = _file_name(record["library"])
    write_json(folder / f"{name}.json", record)
    write_whole(folder / f"{name}.md", table(record).encode())
    write_whole(folder / "table.md", summary(folder).encode())


def summary(folder: Path) -> str:
    """All records of a folder as a table in Markdown, a row per library."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    lines = [
        "| library | tried | convert | measured as proved | at least 60 % of layers constrained | median seconds "
        "| median of seconds / export | at most 3 exports | versions | commit | date |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|---|---|",
    ]
    for record in records:
        rows = [row for row in record["networks"] if row.get("built", True)]
        works = [row for row in rows if row["converts"]]
        measured = [row for row in works if row["error"] is not None]
        ratios = [row["seconds"] / row["export_seconds"] for row in works if row["export_seconds"]]
        dates = sorted({row["date"] for row in rows})
        cells = [
            record["library"],
            len(rows),
            len(works),
            f"{sum(row['error'] < ROUNDING for row in measured)} of {len(measured)}",
            f"{sum(share(row) >= ENOUGH for row in works)} of {len(works)}",
            f"{median(row['seconds'] for row in works):.1f}" if works else "",
            f"{median(ratios):.1f}" if ratios else "",
            f"{sum(ratio <= EXPORTS for ratio in ratios)} of {len(ratios)}",
            ", ".join(f"{name} {number}" for name, number in record["versions"].items()),
            str(record["source"]["commit"])[:8],
            dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def table(record: Record) -> str:
    """A record as a table in Markdown, a row per network."""
    lines = [
        "| network | converts | verdict | layers constrained | error | seconds | one export |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for row in record["networks"]:
        works = row["converts"]
        cells = [
            row["name"],
            "yes" if works else f"no: {row['reason']}",
            ", ".join(row["verdict"]),
            f"{row['constrained']} of {row['layers']}" if works else "",
            "" if row["error"] is None else f"{row['error']:.0e}",
            f"{row['seconds']:.1f}" if row["seconds"] else "",
            f"{row['export_seconds']:.1f}" if row["export_seconds"] else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def share(row: dict[str, Any]) -> float:
    """Of a network's linear layers, those that are constrained."""
    return row["constrained"] / row["layers"] if row["layers"] else 1.0


def _file_name(library: str) -> str:
    return library.replace(":", ".")
