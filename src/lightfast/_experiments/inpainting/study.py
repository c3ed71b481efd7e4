"""The comparison of inpainting networks: train each with each seed, evaluate, and keep everything in one folder.

As in recognition, a folder holds a study, with a sub-folder of `runs/` for each pair of network
and seed. What is there already is not done again, so a study can be made in several goes.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lightfast._atomic import write_json
from lightfast._experiments.data.street import HoleImages
from lightfast._experiments.engine import CHECKPOINT, Job, seconds_before, train_many
from lightfast._experiments.inpainting.evaluation import evaluate_inpainter, worst_stability
from lightfast._experiments.inpainting.plans import FILLERS, InpaintingPlan
from lightfast._experiments.inpainting.samples import Sampler
from lightfast._experiments.inpainting.task import Adversaries, InpaintingTask, discriminator, start_at_mean
from lightfast._experiments.provenance import provenance
from lightfast._experiments.recognition.study import keep_settings, read_records, run_folder
from lightfast._experiments.recognition.workshop import RECORD, Pair
from lightfast._pipelines.inpainter import Inpainter

__all__ = ["InpaintingStudy", "copy_weights", "inpainting_results", "inpainting_runs"]

_FIRST_LOOK = 64


@dataclass(frozen=True)
class InpaintingStudy:
    """What to compare, and where.

    Args:
        images: to train and test on.
        plan: how.
        networks: names from :data:`~lightfast._experiments.inpainting.plans.FILLERS`.
        seeds: how many trainings of each; numbered from 0.
        out: the folder.
        only: do these pairs of network and seed alone.
        parallel: how many trainings share the device at a time, where that is possible.
        resume: go on with trainings that were interrupted.
        half: save weights in 16 bits.
        start: begin from this inpainter's weights, instead of fresh ones.
        device: where to compute.
        progress: show bars.
        say: told what is done.
    """

    images: HoleImages
    plan: InpaintingPlan
    networks: Sequence[str]
    seeds: int
    out: Path
    only: Sequence[Pair] | None = None
    parallel: int = 3
    resume: bool = False
    half: bool = False
    start: Inpainter | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: bool = True
    say: Callable[[str], None] = print

    def run(self) -> None:
        """Do what is left to do."""
        every = [(network, seed) for seed in range(self.seeds) for network in self.networks]
        pairs = every if self.only is None else list(self.only)
        left = [pair for pair in pairs if not (run_folder(self.out, pair) / RECORD).exists()]
        if len(left) < len(pairs):
            self.say(f"{len(pairs) - len(left)} of {len(pairs)} runs are in {self.out} already")
        if not left:
            return
        keep_settings(self.out, self.settings())
        images, held_out = self.images.held_out(self.plan.held_out)
        images = dataclasses.replace(images, train=images.train.to(self.device))
        for first in range(0, len(left), self.parallel):
            chunk = left[first : first + self.parallel]
            self.say(f"training {', '.join(f'{name}:{seed}' for name, seed in chunk)}")
            self.train({pair: run_folder(self.out, pair) for pair in chunk}, images, held_out)

    def settings(self) -> dict[str, Any]:
        """What all runs in a folder have in common."""
        return {
            "data": self.images.name,
            "train_images": len(self.images.train) - self.plan.held_out,
            "test_images": {name: len(images) for name, images in self.images.tests.items()},
            "plan": self.plan.to_dict(),
        }

    def train(
        self, folders: Mapping[Pair, Path], images: HoleImages, held_out: torch.Tensor, name: str = "model"
    ) -> list[dict[str, Any]]:
        """Train all these pairs together; then evaluate each, and save model and record in its folder."""
        made = {pair: self._make(pair) for pair in folders}
        jobs = [self._job(pair, inpainter, images, held_out, folders[pair]) for pair, inpainter in made.items()]
        start = time.monotonic() - seconds_before(jobs)
        train_many(jobs, device=self.device, progress=self.progress)
        seconds = time.monotonic() - start
        return [
            self._finish(folders[pair], pair, inpainter, seconds, len(jobs), name) for pair, inpainter in made.items()
        ]

    def _make(self, pair: Pair) -> Inpainter:
        name, seed = pair
        inpainter = self.plan.inpainter(
            FILLERS[name], seed, {"kind": name, "data": self.images.name, "seed": seed, "plan": self.plan.to_dict()}
        )
        if self.start is None:
            start_at_mean(inpainter, self.images.train[:_FIRST_LOOK])
        else:
            copy_weights(self.start, inpainter)
        return inpainter

    def _job(self, pair: Pair, inpainter: Inpainter, images: HoleImages, held_out: torch.Tensor, folder: Path) -> Job:
        plan, (name, seed) = self.plan, pair
        task = InpaintingTask(images.train, inpainter.encoding, plan.augmentation, plan.adversarial, plan.border)
        inpainter.to(self.device)
        # Lifted layers lay projected weights out as the hardware wants them; the raw ones are best left as they are.
        last = plan.recipe.channels_last and FILLERS[name].offset_groups is None
        return Job(
            Adversaries(inpainter.network, discriminator(plan.discriminator, seed + 1)),
            task,
            dataclasses.replace(plan.recipe, seed=seed, channels_last=last),
            folder,
            resume=self.resume,
            on_log=Sampler(inpainter, held_out, folder, plan.sheet_every),
            name=f"{name}:{seed}",
        )

    def _finish(
        self, folder: Path, pair: Pair, inpainter: Inpainter, seconds: float, together: int, name: str
    ) -> dict[str, Any]:
        kind, start = FILLERS[pair[0]], time.monotonic()
        tests = {
            test: dataclasses.asdict(evaluate_inpainter(inpainter, images, device=self.device))
            for test, images in self.images.tests.items()
        }
        record = {
            "network": kind.name,
            "title": kind.title,
            "seed": pair[1],
            "parameters": sum(parameter.numel() for parameter in inpainter.network.parameters()),
            "steps": self.plan.recipe.steps,
            "train_seconds": round(seconds, 1),
            "trained_together": together,
            "evaluate_seconds": round(time.monotonic() - start, 1),
            "tests": tests,
            "provenance": provenance(),
        }
        inpainter.cpu().save(folder, name, half=self.half)
        write_json(folder / RECORD, record)
        (folder / CHECKPOINT).unlink(missing_ok=True)
        shown = []
        for test, found in tests.items():
            at = dict(zip(found["saturations"], found["psnr"], strict=True))
            levels = ", ".join(f"{at[saturation]:.2f} at S = {saturation:g}" for saturation in (0.0, 0.5, 0.9))
            stable = worst_stability(found["saturations"], found["stability"])
            shown.append(f"{test}: PSNR {levels}, stability {stable:.1f} dB")
        self.say(f"{pair[0]}:{pair[1]} is done; {'; '.join(shown)}")
        return record


def copy_weights(source: Inpainter, target: Inpainter) -> None:
    """Give one inpainter the weights of another with the same network."""
    before, after = source.state_dict(), target.state_dict()
    if {name: value.shape for name, value in before.items()} != {name: value.shape for name, value in after.items()}:
        raise ValueError(
            f"a {target.config['network']} with {target.config['options']} cannot start from the weights of a "
            f"{source.config['network']} with {source.config['options']}: they are not the same network"
        )
    target.load_state_dict(before)


def inpainting_runs(out: Path) -> list[dict[str, Any]]:
    """The records of the finished runs in a folder, by network in the order of tables, and seed."""
    order = list(FILLERS)
    return sorted(read_records(out), key=lambda record: (order.index(record["network"]), record["seed"]))


def inpainting_results(out: Path) -> dict[str, Any]:
    """Everything that was measured in a study's folder: settings, means and spreads over seeds, and all runs."""
    records = inpainting_runs(out)
    if not records:
        raise ValueError(f"{out} has no finished runs to report on")
    settings = json.loads((out / "settings.json").read_text(encoding="utf-8"))
    networks: dict[str, Any] = {}
    for name in dict.fromkeys(record["network"] for record in records):
        runs = [record for record in records if record["network"] == name]
        networks[name] = {
            "title": runs[0]["title"],
            "parameters": runs[0]["parameters"],
            "seeds": len(runs),
            "tests": {test: _summary([run["tests"][test] for run in runs]) for test in runs[0]["tests"]},
        }
    together = {(r["provenance"]["command"], r["train_seconds"]): r["train_seconds"] for r in records}
    return {
        **settings,
        "report": provenance(),
        "train_seconds": round(sum(together.values()), 1),
        "networks": networks,
        "runs": records,
    }


def _summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over seeds of every number, and the sample standard deviation as `NAME_spread`."""
    found: dict[str, Any] = {"saturations": runs[0]["saturations"], "images": runs[0]["images"]}
    for name in ("psnr", "l1", "l2", "stability", "stability_low"):
        columns = list(zip(*(run[name] for run in runs), strict=True))
        found[name] = [None if None in column else round(sum(column) / len(column), 4) for column in columns]
        if len(runs) > 1:
            found[f"{name}_spread"] = [
                None if None in column else round(float(torch.tensor(column).std()), 4) for column in columns
            ]
    return found
