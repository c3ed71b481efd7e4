"""The comparison of strategies: train each with each seed, evaluate, and keep everything in one folder.

The folder has a sub-folder of `runs/` for each pair of strategy and seed, with the model and its evaluation in it. What
is there already is not done again, so a comparison can be made in several goes, by several processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lightfast._atomic import write_json
from lightfast._experiments.engine import is_main
from lightfast._experiments.recognition.pictures import Pictures
from lightfast._experiments.recognition.plans import Plan
from lightfast._experiments.recognition.strategies import STRATEGIES, Strategy
from lightfast._experiments.recognition.workshop import RECORD, Pair, Workshop

__all__ = [
    "Study",
    "check_settings",
    "finished_runs",
    "keep_settings",
    "parse_pairs",
    "read_records",
    "reproduce",
    "run_folder",
]


@dataclass(frozen=True)
class Study:
    """What to compare, and where.

    Args:
        pictures: to train and test on.
        plan: how.
        strategies: what is compared.
        seeds: how many trainings of each; numbered from 0.
        out: the folder.
        only: do these pairs alone.
        parallel: how many trainings share the device at a time, where that is possible.
        resume: go on with trainings that were interrupted.
        device: where to compute.
        progress: show bars and say what is done.
    """

    pictures: Pictures
    plan: Plan
    strategies: Sequence[Strategy]
    seeds: int
    out: Path
    only: Sequence[Pair] | None = None
    parallel: int = 4
    resume: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: bool = True

    def pairs(self) -> list[Pair]:
        """All pairs to do, seed by seed, so that all strategies have a first result early."""
        every = [(strategy.name, seed) for seed in range(self.seeds) for strategy in self.strategies]
        return every if self.only is None else list(self.only)


def parse_pairs(text: str, known: Collection[str] = tuple(STRATEGIES)) -> list[Pair]:
    """Pairs as users type them, of a name that is known and a seed.

    >>> parse_pairs("original:0,equivariant:1")
    [('original', 0), ('equivariant', 1)]
    """
    pairs: list[Pair] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, seed = part.partition(":")
        if name not in known or not seed.isdigit():
            raise ValueError(f"{part!r} is not STRATEGY:SEED, such as equivariant:0; strategies are {', '.join(known)}")
        pairs.append((name, int(seed)))
    return pairs


def reproduce(study: Study, say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Do what is left to do of the study, and return the records of all runs in its folder, old ones too."""
    check_settings(study.out, study.pictures, study.plan)
    pairs = study.pairs()
    left = [pair for pair in pairs if not (run_folder(study.out, pair) / RECORD).exists()]
    if len(left) < len(pairs):
        say(f"{len(pairs) - len(left)} of {len(pairs)} runs are in {study.out} already")
    workshop = Workshop(
        study.pictures, study.plan, study.out, study.parallel, study.resume, study.device, study.progress, say
    )
    for first in range(0, len(left), study.parallel):
        chunk = left[first : first + study.parallel]
        say(f"training {', '.join(f'{name}:{seed}' for name, seed in chunk)}")
        workshop.run({pair: run_folder(study.out, pair) for pair in chunk})
    return finished_runs(study.out)


def finished_runs(out: Path) -> list[dict[str, Any]]:
    """The records of the finished runs in a folder, by strategy in its usual order and seed."""
    order = list(STRATEGIES)
    return sorted(read_records(out), key=lambda record: (order.index(record["strategy"]), record["seed"]))


def read_records(out: Path) -> list[dict[str, Any]]:
    """The records of the finished runs in a folder, as they come."""
    records = []
    for path in out.glob(f"runs/*/{RECORD}"):
        try:
            records.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(
                f"{path} is not the record of a run ({error}): delete it, and the run is done again"
            ) from None
    return records


def run_folder(out: Path, pair: Pair) -> Path:
    """Where a run's model, record and log are."""
    return out / "runs" / f"{pair[0]}-{pair[1]}"


def check_settings(out: Path, pictures: Pictures, plan: Plan) -> None:
    """Write down the settings of a comparison in the folder, or see that they are those of before."""
    keep_settings(
        out,
        {
            "data": pictures.name,
            "train_images": len(pictures.train_labels),
            "test_images": len(pictures.test_labels),
            "plan": plan.to_dict(),
        },
    )


def keep_settings(out: Path, settings: Mapping[str, Any]) -> None:
    """Write down settings, which JSON can hold, in the folder, or see that they are those of before.

    Two recipes in one folder would make one table of what cannot be compared.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / "settings.json"
    settings = json.loads(json.dumps(settings))
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = list(differences(before, settings))
        if changed:
            raise ValueError(
                f"{out} holds runs with other settings ({'; '.join(changed)}): name another folder with --out, "
                "or delete this one"
            )
    if is_main():
        write_json(path, settings)


def differences(before: Any, now: Any, name: str = "") -> Iterable[str]:
    """What settings, as JSON holds them, differ in; but for those that do not matter to the result."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            yield from differences(before.get(key), now.get(key), key)
    elif before != now and name not in ("log_every", "checkpoint_every", "graph", "title"):
        yield f"{name} was {before} and is {now}"
