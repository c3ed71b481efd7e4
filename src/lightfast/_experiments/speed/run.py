"""A whole benchmark: what was asked for, measured one after another, and written down after each."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lightfast._atomic import write_json
from lightfast._experiments.provenance import provenance
from lightfast._experiments.speed.compare import Comparison, comparisons, measure, profiled
from lightfast._experiments.speed.growth import growth
from lightfast._experiments.speed.launches import LAUNCHED, launches
from lightfast._experiments.speed.levers import levers
from lightfast._experiments.speed.report import write_speed_report
from lightfast._experiments.speed.steps import PrecisionName
from lightfast._experiments.speed.subjects import LARGE, SUBJECTS, VARIANTS, Subject, parse_subject
from lightfast._experiments.speed.timing import Pace

_EXTRAS = ("levers", "launches", "growth")
_COMPILE_SECONDS = {"cuda": 100.0, "cpu": 120.0}


@dataclass(frozen=True)
class Request:
    """What to measure, as the options of `lightfast bench` say it, in words there.

    `precisions` are in the order in which to measure. Where `networks` or `variants` are none, all are measured;
    `plain` always is, and with a compiler `ours`.
    """

    device: torch.device
    out: Path
    json: Path | None = None
    networks: Sequence[str] = ()
    precisions: Sequence[PrecisionName] = ("float32", "bfloat16")
    variants: Sequence[str] = ()
    seconds: float = 1800.0
    each: float = 5.0
    compiled: bool = True
    growth: bool = True
    levers: bool = True
    launches: bool = True
    profile: bool = False
    processor_time: bool = False
    resume: bool = False


def run(request: Request, say: Callable[[str], None] = print) -> str:
    """Measure, write `results.json`, tables and figures, and return the tables."""
    plan = _plan(request)
    start = time.monotonic()
    path = request.json or request.out / "results.json"
    results = _begin(request, path)
    request.out.mkdir(parents=True, exist_ok=True)
    clock = time.process_time if request.processor_time else time.perf_counter
    pace = Pace(request.each, (5, 25) if request.device.type == "cuda" else (4, 25), clock=clock)
    done = {record["title"] for record in results["comparisons"]} | {name for name in _EXTRAS if results[name]}
    tables = _write(request.out, path, results)
    with _fastest_convolutions():
        for part in plan:
            title = part if isinstance(part, str) else part.title
            if title in done:
                continue
            compiled = isinstance(part, Comparison) and part.compiled
            needed = _COMPILE_SECONDS[request.device.type] if compiled else 0.0
            if time.monotonic() - start + needed > request.seconds:
                results["skipped"].append(f"{title}: there was no time left ({request.seconds:g} s in all)")
            elif isinstance(part, Comparison):
                # Each says which of the runs it is from, since code may change between them.
                made = {"run": len(results["runs"]) - 1}
                results["comparisons"] += [{**record, **made} for record in measure(part, request.device, pace, say)]
            elif part == "growth":
                say("growth with batch, pixels, channels and groups")
                results["growth"] = growth(request.device, pace)
            elif part == "levers":
                say("what each lever gives")
                results[part] = levers(_subjects(plan)[0], request.precisions[0], request.device, pace)
            else:
                say("what launching kernels costs")
                subjects = [subject for subject in LAUNCHED if subject in _subjects(plan)]
                results[part] = launches(subjects, request.precisions[0], request.device, pace)
            results["runs"][-1]["seconds"] = round(time.monotonic() - start, 1)
            # After each part, so that a run that is stopped leaves what it has.
            tables = _write(request.out, path, results)
        if request.profile:
            for part, name, layout in _to_profile(plan, results):
                say(f"where the time of {part.title}, {name}, goes")
                results["profiles"].append(profiled(part, name, layout, request.device))
                tables = _write(request.out, path, results)
    return tables


def _plan(request: Request) -> list[Comparison | str]:
    """Everything to do in order; what is no comparison, by its name."""
    kind = request.device.type
    if request.processor_time and (kind != "cpu" or torch.get_num_threads() > 1):
        raise ValueError("processor time is for one thread on the CPU: set OMP_NUM_THREADS=1 and use --device cpu")
    if not request.precisions:
        raise ValueError("no precision was named: there are float32 and bfloat16")
    for name in request.precisions:
        if name not in ("float32", "bfloat16"):
            raise ValueError(f"a precision is float32 or bfloat16, not {name!r}")
    unknown = [name for name in request.variants if name not in VARIANTS]
    if unknown:
        raise ValueError(f"there is no variant {', '.join(unknown)}; there are {', '.join(VARIANTS)}")
    subjects = [subject for text in request.networks for subject in parse_subject(text, kind)]
    variants = ("plain", *request.variants) if request.variants else ()
    every = comparisons(subjects or SUBJECTS[kind], request.precisions, request.compiled, variants)
    large = comparisons(() if subjects else LARGE[kind], request.precisions, False, variants)
    first = sum(part.precision == request.precisions[0] and not part.compiled for part in every)
    extras = [name for name in _EXTRAS if getattr(request, name) and (name != "launches" or kind == "cuda")]
    return [*every[:first], *extras, *every[first:], *large]


def _to_profile(plan: Sequence[Comparison | str], results: Mapping[str, Any]) -> list[tuple[Comparison, str, str]]:
    """Plain and ours of each comparison whose training was measured, with their memory formats; no compilers."""
    measured = {
        record["title"]: record["variants"] for record in results["comparisons"] if record["mode"] == "training"
    }
    return [
        (part, name, measured[part.title][name]["layout"])
        for part in plan
        if isinstance(part, Comparison) and not part.compiled
        for name in ("plain", "ours")
        if name in measured.get(part.title, {})
        and not any(text.startswith(f"{part.title}, training, {name}:") for text in results["profiles"])
    ]


def _subjects(plan: Sequence[Comparison | str]) -> list[Subject]:
    """What is compared, in order."""
    return [part.subject for part in plan if isinstance(part, Comparison)]


def _begin(request: Request, path: Path) -> dict[str, Any]:
    """Results without measurements, or those of before."""
    where = _hardware(request.device)
    if request.device.type == "cpu":
        where += f", {torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
        where += ", processor time" if request.processor_time else ""
    made_by = {**provenance(), "seconds": 0.0}
    if request.resume and path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
        if results["hardware"] != where:
            raise ValueError(f"{path} was measured on {results['hardware']}, and this is {where}: name another folder")
        results["runs"].append(made_by)
        results["skipped"] = []
        return {**{name: [] for name in _EXTRAS}, **results, "device": request.device.type}
    if path.exists():
        raise ValueError(f"{path} is there already: go on with --resume, or name another folder with --out")
    empty: dict[str, Any] = {"comparisons": [], **{name: [] for name in _EXTRAS}, "profiles": [], "skipped": []}
    return {"hardware": where, "device": request.device.type, "variants": VARIANTS, "runs": [made_by], **empty}


def _write(out: Path, path: Path, results: dict[str, Any]) -> str:
    write_json(path, results)
    return write_speed_report(out, results)


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Let cuDNN look for the fastest kernels, as training does."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
