"""Where classifiers are made: for a strategy and a seed, the network and its task, trained, evaluated and saved."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightfast._atomic import write_json
from lightfast._experiments.engine import CHECKPOINT, Job, is_main, seconds_before, train_many
from lightfast._experiments.provenance import provenance
from lightfast._experiments.recognition.evaluation import Evaluation, evaluate
from lightfast._experiments.recognition.pictures import Images, Pictures, in_batches
from lightfast._experiments.recognition.plans import Plan, scaled
from lightfast._experiments.recognition.strategies import STRATEGIES, Strategy
from lightfast._experiments.recognition.task import LazyRecognitionTask, RecognitionTask
from lightfast._pipelines.pipeline import BALANCES, Classifier, Preparation, load_weights, save_weights
from lightfast.color import ChannelNorm, linear_to_log, srgb_to_linear
from lightfast.constancy import NeutralTask

__all__ = ["RECORD", "Pair", "Workshop", "evaluation_batch"]

Pair = tuple[str, int]
"""The name of a strategy, and a seed."""

RECORD = "evaluation.json"
"""The name of a finished run's record, in its folder."""

_STATISTICS_IMAGES = 10_000


@dataclass
class Workshop:
    """Trains classifiers on the same pictures by the same plan; what several of them need is made once.

    Args:
        pictures: to train and test on.
        plan: how.
        out: folder for what several runs need: the choice of the color jitter, the trained color balance.
        parallel: how many trainings share the device at a time, where that is possible.
        resume: go on with trainings that were interrupted.
        device: where to compute.
        progress: show bars.
        say: told what is done.
    """

    pictures: Pictures
    plan: Plan
    out: Path
    parallel: int = 1
    resume: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: bool = True
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        """Start with nothing but the images, on the device."""
        # Among several processes all train and evaluate alike, and one writes.
        self.main = is_main()
        self.pictures = _on_device(self.pictures, self.device)
        self._estimators: dict[str, nn.Module] = {}
        self._balanced: dict[str | None, Images] = {None: self.pictures.train_images}
        self._norms: dict[tuple[str | None, str], ChannelNorm] = {}

    def run(self, folders: Mapping[Pair, Path]) -> list[dict[str, Any]]:
        """Train all these pairs together; then evaluate each, and save model and record in its folder."""
        pairs = list(folders)
        strategies = [STRATEGIES[name] for name, _ in pairs]
        jitter = self._jitter() if any(strategy.jitter for strategy in strategies) else 0.0
        made = [self._make(strategy, seed, jitter) for strategy, (_, seed) in zip(strategies, pairs, strict=True)]
        jobs = [
            Job(
                classifier.network,
                task,
                dataclasses.replace(self.plan.recipe, seed=seed),
                folders[name, seed],
                resume=self.resume,
                name=f"{name}:{seed}",
            )
            for (name, seed), (classifier, task) in zip(pairs, made, strict=True)
        ]
        seconds = self._train(jobs)
        records = []
        for pair, (classifier, _) in zip(pairs, made, strict=True):
            record = {
                "strategy": pair[0],
                "title": STRATEGIES[pair[0]].title,
                "seed": pair[1],
                "model": self.plan.model,
                "parameters": sum(parameter.numel() for parameter in classifier.network.parameters()),
                "jitter": jitter if STRATEGIES[pair[0]].jitter else None,
                "steps": self.plan.recipe.steps,
                "train_seconds": round(seconds, 1),
                "trained_together": len(pairs),
            }
            records.append(self._finish(folders[pair], classifier, record))
        return records

    def _train(self, jobs: Sequence[Job]) -> float:
        start = time.monotonic() - seconds_before(jobs)
        train_many(jobs, device=self.device, progress=self.progress)
        return time.monotonic() - start

    def _finish(self, folder: Path, classifier: Classifier, record: dict[str, Any]) -> dict[str, Any]:
        start = time.monotonic()
        evaluation = self._evaluate(classifier, self.pictures)
        record |= {**dataclasses.asdict(evaluation), "evaluate_seconds": round(time.monotonic() - start, 1)}
        record["provenance"] = provenance()
        if self.main:
            classifier.save(folder)
            write_json(folder / RECORD, record)
            (folder / CHECKPOINT).unlink(missing_ok=True)
        at = dict(zip(evaluation.saturations, evaluation.errors, strict=True))
        shown = ", ".join(f"{at[saturation]:.2f} % at S = {saturation:g}" for saturation in (0.0, 0.5, 0.9, 1.0))
        self.say(f"{record['strategy']}:{record['seed']} is done: error {shown}")
        return record

    def _make(self, strategy: Strategy, seed: int, jitter: float, pictures: Pictures | None = None) -> Any:
        """A fresh classifier for a strategy, and the task that trains its network."""
        torch.manual_seed(seed)
        images = self._balanced_images(strategy.balance) if pictures is None else pictures.train_images
        labels = self.pictures.train_labels if pictures is None else pictures.train_labels
        augmentation = self.plan.augmentation_for(strategy, jitter)
        classifier = Classifier(
            self.plan.model,
            self.pictures.classes,
            self._norm(strategy),
            color=strategy.color,
            offset_groups=strategy.offset_groups,
            scope=strategy.scope,
            balance=strategy.balance,
            fill=strategy.fill,
            constrained=strategy.constrained,
            field=strategy.field,
            details={"strategy": strategy.name, "data": self.pictures.name, "size": _size(images), "seed": seed},
        )
        if strategy.balance is not None:
            classifier.prepare.balance = self._estimator(strategy.balance)
        task = RecognitionTask if isinstance(images, Tensor) else LazyRecognitionTask
        return classifier, task(images, labels, classifier.prepare.to(self.device), augmentation)  # type: ignore[arg-type]

    def _evaluate(self, classifier: Classifier, pictures: Pictures) -> Evaluation:
        return evaluate(
            classifier,
            pictures.test_images,
            pictures.test_labels,
            batch_size=evaluation_batch(pictures.test_images, self.device),
            device=self.device,
        )

    def _jitter(self) -> float:
        """The strength of the color jitter: as planned, or the best on held-out training images."""
        if self.plan.jitter is not None:
            return self.plan.jitter
        path = self.out / "jitter.json"
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))["chosen"]
        self.say(f"choosing the strength of the color jitter on held-out training images: {self.plan.jitter_choices}")
        held_out = self.pictures.held_out()
        recipe = scaled(self.plan.recipe, self.plan.jitter_steps / self.plan.recipe.steps)
        made = [self._make(STRATEGIES["augmentation"], 0, s, held_out) for s in self.plan.jitter_choices]
        names = [f"jitter {strength:g}" for strength in self.plan.jitter_choices]
        jobs = [Job(c.network, task, recipe, name=name) for (c, task), name in zip(made, names, strict=True)]
        for first in range(0, len(jobs), self.parallel):
            self._train(jobs[first : first + self.parallel])
        errors = [self._evaluate(classifier, held_out).errors for classifier, _ in made]
        means = [sum(curve) / len(curve) for curve in errors]
        chosen = self.plan.jitter_choices[means.index(min(means))]
        tried = [
            {"strength": strength, "mean_error": mean, "errors": curve}
            for strength, mean, curve in zip(self.plan.jitter_choices, means, errors, strict=True)
        ]
        if self.main:
            write_json(path, {"chosen": chosen, "steps": recipe.steps, "tried": tried})
        self.say(f"color jitter of strength {chosen:g} is best: mean error {min(means):.2f} % over all saturations")
        return chosen

    def _estimator(self, balance: str) -> nn.Module:
        """The estimator of a color balance; trained, and kept in the study's folder, if it has weights."""
        if balance not in self._estimators:
            torch.manual_seed(0)
            estimator = BALANCES[balance]()
            if any(True for _ in estimator.parameters()):
                path = self.out / f"{balance}.safetensors"
                if path.exists():
                    load_weights(estimator, path)
                else:
                    self._train_estimator(estimator, balance, path)
            self._estimators[balance] = estimator.to(self.device).eval()
        return self._estimators[balance]

    def _train_estimator(self, estimator: nn.Module, balance: str, path: Path) -> None:
        images = self.pictures.train_images
        if not isinstance(images, Tensor):
            chosen = torch.linspace(0, len(images) - 1, min(_STATISTICS_IMAGES, len(images))).long()
            images = torch.cat([batch for batch, _ in images.stream([(part, None) for part in chosen.split(256)])])
        self.say(f"training the {balance} color balance")
        job = Job(estimator, NeutralTask(images), self.plan.balance_recipe, name=balance)
        seconds = self._train([job])
        if self.main:
            save_weights(estimator, path)
            write_json(path.with_suffix(".json"), {"train_seconds": round(seconds, 1), "provenance": provenance()})

    def _balanced_images(self, balance: str | None) -> Images:
        """The training images after automatic color balance, done once; lazy ones are balanced as they come."""
        if balance not in self._balanced:
            assert balance is not None
            images = self.pictures.train_images
            if isinstance(images, Tensor):
                prepare = Preparation(ChannelNorm([0.0] * 3, [1.0] * 3), balance=self._estimator(balance))
                balanced = torch.empty_like(images)
                with torch.no_grad():
                    for place, batch in in_batches(images, 1000, self.device):
                        balanced[place] = (prepare.correct(batch) * 255).round().to(torch.uint8)
                images = balanced
            self._balanced[balance] = images
        return self._balanced[balance]

    def _norm(self, strategy: Strategy) -> ChannelNorm:
        key = (strategy.balance, strategy.color)
        if key not in self._norms:
            images = self._balanced_images(strategy.balance)
            if isinstance(images, Tensor):
                source: Any = images
            else:
                chosen = torch.linspace(0, len(images) - 1, min(_STATISTICS_IMAGES, len(images))).long()
                source = (batch for batch, _ in images.stream([(part, None) for part in chosen.split(256)]))
            self._norms[key] = ChannelNorm.fit(source, _to_log if strategy.color == "log" else None)
        norm = self._norms[key]
        return ChannelNorm(norm.mean, norm.std)


def _to_log(srgb: Tensor) -> Tensor:
    return linear_to_log(srgb_to_linear(srgb))


def _on_device(pictures: Pictures, device: torch.device) -> Pictures:
    images = pictures.train_images
    return dataclasses.replace(
        pictures,
        train_images=images.to(device) if isinstance(images, Tensor) else images,
        train_labels=pictures.train_labels.to(device),
    )


def _size(images: Images) -> int:
    return images.shape[-1] if isinstance(images, Tensor) else images.size


def evaluation_batch(images: Images, device: torch.device) -> int:
    """As many images as have about 2 million pixels together on a GPU, and a sixteenth of that elsewhere."""
    pixels = 2_000_000 if device.type == "cuda" else 128_000
    return max(8, pixels // _size(images) ** 2)
