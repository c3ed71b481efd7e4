"""The report of a benchmark: `table.md` and figures, from `results.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightfast._atomic import write_whole
from lightfast._experiments.report.figures import LIGHT, Theme, new_figure, png_of
from lightfast._experiments.report.tables import Rows, markdown
from lightfast._experiments.speed.aims import outcomes
from lightfast._experiments.speed.launches import WAYS
from lightfast._experiments.speed.subjects import SUBJECTS, VARIANTS

_COLORS = {
    "plain": "#8a909c",
    "same-widths": "#b9bec8",
    "straightforward": "#e0892b",
    "ours": "#2f7fdf",
    "fused": "#2aa198",
    "plain-compiled": "#c2528b",
    "ours-compiled": "#6f5bd6",
    "fused-compiled": "#1d6f66",
}

Record = Mapping[str, Any]


def write_speed_report(out: Path, results: Mapping[str, Any]) -> str:
    """Write tables and figures into the folder, and return the tables."""
    results = {**results, "comparisons": sorted(results["comparisons"], key=_place)}
    tables = speed_tables(results)
    write_whole(out / "table.md", tables.encode())
    records = results["comparisons"]
    if records:
        write_whole(out / "ratios.png", ratio_figure(records, results["hardware"]))
    if results["growth"]:
        write_whole(out / "growth.png", growth_figure(results["growth"], results["hardware"]))
    if results["profiles"]:
        write_whole(out / "profile.md", ("\n\n".join(results["profiles"]) + "\n").encode())
    return tables


def _place(record: Record) -> tuple[bool, bool, int, int]:
    """By precision, then by network and batch, in whatever order they were measured; compilers last."""
    networks = list(dict.fromkeys(subject.network for subject in SUBJECTS["cuda"]))
    place = networks.index(record["network"]) if record["network"] in networks else len(networks)
    return record["compiled"], record["precision"] == "float32", place, record["batch"]


def speed_tables(results: Mapping[str, Any]) -> str:
    """Ratios to the plain network, milliseconds, memory, aims, what else was measured, and what could not be."""
    records = results["comparisons"]
    single = [record for record in records if record["batch"] == 1]
    parts = [
        f"{results['hardware']}. Time as a multiple of the conventional network's (`plain`): the median over rounds in "
        "which all variants were timed in turn, and in brackets the quartiles.",
        markdown(_ratio_rows(records, "training")),
        markdown(_ratio_rows([record for record in records if record["batch"] > 1], "inference")),
        "Milliseconds, the median:",
        markdown(_millisecond_rows(records)),
        "Peak memory of a training step, MB, and as a multiple of the conventional network's:",
        markdown(_memory_rows(records)),
        "What was aimed at, and what was measured:",
        markdown(_aim_rows(results)),
    ]
    if results["levers"]:
        first = results["levers"][0]["title"]
        parts += [
            f"What each lever gives: the time of ours without it, as a multiple of the time with all of them; {first}.",
            markdown(_lever_rows(results["levers"])),
        ]
    if results["growth"]:
        parts += [
            "A layer's training step: time grows with the k-th power of",
            markdown(_growth_rows(results["growth"])),
        ]
    if results.get("launches"):
        parts += [
            "Milliseconds, by how kernels are launched, and as a multiple of `plain` launched in the same way:",
            markdown(_launch_rows(results["launches"])),
        ]
    if single:
        parts += [
            "Inference of a single image, as a multiple of the conventional network's:",
            markdown(_ratio_rows(single, "inference", with_time=True)),
        ]
    missing = _missing(results)
    if missing:
        parts += ["Not measured:", "\n".join(f"- {line}" for line in missing)]
    return "\n\n".join(parts) + "\n"


def _shown(records: Sequence[Record], mode: str) -> list[str]:
    """The variants that some record of a mode has, in their order."""
    found = {name for record in records if record["mode"] == mode for name in record["variants"]}
    return [name for name in VARIANTS if name in found]


def _label(record: Record) -> str:
    compiled = ", with compilers" if record["compiled"] else ""
    return f"{record['network']}, {record['batch']} x {record['size']} px, {record['precision']}{compiled}"


def _ratio_rows(records: Sequence[Record], mode: str, with_time: bool = False) -> Rows:
    """The ratios of the variants to the conventional network, perhaps with its time before them."""
    names = [name for name in _shown(records, mode) if name != "plain"]
    rows = [["", "plain, ms", *names] if with_time else [mode.capitalize(), *names]]
    for record in records:
        if record["mode"] == mode and record["variants"]:
            base = [_milliseconds(record["variants"].get("plain"))] if with_time else []
            rows.append([_label(record), *base, *(_ratio(record["variants"].get(name)) for name in names)])
    return rows


def _ratio(variant: Mapping[str, Any] | None) -> str:
    if variant is None or variant["ratio"] is None:
        return ""
    low, middle, high = variant["ratio"]
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def _millisecond_rows(records: Sequence[Record]) -> Rows:
    names = [name for name in VARIANTS if any(name in record["variants"] for record in records)]
    rows = [["", *names]]
    for record in records:
        if record["variants"]:
            times = (_milliseconds(record["variants"].get(name)) for name in names)
            rows.append([f"{_label(record)}, {record['mode']}", *times])
    return rows


def _milliseconds(variant: Mapping[str, Any] | None) -> str:
    """The median, in three digits or more."""
    value = None if variant is None else variant["milliseconds"][1]
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _memory_rows(records: Sequence[Record]) -> Rows:
    training = [record for record in records if record["mode"] == "training" and record["variants"]]
    names = _shown(training, "training")
    rows = [["", *names]]
    for record in training:
        base = record["variants"].get("plain", {}).get("memory")
        cells = []
        for name in names:
            memory = record["variants"].get(name, {}).get("memory")
            share = f" ({memory / base:.2f})" if memory and base and name != "plain" else ""
            cells.append("" if not memory else f"{memory / 1e6:.0f}{share}")
        rows.append([_label(record), *cells])
    return rows


def _aim_rows(results: Mapping[str, Any]) -> Rows:
    """Each aim of each measurement, and whether it is met."""
    rows = [["", "aim", "measured", "met"]]
    for outcome in outcomes(results["device"], results["comparisons"], results.get("launches", ())):
        aim, record = outcome.aim, outcome.record
        label = _label(record) if "compiled" in record else record["title"]
        limit = f"{'≥' if aim.at_least else '≤'} {aim.limit:.2f}"
        met = "yes" if aim.is_met_by(outcome.found) else "no"
        rows.append([f"{label}: {aim.title}", limit, f"{outcome.found:.2f}", met])
    return rows


def _lever_rows(records: Sequence[Record]) -> Rows:
    names = list(dict.fromkeys(name for record in records for name in record["without"] if name != "ours"))
    return [
        ["Without", *(record["mode"] for record in records)],
        *([name, *(_ratio(record["without"].get(name)) for record in records)] for name in names),
    ]


def _launch_rows(records: Sequence[Record]) -> Rows:
    return [
        ["", *WAYS],
        *(
            [f"{record['title']}: {record['mode']}, {name}", *(_launched(ways.get(way), name) for way in WAYS)]
            for record in records
            for name, ways in record["variants"].items()
        ),
    ]


def _launched(way: Mapping[str, Any] | None, name: str) -> str:
    times = _milliseconds(way)
    return times if way is None or name == "plain" else f"{times} ({way['to_plain'][1]:.2f})"


def _growth_rows(records: Sequence[Record]) -> Rows:
    return [
        ["", "from", "to", "k, plain", "k, ours", "ours / plain at the end"],
        *(
            [
                record["axis"],
                f"{record['values'][0]:,}",
                f"{record['values'][-1]:,}",
                f"{record['exponent']['plain']:.2f}",
                f"{record['exponent']['ours']:.2f}",
                f"{record['milliseconds']['ours'][-1][1] / record['milliseconds']['plain'][-1][1]:.2f}",
            ]
            for record in records
        ),
    ]


def _missing(results: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{_label(record)}, {record['mode']}, {name}: {reason}"
        for record in results["comparisons"]
        for name, reason in record["failed"].items()
    ]
    return [*lines, *results["skipped"]]


def ratio_figure(records: Sequence[Record], title: str, theme: Theme = LIGHT) -> bytes:
    """A bar for each variant: its time as a multiple of the plain network's, with the quartiles; two panels."""
    shown = [record for record in records if "plain" in record["variants"]]
    rows = max(sum(record["mode"] == mode for record in shown) for mode in ("training", "inference"))
    figure, panels = new_figure((11, 0.5 + 0.95 * max(rows, 2)), theme, columns=2)
    names: dict[str, None] = {}
    for axes, mode in zip(panels, ("training", "inference"), strict=True):
        rows = [record for record in shown if record["mode"] == mode]
        place, ticks = 0.0, []
        for record in rows:
            drawn = [name for name in VARIANTS if name != "plain" and name in record["variants"]]
            ticks.append((place + (len(drawn) - 1) / 2, _label(record)))
            for name in drawn:
                low, middle, high = record["variants"][name]["ratio"]
                axes.barh(place, middle, color=_COLORS[name], height=0.82)
                axes.plot([low, high], [place, place], color=theme.ink, linewidth=1, solid_capstyle="butt")
                # On the paper's own color, since the line at 1 goes through some.
                axes.annotate(
                    f"{middle:.2f}", (max(middle, high), place), (4, 0), textcoords="offset points", va="center",
                    fontsize=7, color=theme.ink, bbox={"facecolor": theme.paper, "edgecolor": "none", "pad": 0.6},
                )  # fmt: skip
                names[name] = None
                place += 1
            place += 0.8
        axes.axvline(1, color=theme.ink, linewidth=1)
        axes.set_ylim(place - 0.5, -0.7)
        axes.set_yticks(
            [tick for tick, _ in ticks], [label.replace(" px, ", " px\n") for _, label in ticks], fontsize=8
        )
        axes.set_xlabel(f"{mode} time / the conventional network's")
        axes.grid(axis="x", color=theme.faint, linewidth=0.8)
        axes.set_axisbelow(True)
    handles = [panels[0].barh([0], [0], color=_COLORS[name], label=name) for name in VARIANTS if name in names]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False, labelcolor=theme.ink
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=theme.ink)
    return png_of(figure)


def growth_figure(records: Sequence[Record], title: str, theme: Theme = LIGHT) -> bytes:
    """Milliseconds of a layer's training step along each axis, plain and ours, with the quartiles as bands."""
    figure, panels = new_figure((11, 3.1), theme, columns=len(records))
    for axes, record in zip(panels, records, strict=True):
        for who in ("plain", "ours"):
            low, middle, high = zip(*record["milliseconds"][who], strict=True)
            axes.plot(record["values"], middle, marker="o", markersize=4, color=_COLORS[who], label=who)
            axes.fill_between(record["values"], low, high, color=_COLORS[who], alpha=0.2, linewidth=0)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0, top=1.15 * max(row[2] for rows in record["milliseconds"].values() for row in rows))
        axes.set_xlabel(record["axis"])
        axes.grid(axis="y", color=theme.faint, linewidth=0.8)
    panels[0].set_ylabel("ms a training step")
    panels[0].legend(fontsize=9, frameon=False, labelcolor=theme.ink)
    figure.suptitle(f"{title}: one layer, convolution to ReLU", x=0.01, ha="left", fontsize=11, color=theme.ink)
    return png_of(figure)
