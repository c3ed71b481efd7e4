"""The comparison of strategies: how classifiers are made, trained, tested and reported on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightfast import models
from lightfast._atomic import write_json
from lightfast._experiments.classification import STRATEGIES, Strategy
from lightfast._experiments.engine import Job
from lightfast._experiments.lights import Images, in_batches
from lightfast._experiments.plan import scaled
from lightfast._experiments.provenance import provenance
from lightfast._experiments.recognition.evaluation import evaluate
from lightfast._experiments.recognition.pictures import (
    Pictures,
    drawn_pictures,
    holds_cifar10,
    load_pictures,
    load_test_images,
)
from lightfast._experiments.recognition.plans import PLANS
from lightfast._experiments.recognition.report import evaluation_table, recognition_report
from lightfast._experiments.recognition.task import LazyRecognitionTask, RecognitionTask
from lightfast._experiments.records import Record, Run
from lightfast._experiments.report import Report
from lightfast._experiments.study import Study, Training, option
from lightfast._pipelines.classifier import Classifier
from lightfast._pipelines.preparation import BALANCES, Preparation
from lightfast._pipelines.saving import load_weights, save_weights
from lightfast.color import ChannelNorm
from lightfast.constancy import NeutralTask

_STATISTICS_IMAGES = 10_000
_BALANCED = ("gray-world", "shades-of-gray", "quasi-unsupervised")


@dataclass
class Recognition(Study):
    """Strategies against colored light; what several runs need is made once, and kept in the study's folder."""

    size: int | None = option(
        None, "Pixels to which pictures are scaled; their own by default, and 128 for folders in `train`.", minimum=8
    )
    held_out: bool = option(False, "Test on a tenth of the training images, which are not trained on: for choices.")

    help = "Compare strategies against colored light: train, relight the test images, count errors, write a report."
    train_help = "Train a classifier that the color of the light cannot fool, and say how it does under colored light."
    data_help = (
        "CIFAR-10 (the folder that holds cifar-10-batches-bin), or a folder with one sub-folder a class, or with "
        "train/CLASS/* and val/CLASS/*; by default, pictures that lightfast draws itself."
    )
    noun = "strategy"
    kinds = STRATEGIES
    aliases: ClassVar = {
        "all": ("original", "augmentation", *_BALANCED, "equivariant", "wrapped", "group-dropout"),
        "preprocessing": _BALANCED,
    }
    plans: ClassVar = {name: PLANS[name] for name in ("paper", "best", "quick", "demo")}
    usual_recipe = "quick"
    networks = models.CLASSIFIERS
    pipeline = Classifier
    measured = ("saturations", "errors", "mixed", "varying")

    @classmethod
    def recipes(cls, data: Path | None) -> dict[str, Any]:
        """As in all experiments; the short recipe for folders of pictures is another than that for CIFAR-10."""
        recipes = super().recipes(data)
        return recipes if data is None or holds_cifar10(data) else {**recipes, "quick": PLANS["imagenet-quick"]}

    @classmethod
    def load(cls, data: Path | None, options: Mapping[str, Any]) -> Pictures:
        if data is None:
            return drawn_pictures()
        return load_pictures(data, options["size"] or (128 if options["command"] == "train" else None))

    @classmethod
    def samples(cls, data: Pictures) -> int:
        return len(data.train_labels)

    def __post_init__(self) -> None:
        """Start with nothing but the images, on the device."""
        self.data = (self.data.held_out() if self.held_out else self.data).to_train_on(self.device)
        self._estimators: dict[str, nn.Module] = {}
        self._balanced: dict[str | None, Images] = {None: self.data.train_images}
        self._norms: dict[tuple[str | None, str], ChannelNorm] = {}

    def about_data(self) -> dict[str, Any]:
        data = self.data
        about = {"data": data.name, "train_images": len(data.train_labels), "test_images": len(data.test_labels)}
        return about | ({"held_out": True} if self.held_out else {})

    def make(self, run: Run, folder: Path) -> Training:
        jitter = self._jitter if STRATEGIES[run.kind].jitter else None
        classifier, task = self._classifier(run.kind, run.seed, jitter or 0.0)
        return Training(classifier, task, self.plan.recipe, about={"model": self.plan.model, "jitter": jitter})

    def measure(self, run: Run, pipeline: Classifier) -> Record:
        found = evaluate(pipeline, self.data.test_images, self.data.test_labels, device=self.device)
        return dataclasses.asdict(found)

    def line(self, record: Record) -> str:
        at = dict(zip(record["saturations"], record["errors"], strict=True))
        return "error " + ", ".join(
            f"{at[saturation]:.2f} % at S = {saturation:g}" for saturation in (0.0, 0.5, 0.9, 1.0)
        )

    def report(self, records: Sequence[Record]) -> Report:
        return recognition_report(self, self.summaries(records))

    @classmethod
    def evaluate(
        cls, pipeline: Classifier, data: Path | None, size: int | None, seed: int, device: torch.device
    ) -> tuple[str, Record]:
        images, labels, classes = load_test_images(data, size or pipeline.config.get("size"))
        if list(classes) != pipeline.classes:
            raise ValueError(
                f"the pictures' classes are {_first(classes)}, but the classifier was trained for "
                f"{_first(pipeline.classes)}"
            )
        found = evaluate(pipeline, images, labels, seed=seed, device=device)
        return evaluation_table(found), dataclasses.asdict(found)

    def _classifier(
        self, kind: str, seed: int, jitter: float, pictures: Pictures | None = None
    ) -> tuple[Classifier, RecognitionTask]:
        """A fresh classifier for a strategy, and the task that trains its network."""
        strategy, about = STRATEGIES[kind], {"strategy": kind, "data": self.data.name}
        images = self._balanced_images(strategy.balance) if pictures is None else pictures.train_images
        labels = self.data.train_labels if pictures is None else pictures.train_labels
        size = images.shape[-1] if isinstance(images, Tensor) else images.size
        classifier = strategy.classifier(self.plan.model, self.data.classes, self._norm(strategy), size, seed, about)
        if strategy.balance is not None:
            classifier.prepare.balance = self._estimator(strategy.balance)
        prepare, augmentation = classifier.prepare.to(self.device), self.plan.augmentation_for(strategy, jitter)
        if isinstance(images, Tensor):
            return classifier, RecognitionTask(images, labels, prepare, augmentation)
        return classifier, LazyRecognitionTask(images, labels, prepare, augmentation)

    @cached_property
    def _jitter(self) -> float:
        """The strength of the color jitter: as planned, or the best on held-out training images."""
        plan, path = self.plan, self.out / "jitter.json"
        if plan.jitter is not None:
            return plan.jitter
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))["chosen"]
        self.tell(f"choosing the strength of the color jitter on held-out training images: {plan.jitter_choices}")
        held_out = self.data.held_out()
        recipe = scaled(plan.recipe, plan.jitter_steps / plan.recipe.steps)
        made = [self._classifier("augmentation", 0, s, held_out) for s in plan.jitter_choices]
        names = [f"jitter {strength:g}" for strength in plan.jitter_choices]
        jobs = [Job(c.network, task, recipe, name=name) for (c, task), name in zip(made, names, strict=True)]
        self.train_jobs(jobs)
        errors = [
            evaluate(classifier, held_out.test_images, held_out.test_labels, device=self.device).errors
            for classifier, _ in made
        ]
        means = [sum(curve) / len(curve) for curve in errors]
        chosen = plan.jitter_choices[means.index(min(means))]
        tried = [
            {"strength": strength, "mean_error": mean, "errors": curve}
            for strength, mean, curve in zip(plan.jitter_choices, means, errors, strict=True)
        ]
        if self.main:
            write_json(path, {"chosen": chosen, "steps": recipe.steps, "tried": tried})
        self.tell(f"color jitter of strength {chosen:g} is best: mean error {min(means):.2f} % over all saturations")
        return chosen

    def _estimator(self, balance: str) -> nn.Module:
        """The estimator of a color balance; trained, and kept in the study's folder, if it has weights."""
        if balance not in self._estimators:
            torch.manual_seed(0)
            estimator, path = BALANCES[balance](), self.out / f"{balance}.safetensors"
            if any(True for _ in estimator.parameters()):
                if path.exists():
                    load_weights(estimator, path)
                else:
                    self._train_estimator(estimator, balance, path)
            self._estimators[balance] = estimator.to(self.device).eval()
        return self._estimators[balance]

    def _train_estimator(self, estimator: nn.Module, balance: str, path: Path) -> None:
        images = self.data.train_images
        if not isinstance(images, Tensor):
            images = torch.cat(list(self._some(images)))
        self.tell(f"training the {balance} color balance")
        seconds = self.train_jobs([Job(estimator, NeutralTask(images), self.plan.balance_recipe, name=balance)])
        if self.main:
            save_weights(estimator, path)
            write_json(path.with_suffix(".json"), {"train_seconds": round(seconds, 1), "provenance": provenance()})

    def _balanced_images(self, balance: str | None) -> Images:
        """The training images after automatic color balance, done once; lazy ones are balanced as they come."""
        if balance not in self._balanced:
            assert balance is not None
            images = self.data.train_images
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
            source = images if isinstance(images, Tensor) else self._some(images)
            self._norms[key] = strategy.norm(source)
        norm = self._norms[key]
        return ChannelNorm(norm.mean, norm.std)

    def _some(self, images: Any) -> Any:
        """Batches of images that are read lazily, spread over the whole set."""
        chosen = torch.linspace(0, len(images) - 1, min(_STATISTICS_IMAGES, len(images))).long()
        return (batch for batch, _ in images.stream([(part, None) for part in chosen.split(256)]))


@dataclass
class ImageNet(Recognition):
    """The same comparison on ImageNet-like folders: random parts of random size, mirrored, and larger networks."""

    help = "The same comparison on ImageNet-like folders: random parts of random size, mirrored, and larger networks."
    train_help = ""
    data_help = "A folder with train/CLASS/* and val/CLASS/*, as ILSVRC-12 has."
    needs_data = True
    usual = "original,preprocessing,augmentation,equivariant,wrapped"
    plans: ClassVar = {"paper": PLANS["imagenet"], "quick": PLANS["imagenet-quick"]}
    usual_recipe = "paper"
    together = 1

    @classmethod
    def load(cls, data: Path | None, options: Mapping[str, Any]) -> Pictures:
        assert data is not None
        return load_pictures(data, options["size"] or (64 if options["recipe"] == "quick" else 224))


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
