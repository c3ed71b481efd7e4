"""A study: what is left to do of a comparison, done, and kept in one folder.

The folder has `settings.json`, and a sub-folder of `runs/` for each run, with its model, its log and its record. What
is there already is not done again, so a study can be made in several goes, by several processes. Among processes that
train together all do the same, and one of them writes and speaks.
"""

from __future__ import annotations

import dataclasses
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn

from lightfast._experiments import names_in
from lightfast._experiments.engine import CHECKPOINT, Job, Recipe, Task, holding, seconds_before, train_many
from lightfast._experiments.engine.processes import is_main
from lightfast._experiments.plan import Plan
from lightfast._experiments.provenance import provenance
from lightfast._experiments.records import (
    RECORD,
    Record,
    Run,
    keep_settings,
    read_records,
    run_folder,
    without_tensors,
    write_record,
)
from lightfast._experiments.report import Report, write_report
from lightfast._experiments.summary import Summary
from lightfast._pipelines.pipeline import Pipeline


@dataclass(frozen=True)
class Training:
    """What a run trains.

    Args:
        pipeline: that is measured and saved.
        task: what on.
        recipe: how, but for the seed.
        network: the module to train; the pipeline's `network` by default.
        about: more for the record.
        on_log: see :class:`lightfast._experiments.engine.Job`.
    """

    pipeline: Any
    task: Task
    recipe: Recipe
    network: nn.Module | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    on_log: Callable[[int, Mapping[str, float]], None] | None = None


def option(default: Any, help: str, command: str = "", minimum: int | None = None) -> Any:
    """A field of a study that is an option of its commands too, or of one of them (`reproduce` or `train`)."""
    return field(default=default, metadata={"help": help, "command": command, "minimum": minimum})


