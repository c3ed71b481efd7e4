"""The comparison of illuminant estimators: how they are made, trained on each split, tested and reported on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lightfast._experiments.data.generated_scenes import draw_scenes
from lightfast._experiments.data.lit_scenes import LitScenes
from lightfast._experiments.data.scene_folder import load_scenes
from lightfast._experiments.engine import Job
from lightfast._experiments.illuminant.evaluation import (
    LIT_SATURATIONS,
    added_lights,
    classical_estimates,
    estimates_under_light,
    mean_light,
    measure,
)
from lightfast._experiments.illuminant.plans import NETWORKS, PLANS
from lightfast._experiments.illuminant.protocols import PROTOCOLS, Split, splits_of
from lightfast._experiments.illuminant.report import evaluation_table, illuminant_report
from lightfast._experiments.illuminant.task import IlluminantTask
from lightfast._experiments.plan import scaled
from lightfast._experiments.provenance import provenance
from lightfast._experiments.records import Record, Run
from lightfast._experiments.report import Report
from lightfast._experiments.study import Study, Training, option
from lightfast._experiments.summary import Summary
from lightfast._pipelines.estimator import Estimator
from lightfast.constancy import CLASSICAL
from lightfast.metrics import reproduction_error

__all__ = ["Illuminant"]


@dataclass
class Illuminant(Study):
    """Estimators of the light under a protocol; of a network with parts, these are trained."""

    protocol: str = option("pooled", f"{', '.join(PROTOCOLS)}; or all.", "reproduce")
    tested: str = option(
        "",
        "Data sets that a protocol divides and tests on, comma-separated; the others are added to the training of "
        "every split. All by default.",
        "reproduce",
    )
    members: int = option(1, "How many networks of each kind answer together.", "train", minimum=1)
    classical: dict[str, Tensor] = field(default_factory=dict)
    """What classical estimators say, the same in all protocols: filled when it is first asked for."""

    help = (
        "Compare estimators of the light: train, estimate under added light, measure, write a report for each protocol."
    )
    train_help = "Train an estimator of the light on all images, as `lightfast balance --estimator` takes it."
    data_help = (
        "Linear images with their light: a folder with index.csv and the PNG files or the packed shards that it names, "
        "or a folder of such folders; by default, scenes that lightfast draws itself."
    )
    kinds, plans = NETWORKS, PLANS
    usual = "original,wrapped,equivariant"
    together: ClassVar[int] = 12
    pipeline = Estimator

    @classmethod
    def load(cls, data: Path | None, options: Mapping[str, Any]) -> LitScenes:
        return draw_scenes() if data is None else load_scenes(data)

    def __post_init__(self) -> None:
        """Complain about a protocol that there is none of."""
        if self.protocol not in (*PROTOCOLS, "all"):
            raise ValueError(f"the protocol is one of {', '.join(PROTOCOLS)}, or all; not {self.protocol!r}")

    def parts(self) -> list[Illuminant]:
        """A study for each protocol, in a folder of its own; `all` are those that the data suits."""
        names = list(PROTOCOLS) if self.protocol == "all" else [self.protocol]
        if self.protocol == "all" and len(self.data.set_names) == 1:
            names.remove("leave-one-set-out")
        return [dataclasses.replace(self, protocol=name, out=self.out / name) for name in names]

    def about_data(self) -> dict[str, Any]:
        scenes = self.data
        about = {"data": scenes.name, "images": len(scenes), "cameras": scenes.camera_names}
        return {**about, "protocol": self.protocol, **({"tested": self.tested} if self.tested else {})}

    @property
    def added(self) -> tuple[str, ...]:
        """The data sets that are in the training of every split."""
        tested = names_in(self.tested)
        return tuple(name for name in self.data.set_names if tested and name not in tested)

    @cached_property
    def _scenes(self) -> LitScenes:
        return self.data.to(self.device)

    @cached_property
    def _splits(self) -> dict[str, Split]:
        return {split.name: split for split in splits_of(self.data, self.protocol, tested=names_in(self.tested))}

    def splits(self) -> list[str]:
        return list(self._splits)

    def trains(self) -> list[str]:
        """Parts instead of what they make together, each once."""
        return list(dict.fromkeys(part for name in self.chosen for part in _parts(name)))

    def keeps_model(self, run: Run) -> bool:
        """For the corrected images of the report."""
        return run.kind in ("original", "equivariant") and run.seed == 0 and run.split == self.splits()[0]

    def make(self, run: Run, folder: Path) -> Training:
        estimator = self.plan.estimator(NETWORKS[run.kind], run.seed)
        task, recipe = self._task(estimator, run.kind, self._splits[run.split].train)
        share = self.plan.small if self.protocol == "per-camera" and not self.added else 1.0
        return Training(estimator, task, scaled(recipe, share), estimator.networks[0])

    def _task(self, estimator: Estimator, kind: str, train: Tensor) -> tuple[IlluminantTask, Any]:
        plan = self.plan.plan_for(NETWORKS[kind])
        augmentation = plan.augmentation_for(NETWORKS[kind])
        return IlluminantTask(self._scenes, estimator.encoding, augmentation, plan.recovery, chosen=train), plan.recipe

    def measure(self, run: Run, pipeline: Estimator) -> Record:
        test = self._splits[run.split].test
        lights = added_lights(self.data)
        estimates = estimates_under_light(pipeline.to(self.device).eval(), self._scenes, test, lights)
        return {"estimates": estimates, "test": test}

    def line(self, record: Record) -> str:
        errors = reproduction_error(record["estimates"][0], self.data.illuminants.cpu()[record["test"]])
        return f"median reproduction error {float(errors.median()):.2f}°"

    def train_one(self, kind: str, seed: int, name: str = "model") -> str:
        """Train members of each part, each from its own seed, on all scenes."""
        made_of = {"data": self.data.name, "kind": kind, "plan": self.plan.to_dict(), "provenance": provenance()}
        estimator, everything = (
            self.plan.estimator(NETWORKS[kind], seed, self.members, made_of),
            torch.arange(len(self.data)),
        )
        jobs = []
        for part in _parts(kind):
            for member in range(seed, seed + self.members):
                task, recipe = self._task(estimator, part, everything)
                recipe = dataclasses.replace(recipe, seed=member)
                jobs.append(Job(estimator.networks[len(jobs)], task, recipe, name=f"{part} {member}"))
        for first in range(0, len(jobs), self.parallel):
            self.train_jobs(jobs[first : first + self.parallel])
        if self.main:
            estimator.eval().save(self.out, name)
        return f"written: {self.out / name}.safetensors and {self.out / name}.json"

    @classmethod
    def evaluate(
        cls, pipeline: Estimator, data: Path | None, size: int | None, seed: int, device: torch.device
    ) -> tuple[str, Record]:
        scenes = cls.load(data, {}).to(device)
        lights, everything = added_lights(scenes, seed=seed), torch.arange(len(scenes))
        estimates = estimates_under_light(pipeline.to(device).eval(), scenes, everything, lights)
        found = measure(scenes, estimates, lights)
        return evaluation_table(found), {"saturations": LIT_SATURATIONS, **found}

    def finished(self) -> dict[Run, Record]:
        """The records in the folder; also those of before records were folders, `NETWORK.SPLIT.SEED.npz`."""
        records = super().finished()
        for path in self.out.glob("runs/*.npz"):
            kind, rest = path.stem.split(".", 1)
            split, seed = rest.rsplit(".", 1)
            with np.load(path) as saved:
                tensors = {name: torch.from_numpy(saved[name]) for name in ("estimates", "test")}
                about = {"network": kind, "seed": int(seed), "split": split, **json.loads(str(saved["about"]))}
            records.setdefault(Run(kind, int(seed), split), {"evaluate_seconds": 0.0, **about, **tensors})
        return records

    def summaries(self, records: Sequence[Record]) -> list[Summary]:
        """Classical estimators, and networks whose runs cover all splits.

        Of several seeds there is, beside their mean, an ensemble: the errors of the mean of their answers.
        """
        if not self.classical:
            self.classical.update(classical_estimates(self._scenes))
        lights = added_lights(self.data)
        tested = torch.cat([split.test for split in self._splits.values()]).sort().values

        def measured(estimates: Tensor) -> dict[str, Any]:
            return measure(self.data, estimates[:, tested], lights, tested)

        found = [
            dataclasses.replace(Summary.of(name, CLASSICAL[name].title, 0, [measured(estimates)]), seeds=0)
            for name, estimates in self.classical.items()
        ]
        sizes = {record["network"]: record["parameters"] for record in records}
        for name, kind in NETWORKS.items():
            whole = [self._whole_estimates(part, records) for part in _parts(name)]
            if not all(whole):
                continue
            seeds = whole[0] if len(whole) == 1 else [mean_light(parts) for parts in zip(*whole, strict=False)]
            size, ours = sum(sizes[part] for part in _parts(name)), self.is_ours(name)
            found.append(Summary.of(name, kind.title, size, [measured(estimates) for estimates in seeds], ours))
            if len(seeds) > 1:
                title, joint = f"{kind.title}, ensemble of {len(seeds)}", [measured(mean_light(seeds))]
                ensemble = Summary.of(f"{name}-ensemble", title, size * len(seeds), joint, ours)
                found.append(dataclasses.replace(ensemble, seeds=len(seeds)))
        return found

    def _whole_estimates(self, network: str, records: Sequence[Record]) -> list[Tensor]:
        """The estimates (S, N, 3) of each seed, from 0 on, whose runs cover all splits."""
        whole = []
        by_seed: dict[int, list[Record]] = {}
        for record in records:
            if record["network"] == network:
                by_seed.setdefault(record["seed"], []).append(record)
        while len(by_seed.get(len(whole), ())) == len(self._splits):
            estimates = torch.zeros(len(LIT_SATURATIONS), len(self.data), 3)
            for record in by_seed[len(whole)]:
                estimates[:, record["test"]] = record["estimates"]
            whole.append(estimates)
        return whole

    def report(self, records: Sequence[Record]) -> Report:
        return illuminant_report(self, self.summaries(records), self._splits)


def names_in(text: str) -> list[str]:
    """Names with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _parts(network: str) -> tuple[str, ...]:
    return NETWORKS[network].parts or (network,)
