"""The comparison of variants: for each subject, precision and mode, all of them side by side."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lightfast._experiments.speed.steps import LAYOUTS, PrecisionName, model_of, step_of
from lightfast._experiments.speed.subjects import COMPILED, VARIANTS, Mode, Subject
from lightfast._experiments.speed.timing import Pace, Work, interleaved, peak_memory, quartiles, ratios, rounded


@dataclass(frozen=True)
class Comparison:
    """Variants of a subject, of :data:`VARIANTS`, that are measured together in each of its modes."""

    subject: Subject
    precision: PrecisionName
    variants: tuple[str, ...]

    @property
    def compiled(self) -> bool:
        """Whether a compiler is among them, which takes its time."""
        return any(name in COMPILED for name in self.variants)

    @property
    def title(self) -> str:
        """What users see while it runs."""
        return f"{self.subject.title}, {self.precision}{', compiled' if self.compiled else ''}"


def comparisons(
    subjects: Sequence[Subject], precisions: Sequence[PrecisionName], compiled: bool, variants: Sequence[str] = ()
) -> list[Comparison]:
    """All comparisons, the most telling first: so that a run that is cut short has them.

    Compilers are tried on the first subject alone, at the end. Single images are not given to the straightforward way.
    """
    chosen = [name for name in VARIANTS if not variants or name in variants]
    eager = [name for name in chosen if name not in COMPILED]
    single = [name for name in eager if name != "straightforward"]
    every = [
        Comparison(subject, precision, tuple(single if subject.batch == 1 else eager))
        for precision in precisions
        for subject in subjects
    ]
    compilers = [name for name in chosen if name in COMPILED] if compiled else []
    if compilers:
        every += [Comparison(subjects[0], precision, ("plain", "ours", *compilers)) for precision in precisions]
    return every


def measure(
    comparison: Comparison, device: torch.device, pace: Pace, say: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """Measure a comparison; a record for each mode, as JSON can hold them. The pace is that of a mode, once warm."""
    records = []
    for mode in comparison.subject.modes:
        say(f"{comparison.title}: {mode}")
        records.append(_Bout(comparison, mode, device, pace, say).record())
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return records


class _Bout:
    """One comparison in one mode."""

    def __init__(
        self, comparison: Comparison, mode: Mode, device: torch.device, pace: Pace, say: Callable[[str], None]
    ) -> None:
        self.comparison, self.device, self.pace, self.say = comparison, device, pace, say
        self.mode: Mode = mode
        self.failed: dict[str, str] = {}
        self.layouts: dict[str, str] = {}
        self.memory: dict[str, int] = {}
        self.building: dict[str, float] = {}
        if comparison.compiled:
            # A compiler gives up on code that it has compiled for many networks already.
            torch.compiler.reset()

    def record(self) -> dict[str, Any]:
        works: dict[str, Work] = {}
        for name in self.comparison.variants:
            if name.startswith("fused") and self.mode == "training":
                continue
            start = time.perf_counter()
            try:
                works[name] = self._best(name)
            except Exception as error:
                # Whatever a compiler or a device cannot do is a result too, and goes into the table by its name.
                self.failed[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
                self.say(f"  {name} cannot be measured: {self.failed[name]}")
            self.building[name] = round(time.perf_counter() - start, 1)
        samples = interleaved(works, self.pace)
        base = samples.get("plain")
        subject = self.comparison.subject
        return {
            "title": self.comparison.title,
            "network": subject.network,
            "batch": subject.batch,
            "size": subject.size,
            "precision": self.comparison.precision,
            "mode": self.mode,
            "compiled": self.comparison.compiled,
            "variants": {
                name: {
                    "milliseconds": rounded(quartiles(values), 1000),
                    "ratio": None if base is None else rounded(ratios(values, base)),
                    "memory": self.memory.get(name),
                    "layout": self.layouts[name],
                    "building_seconds": self.building[name],
                    "samples": rounded(values, 1000),
                }
                for name, values in samples.items()
            },
            "failed": self.failed,
        }

    def _best(self, name: str) -> Work:
        """The variant in the memory format in which it is faster."""
        candidates = {
            layout: _work(self.comparison, name, self.mode, layout, self.device) for layout in self._candidates(name)
        }
        layout = next(iter(candidates))
        if len(candidates) > 1:
            works = {layout: work for layout, (work, _) in candidates.items()}
            short = dataclasses.replace(self.pace, seconds=min(1.0, self.pace.seconds), rounds=(1, 4))
            tried = interleaved(works, short)
            layout = min(tried, key=lambda layout: min(tried[layout]))
        work, model = candidates[layout]
        self.layouts[name] = layout
        if self.mode == "training":
            self.memory[name] = peak_memory(work.once, model, self.device)
        return work

    def _candidates(self, name: str) -> tuple[str, ...]:
        # 16-bit convolutions on a GPU are made for channels-last; a compiler chooses its own inside.
        if name in COMPILED or (self.device.type == "cuda" and self.comparison.precision == "bfloat16"):
            return ("channels-last",)
        return tuple(LAYOUTS)


def _work(comparison: Comparison, name: str, mode: Mode, layout: str, device: torch.device) -> tuple[Work, nn.Module]:
    model = model_of(comparison.subject, name, mode, layout, device)
    network: Any = torch.compile(model, fullgraph=True) if name in COMPILED else model
    once = step_of(comparison.subject, comparison.precision, mode, layout, model, network)
    return Work(once, device, graph=device.type == "cuda"), model


def profiled(comparison: Comparison, name: str, layout: str, device: torch.device) -> str:
    """Where the time of a variant's training step goes, as a table.

    Only after everything is measured: on a GPU, launches may be slower once torch's profiler has run.
    """
    work, _ = _work(comparison, name, "training", layout, device)
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        work.seconds(5)
    averages: Any = profiler.key_averages()
    key = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    rows = sorted(averages, key=lambda row: -getattr(row, key))
    total = sum(getattr(row, key) for row in rows)
    lines = [
        f"{comparison.title}, training, {name}: {total / 5000:.3f} ms a step in {len(rows)} operations",
        "",
        "| operation | ms a step | share, % | calls a step |",
        "|:--|--:|--:|--:|",
    ]
    lines += [
        f"| {row.key[:70]} | {getattr(row, key) / 5000:.3f} | {100 * getattr(row, key) / total:.1f} "
        f"| {row.count / 5:g} |"
        for row in rows[:16]
    ]
    return "\n".join(lines)
