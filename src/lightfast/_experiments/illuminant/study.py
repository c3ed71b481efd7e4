"""The comparison of illuminant estimators under a protocol: train each network on each split, estimate, measure.

A folder holds a study. Each run (a network, a split, a seed) leaves its estimates in `runs/`; what is there already is
not done again, so a study can be made in several goes.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightfast._atomic import write_json, write_whole
from lightfast._experiments.data.nus import LitScenes
from lightfast._experiments.engine import Job, train_many
from lightfast._experiments.illuminant.evaluation import LIT_SATURATIONS, added_lights, estimates_under_light, measure
from lightfast._experiments.illuminant.plans import NETWORKS, IlluminantPlan
from lightfast._experiments.illuminant.protocols import PROTOCOLS, Split, splits_of
from lightfast._experiments.illuminant.task import IlluminantTask
from lightfast._experiments.provenance import provenance
from lightfast._experiments.recognition.plans import scaled
from lightfast._experiments.recognition.study import differences
from lightfast._pipelines.estimator import Estimator
from lightfast.constancy import CLASSICAL
from lightfast.metrics import reproduction_error

__all__ = ["IlluminantStudy", "choose_networks", "classical_estimates", "mean_light", "results_of", "train_estimator"]


class Run(NamedTuple):
    """One training: of a network, on a split, from a seed."""

    network: str
    split: str
    seed: int

    def __str__(self) -> str:
        return f"{self.network}.{self.split}.{self.seed}"


@dataclass(frozen=True)
class IlluminantStudy:
    """What to compare, and where.

    Args:
        scenes: to train and test on.
        protocol: a name from :data:`~lightfast._experiments.illuminant.protocols.PROTOCOLS`.
        plan: how.
        networks: names from `NETWORKS` of the plans; of one with parts, these are trained.
        seeds: how many trainings of each on each split.
        out: the folder.
        parallel: how many trainings share the device at a time, where that is possible.
        seconds: start no more trainings after so long; what is left is done when the study is run again.
        device: where to compute.
        progress: show bars.
        say: told what is done.
    """

    scenes: LitScenes
    protocol: str
    plan: IlluminantPlan
    networks: Sequence[str]
    seeds: int
    out: Path
    parallel: int = 12
    seconds: float | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: bool = True
    say: Callable[[str], None] = print

    def run(self) -> bool:
        """Do what is left to do; whether everything is done now."""
        start = time.monotonic()
        self._check_settings()
        splits = {split.name: split for split in splits_of(self.scenes, self.protocol)}
        runs = [
            Run(network, split, seed)
            for seed in range(self.seeds)
            for network in _single(self.networks)
            for split in splits
        ]
        left = [run for run in runs if not self._path(run).exists()]
        if len(left) < len(runs):
            self.say(f"{len(runs) - len(left)} of {len(runs)} runs are in {self.out} already")
        scenes = self.scenes.to(self.device)
        for first in range(0, len(left), self.parallel):
            if self.seconds is not None and time.monotonic() - start > self.seconds:
                self.say(f"{len(left) - first} runs are left for another time: {self.seconds:g} s are over")
                return False
            self._train_together(scenes, left[first : first + self.parallel], splits)
        return True

    def _train_together(self, scenes: LitScenes, runs: Sequence[Run], splits: Mapping[str, Split]) -> None:
        estimators = [self.plan.estimator(NETWORKS[run.network], run.seed) for run in runs]
        share = self.plan.small if self.protocol == "per-camera" else 1.0
        jobs = [
            _job(estimator, scenes, splits[run.split].train, self.plan, run.network, run.seed, str(run), share=share)
            for run, estimator in zip(runs, estimators, strict=True)
        ]
        start = time.monotonic()
        train_many(jobs, device=self.device, progress=self.progress)
        seconds = time.monotonic() - start
        lights, made = added_lights(scenes), provenance()
        for run, estimator, job in zip(runs, estimators, jobs, strict=True):
            test = splits[run.split].test
            estimates = estimates_under_light(estimator.to(self.device).eval(), scenes, test, lights)
            about = {
                "parameters": sum(parameter.numel() for parameter in estimator.parameters()),
                "train_seconds": round(seconds, 1),
                "trained_together": len(runs),
                "steps": job.recipe.steps,
                "provenance": made,
            }
            _save_estimates(self._path(run), estimates, test, about)
            if run.network in ("original", "equivariant") and run.seed == 0 and run.split == next(iter(splits)):
                estimator.cpu().save(self.out / "models", run.network)
            median = float(reproduction_error(estimates[0], scenes.illuminants.cpu()[test]).median())
            self.say(f"{run}: median reproduction error {median:.2f}° ({seconds:.0f} s for {len(runs)} together)")

    def _path(self, run: Run) -> Path:
        return self.out / "runs" / f"{run}.npz"

    def _check_settings(self) -> None:
        """Write down the settings in the folder, or see that they are those of before."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / "settings.json"
        settings = json.loads(
            json.dumps(
                {
                    "data": self.scenes.name,
                    "images": len(self.scenes),
                    "cameras": self.scenes.camera_names,
                    "protocol": self.protocol,
                    "plan": self.plan.to_dict(),
                }
            )
        )
        if path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            changed = list(differences(before, settings))
            if changed:
                raise ValueError(
                    f"{self.out} holds runs with other settings ({'; '.join(changed)}): name another folder with "
                    "--out, or delete this one"
                )
        else:
            write_json(path, settings)