@dataclass
class Study(ABC):
    """What to compare, and where. An experiment is a subclass: see :mod:`lightfast._experiments`.

    Args:
        data: what :meth:`load` gave.
        plan: how.
        out: the folder.
        chosen: what is compared, names from :attr:`kinds`.
        seeds: how many trainings of each; numbered from 0.
        only: do these runs alone.
        parallel: how many trainings share a GPU at a time; elsewhere they follow one another.
        resume: go on with trainings that were interrupted.
        seconds: start no more trainings after so long; what is left is done when the study is run again.
        photographs: whether reports may show pictures of the data set.
        half: save weights in 16 bits, where the pipeline can.
        device: where to compute.
        progress: show bars.
        say: told what is done.
        started: when the `seconds` began.
    """

    data: Any
    plan: Any
    out: Path
    chosen: Sequence[str] = ()
    seeds: int = 1
    only: Sequence[Run] | None = None
    parallel: int = 1
    resume: bool = False
    seconds: float | None = None
    photographs: bool = True
    half: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: bool = True
    say: Callable[[str], None] = print
    started: float = field(default_factory=time.monotonic)

    # What an experiment says of itself: see the docstring of the package.
    help: ClassVar[str]
    train_help: ClassVar[str] = ""
    data_help: ClassVar[str]
    needs_data: ClassVar[bool] = False
    noun: ClassVar[str] = "network"
    kinds: ClassVar[Mapping[str, Any]]
    aliases: ClassVar[Mapping[str, Sequence[str]]] = {}
    usual: ClassVar[str] = "all"
    trained: ClassVar[str] = "equivariant"
    plans: ClassVar[Mapping[str, Plan]]
    usual_recipe: ClassVar[str] = "best"
    together: ClassVar[int] = 4
    networks: ClassVar[Sequence[str]] = ()
    pipeline: ClassVar[type[Pipeline]]
    measured: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def load(cls, data: Path | None, options: Mapping[str, Any]) -> Any:
        """The data in a folder, or what the project draws itself; `options` are the experiment's own."""

    @abstractmethod
    def about_data(self) -> dict[str, Any]:
        """What to write down of the data: its name as `data`, and how much there is."""

    @abstractmethod
    def make(self, run: Run, folder: Path) -> Training:
        """What a run trains, fresh."""

    @abstractmethod
    def measure(self, run: Run, pipeline: Any) -> Record:
        """What is measured of a trained pipeline, as JSON can hold it; tensors are kept in a file beside it."""

    @abstractmethod
    def line(self, record: Record) -> str:
        """The main numbers of a record, to tell the user."""

    @abstractmethod
    def report(self, records: Sequence[Record]) -> Report:
        """Tables, curves and pictures."""

    @classmethod
    def takes(cls, pipeline: Any) -> bool:
        """Whether :meth:`evaluate` is for such a pipeline."""
        return isinstance(pipeline, cls.pipeline)

    @classmethod
    def evaluate(
        cls, pipeline: Any, data: Path | None, size: int | None, seed: int, device: torch.device
    ) -> tuple[str, Record]:
        """What is measured of a pipeline on data that it was not trained on, as text and as JSON can hold it."""
        raise ValueError(f"there is no evaluation of a single {cls.pipeline.__name__} yet: use `lightfast reproduce`")

    @classmethod
    def recipes(cls, data: Path | None) -> dict[str, Plan]:
        """The recipes for this data. `quick` is for a first look: `demo` for what the project draws, else a short one.

        Where an experiment has no short one of its own, it is a tenth of the usual one.
        """
        usual = cls.plans[cls.usual_recipe]
        short = dataclasses.replace(usual.with_steps(max(1, usual.recipe.steps // 10)), name="quick")
        quick = cls.plans.get("quick", short)
        return {**cls.plans, "quick": cls.plans.get("demo", quick) if data is None else quick}

    @classmethod
    def choose(cls, text: str) -> list[str]:
        """Names of :attr:`kinds` and :attr:`aliases` as users type them, each once."""
        aliases = {"all": tuple(cls.kinds), **cls.aliases}
        there_are = f"there are {', '.join([*cls.kinds, *aliases])}"
        chosen: list[str] = []
        for name in names_in(text):
            if name not in cls.kinds and name not in aliases:
                raise ValueError(f"there is no {cls.noun} {name!r}; {there_are}")
            chosen += aliases.get(name, (name,))
        if not chosen:
            raise ValueError(f"no {cls.noun} was named; {there_are}")
        return list(dict.fromkeys(chosen))

    @classmethod
    def choose_one(cls, text: str) -> str:
        """Likewise, of one."""
        names = cls.choose(text)
        if len(names) > 1:
            raise ValueError(f"{text!r} names {len(names)} of {', '.join(cls.kinds)}; train one at a time")
        return names[0]

    @classmethod
    def parse_runs(cls, text: str) -> list[Run]:
        """Runs as users type them: NAME:SEED, with commas between them."""
        runs = []
        for part in names_in(text):
            name, _, seed = part.partition(":")
            if name not in cls.kinds or not seed.isdigit():
                names = ", ".join(cls.kinds)
                raise ValueError(f"{part!r} is not {cls.noun.upper()}:SEED, such as {cls.trained}:0; there are {names}")
            runs.append(Run(name, int(seed)))
        return runs

    @classmethod
    def samples(cls, data: Any) -> int:
        """How many samples there are to train on, for recipes whose length depends on it (`Plan.epochs`)."""
        raise ValueError(
            "here a recipe has as many steps, whatever the data: say how many with --steps, not with epochs"
        )

    def parts(self) -> Sequence[Self]:
        """The studies to do, each with its report: this one, unless one command stands for several."""
        return [self]

    def splits(self) -> Sequence[str]:
        """The names of the splits of the data, each of which every kind is trained on."""
        return [""]

    def trains(self) -> Sequence[str]:
        """The kinds to train for those that are compared."""
        return self.chosen

    def keeps_model(self, run: Run) -> bool:
        """Whether the trained pipeline is saved."""
        return True

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes and speaks."""
        return is_main()

    def tell(self, text: str) -> None:
        """Say it, in one of several processes."""
        if self.main:
            self.say(text)

    def settings(self) -> dict[str, Any]:
        """What all runs in a folder have in common."""
        return json.loads(json.dumps({**self.about_data(), "plan": self.plan.to_dict()}))

    def runs(self) -> list[Run]:
        """All runs to do, seed by seed, so that everything has a first result early."""
        if self.only is None:
            pairs = [(kind, seed) for seed in range(self.seeds) for kind in self.trains()]
        else:
            pairs = [(run.kind, run.seed) for run in self.only]
        return [Run(kind, seed, split) for kind, seed in pairs for split in self.splits()]

    def run(self) -> list[Record]:
        """Do what is left to do; the records of all runs in the folder, in the order of tables."""
        keep_settings(self.out, self.settings(), write=self.main)
        records, runs = self.finished(), self.runs()
        left = [run for run in runs if run not in records]
        if len(left) < len(runs):
            self.tell(f"{len(runs) - len(left)} of {len(runs)} runs are in {self.out} already")
        step = self.parallel if self.device.type == "cuda" else 1
        for first in range(0, len(left), step):
            if self.seconds is not None and time.monotonic() - self.started > self.seconds:
                self.tell(f"{len(left) - first} runs are left for another time: {self.seconds:g} s are over")
                break
            chunk = left[first : first + step]
            self.tell(f"training {', '.join(map(str, chunk))}")
            records |= self.train({run: run_folder(self.out, run) for run in chunk})
        return list(self._in_order(records).values())

    def train(self, folders: Mapping[Run, Path], name: str = "model") -> dict[Run, Record]:
        """Train all these runs together; then measure each, and keep model and record in its folder."""
        made = {run: self.make(run, folder) for run, folder in folders.items()}
        jobs = [
            Job(
                training.network or training.pipeline.network,
                training.task,
                dataclasses.replace(training.recipe, seed=run.seed),
                folders[run],
                resume=self.resume,
                on_log=training.on_log,
                name=str(run),
            )
            for run, training in made.items()
        ]
        with ExitStack() as locks:
            for folder in folders.values() if self.main else ():
                folder.mkdir(parents=True, exist_ok=True)
                locks.enter_context(holding(folder))
            seconds = self.train_jobs(jobs)
            return {run: self._finish(run, made[run], folders[run], seconds, len(jobs), name) for run in folders}

    def train_one(self, kind: str, seed: int, name: str = "model") -> str:
        """Train one alone, in the folder itself; what to tell the user at the end."""
        if (self.out / RECORD).exists():
            trained = f"trained {self.pipeline.__name__.lower()}"
            raise ValueError(f"{self.out} holds a {trained} already: name another folder with --out, or delete it")
        keep_settings(self.out, self.settings(), write=self.main)
        self.train({Run(kind, seed): self.out}, name)
        return f"written: {self.out / name}.safetensors and {self.out / name}.json"

    def train_jobs(self, jobs: Sequence[Job]) -> float:
        """Train them, as many together as share a GPU; how many seconds it took."""
        start = time.monotonic() - seconds_before(jobs)
        for first in range(0, len(jobs), self.parallel):
            train_many(jobs[first : first + self.parallel], device=self.device, progress=self.progress)
        return time.monotonic() - start

    def _finish(self, run: Run, made: Training, folder: Path, seconds: float, together: int, name: str) -> Record:
        start = time.monotonic()
        measured = self.measure(run, made.pipeline)
        record = {
            self.noun: run.kind,
            "title": self.kinds[run.kind].title,
            "seed": run.seed,
            **({"split": run.split} if run.split else {}),
            "parameters": sum(parameter.numel() for parameter in self._network(made).parameters()),
            **made.about,
            "steps": made.recipe.steps,
            "train_seconds": round(seconds, 1),
            "trained_together": together,
            **measured,
            "evaluate_seconds": round(time.monotonic() - start, 1),
            "provenance": provenance(),
        }
        # As it will be read again.
        record |= json.loads(json.dumps(without_tensors(record)))
        if self.main:
            if self.keeps_model(run):
                made.pipeline.save(folder, name, half=self.half)
            write_record(folder, record)
            (folder / CHECKPOINT).unlink(missing_ok=True)
        self.tell(f"{run} is done: {self.line(record)}")
        return record

    def _network(self, made: Training) -> nn.Module:
        """What is counted as the network: all of the pipeline that is one."""
        return getattr(made.pipeline, "network", made.pipeline)

    def finished(self) -> dict[Run, Record]:
        """The records in the folder, in the order of tables."""
        return self._in_order(read_records(self.out, self.noun))

    def _in_order(self, records: Mapping[Run, Record]) -> dict[Run, Record]:
        places = {kind: place for place, kind in enumerate(self.kinds)}
        return dict(sorted(records.items(), key=lambda item: (places.get(item[0].kind, len(places)), item[0][1:])))

    def summaries(self, records: Sequence[Record]) -> list[Summary]:
        """What was measured of each kind, over seeds, in the order of records."""
        by_kind: dict[str, list[Record]] = {}
        for record in records:
            by_kind.setdefault(record[self.noun], []).append(record)
        return [
            Summary.of(
                kind,
                # Titles of before may be spelled otherwise.
                self.kinds[kind].title if kind in self.kinds else runs[0]["title"],
                runs[0]["parameters"],
                [{name: run[name] for name in self.measured if name in run} for run in runs],
                self.is_ours(kind),
            )
            for kind, runs in by_kind.items()
        ]

    def is_ours(self, kind: str) -> bool:
        """Whether it is one that the color of the light cannot fool, which tables mark."""
        return getattr(self.kinds.get(kind), "color", None) == "log"

    def write_report(self, records: Sequence[Record]) -> str:
        """Write `results.json`, `table.md`, figures and `report.html` into the folder, and return the tables."""
        if not records:
            raise ValueError(f"{self.out} has no finished runs to report on")
        return write_report(
            self.out, self.report(records), self.settings(), [without_tensors(record) for record in records]
        )
