"""Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence

from lightfast._experiments.recognition.evaluation import MIXED_SATURATION, Evaluation
from lightfast._experiments.recognition.summary import StrategySummary

__all__ = ["SHOWN", "VARYING", "curve_rows", "evaluation_table", "markdown", "summary_rows", "varying_rows"]

SHOWN = (0.0, 0.5, 0.8, 0.9, 1.0)
"""The saturations of the short table."""

VARYING: dict[str, str] = {
    "log-gradient": "gradient in log",
    "gradient": "gradient",
    "spot": "spot",
    "shadow": "soft shadow",
    "halves": "hard edge",
}
"""What tables call the kinds of light that varies over the image."""

Rows = list[list[str]]


def markdown(rows: Rows) -> str:
    """A table whose first row is the head; all columns but the first are numbers, set to the right.

    >>> print(markdown([["strategy", "error"], ["original", "8.70"]]))
    | strategy | error |
    |:---------|------:|
    | original |  8.70 |
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        first, *others = (
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join([first, *others])} |"

    rule = "|".join(
        f":{'-' * (widths[0] + 1)}" if column == 0 else f"{'-' * (width + 1)}:" for column, width in enumerate(widths)
    )
    return "\n".join([line(rows[0]), f"|{rule}|", *(line(row) for row in rows[1:])])


def summary_rows(summaries: Sequence[StrategySummary]) -> Rows:
    """Error with its spread at a few saturations and under varying light, parameters, and seeds."""
    head = ["Strategy", *(f"S = {saturation:g}" for saturation in SHOWN), "varying light", "parameters", "seeds"]
    return [
        head,
        *(
            [
                summary.title,
                *(str(summary.at(saturation)) for saturation in SHOWN),
                str(summary.mixed),
                f"{summary.parameters:,}",
                str(summary.seeds),
            ]
            for summary in summaries
        ),
    ]


def curve_rows(summaries: Sequence[StrategySummary]) -> Rows:
    """The mean error at every saturation."""
    return [
        ["Strategy", *(f"{saturation:g}" for saturation in summaries[0].saturations)],
        *([summary.title, *(f"{error.mean:.2f}" for error in summary.errors)] for summary in summaries),
    ]


def varying_rows(summaries: Sequence[StrategySummary]) -> Rows:
    """Error with its spread in white light, under one light and under every kind of light that varies; [] if none was.

    Strategies of which older records are all there is have no row.
    """
    measured = [summary for summary in summaries if set(VARYING) <= set(summary.varying)]
    if not measured:
        return []
    return [
        ["Strategy", "white", "one light", *VARYING.values(), "seeds"],
        *(
            [
                summary.title,
                *(str(summary.at(saturation)) for saturation in (0.0, MIXED_SATURATION)),
                *(str(summary.varying[kind]) for kind in VARYING),
                str(summary.seeds),
            ]
            for summary in measured
        ),
    ]


def evaluation_table(evaluation: Evaluation) -> str:
    """One classifier's errors, as a table."""
    saturations = [f"{saturation:g}" for saturation in evaluation.saturations]
    uniform = markdown([["saturation", *saturations], ["error, %", *(f"{error:.2f}" for error in evaluation.errors)]])
    errors = [f"{evaluation.varying[kind]:.2f}" for kind in VARYING]
    return f"{uniform}\n\n{markdown([['varying light', *VARYING.values()], ['error, %', *errors]])}"