def _job(
    estimator: Estimator,
    scenes: LitScenes,
    train: Tensor,
    plan: IlluminantPlan,
    network: str,
    seed: int,
    name: str,
    member: int = 0,
    share: float = 1.0,
) -> Job:
    """The training of one network of the estimator, in this share of the plan's steps."""
    kind = NETWORKS[network]
    plan = plan.plan_for(kind)
    task = IlluminantTask(scenes, estimator.encoding, plan.augmentation_for(kind), plan.recovery, chosen=train)
    recipe = dataclasses.replace(scaled(plan.recipe, share), seed=seed)
    return Job(estimator.networks[member], task, recipe, name=name)


def train_estimator(
    scenes: LitScenes,
    plan: IlluminantPlan,
    network: str,
    members: int,
    device: torch.device,
    parallel: int = 12,
    progress: bool = True,
    details: Mapping[str, Any] | None = None,
) -> Estimator:
    """An estimator with several members of each kind, each trained from its own seed on all scenes.

    `details` go to its config.
    """
    scenes = scenes.to(device)
    train = torch.arange(len(scenes))
    estimator = plan.estimator(NETWORKS[network], 0, members, details)
    jobs = [
        _job(estimator, scenes, train, plan, part, seed, f"{part} {seed}", member=place * members + seed)
        for place, part in enumerate(NETWORKS[network].parts or (network,))
        for seed in range(members)
    ]
    for first in range(0, len(jobs), parallel):
        train_many(jobs[first : first + parallel], device=torch.device(device), progress=progress)
    return estimator.eval()


def choose_networks(text: str) -> list[str]:
    """Networks as users type them.

    >>> choose_networks("original, equivariant")
    ['original', 'equivariant']
    """
    names = list(NETWORKS) if text.strip() == "all" else [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in NETWORKS:
            raise ValueError(f"there is no network {name!r} to compare; there are {', '.join(NETWORKS)}, or all")
    return names


def _single(networks: Sequence[str]) -> list[str]:
    """The networks to train for these: parts instead of what they make together, each once.

    >>> _single(["local", "joint"])
    ['local', 'histogram', 'statistics']
    """
    return list(dict.fromkeys(part for name in networks for part in NETWORKS[name].parts or (name,)))


def mean_light(estimates: Sequence[Tensor]) -> Tensor:
    """The mean in log RGB of several estimates (..., 3) of norm 1: what an ensemble answers."""
    logs = torch.stack([estimate.double().clamp(min=1e-12).log() for estimate in estimates]).mean(0)
    return torch.nn.functional.normalize(logs.exp(), dim=-1).float()


def classical_estimates(scenes: LitScenes, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """What each classical estimator says of all scenes under each of the lights, (S, N, 3); the same in all protocols.

    Args:
        scenes: to estimate on.
        device: where to compute.
    """
    lights, everything, scenes = added_lights(scenes), torch.arange(len(scenes)), scenes.to(device)
    return {name: estimates_under_light(each, scenes, everything, lights) for name, each in CLASSICAL.items()}


def results_of(out: Path, scenes: LitScenes, classical: Mapping[str, Tensor]) -> dict[str, Any]:
    """Everything that was measured in a study's folder, for networks whose runs cover all splits.

    Of several seeds there are the mean errors, their standard deviation as `spread`, and as a method of its own, called
    an ensemble, the errors of the mean of their answers.

    Args:
        out: the folder.
        scenes: the ones the study was made with.
        classical: what :func:`classical_estimates` gave for them.
    """
    settings = json.loads((out / "settings.json").read_text(encoding="utf-8"))
    splits = splits_of(scenes, settings["protocol"])
    lights = added_lights(scenes)
    tested = torch.cat([split.test for split in splits]).sort().values
    methods: dict[str, Any] = {}
    for name, estimates in classical.items():
        measured = measure(scenes, estimates[:, tested], lights, tested)
        methods[name] = {"title": CLASSICAL[name].title, "parameters": 0, "seeds": 0, **measured}
    about: dict[str, Any] = {}
    for name, kind in NETWORKS.items():
        found = [_whole_estimates(out, part, splits, len(scenes)) for part in kind.parts or (name,)]
        if not all(seeds for seeds, _ in found):
            continue
        whole_of = [seeds for seeds, _ in found]
        whole = [mean_light(parts) if kind.parts else parts[0] for parts in zip(*whole_of, strict=False)]
        about |= {run: details for _, runs in found for run, details in runs.items()}
        single = [measure(scenes, estimates[:, tested], lights, tested) for estimates in whole]
        parameters = sum(next(iter(runs.values()))["parameters"] for _, runs in found)
        methods[name] = {"title": kind.title, "parameters": parameters, "seeds": len(whole), **_mean_of(single)}
        if len(whole) > 1:
            title = f"{kind.title}, ensemble of {len(whole)}"
            joint = measure(scenes, mean_light(whole)[:, tested], lights, tested)
            methods[f"{name}-ensemble"] = {
                "title": title,
                "parameters": parameters * len(whole),
                "seeds": len(whole),
                **joint,
            }
    together = {(run["provenance"]["command"], run["train_seconds"]): run["train_seconds"] for run in about.values()}
    return {
        **settings,
        "title": PROTOCOLS[settings["protocol"]].title,
        "explanation": PROTOCOLS[settings["protocol"]].explanation,
        "splits": {split.name: {"train": len(split.train), "test": len(split.test)} for split in splits},
        "saturations": LIT_SATURATIONS,
        "train_seconds": round(sum(together.values()), 1),
        "runs": len(about),
        "commands": sorted({run["provenance"]["command"] for run in about.values()}),
        "provenance": next(iter(about.values()))["provenance"] if about else provenance(),
        "methods": methods,
    }


def _whole_estimates(
    out: Path, network: str, splits: Sequence[Split], count: int
) -> tuple[list[Tensor], dict[str, Any]]:
    """The estimates (S, N, 3) of each seed whose runs cover all splits, and what is known of its runs."""
    whole, about, seed = [], {}, 0
    while all((out / "runs" / f"{Run(network, split.name, seed)}.npz").exists() for split in splits):
        estimates = torch.zeros(len(LIT_SATURATIONS), count, 3)
        for split in splits:
            run = Run(network, split.name, seed)
            with np.load(out / "runs" / f"{run}.npz") as saved:
                estimates[:, torch.from_numpy(saved["test"])] = torch.from_numpy(saved["estimates"])
                about[str(run)] = json.loads(str(saved["about"]))
        whole.append(estimates)
        seed += 1
    return whole, about


def _save_estimates(path: Path, estimates: Tensor, test: Tensor, about: Mapping[str, Any]) -> None:
    import io

    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    np.savez_compressed(file, estimates=estimates.numpy(), test=test.numpy(), about=np.array(json.dumps(about)))
    write_whole(path, file.getvalue())


def _mean_of(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of every number of several measurements; `spread` has the standard deviation of the main ones."""
    mean = _average(measured)
    if len(measured) == 1:
        return mean
    spread = {
        kind: [
            {
                over: {
                    name: round(float(np.std([one[kind][place][over][name] for one in measured], ddof=1)), 4)
                    for name in measured[0][kind][place][over]
                }
                for over in ("all", "geometric_mean")
            }
            for place in range(len(measured[0][kind]))
        ]
        for kind in measured[0]
    }
    return {**mean, "spread": spread}


def _average(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return {name: _average([value[name] for value in values]) for name in first}
    if isinstance(first, list):
        return [_average(list(parts)) for parts in zip(*values, strict=True)]
    return round(sum(values) / len(values), 4)
