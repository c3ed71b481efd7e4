"""Fine-tuning: how soon a trained conventional network, made invariant, is as good as before, under all lights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightfast._experiments.engine import Recipe
from lightfast._experiments.engine.processes import is_main
from lightfast._experiments.plan import Plan
from lightfast._experiments.recognition.evaluation import evaluate
from lightfast._experiments.recognition.pictures import Pictures, drawn_pictures, holds_cifar10, load_pictures
from lightfast._experiments.recognition.starting import WAYS, DistillationTask, start
from lightfast._experiments.recognition.task import Augmentation, LazyRecognitionTask, RecognitionTask
from lightfast._experiments.records import Record, Run
from lightfast._experiments.report import Chapter, Figure, Report
from lightfast._experiments.report.figures import draw_curves, label_axes, new_figure, png_of
from lightfast._experiments.report.tables import Table, comparison
from lightfast._experiments.study import Study, Training, option
from lightfast._experiments.summary import Summary
from lightfast._pipelines.classifier import Classifier
from lightfast._pipelines.load import load
from lightfast.color import ChannelNorm

__all__ = ["FineTuning", "FineTuningPlan", "epoch_recipe", "task_for"]

_WORST = 0.9
"""The most saturated light that counts."""

_PACKAGED = "resnet20-cifar10-original"


@dataclass(frozen=True)
class FineTuningPlan(Plan):
    """What fine-tuning plans beside the recipe, whose number of steps follows from the data.

    Args:
        augmentation: what fine-tuning does to images; its `jitter` is for the way that jitters.
        lengths: how many epochs to fine-tune: each is a training of its own, with a schedule of its own.
        steps_per_epoch: steps of an epoch; by default as many as it takes to see every image once.
        jitter: strength of the color jitter.
        distill: share of the loss in which the conventional network is a teacher; 0 for labels alone.
        model: the conventional network that is trained first where none is given.
        plain_recipe: how that is trained.
    """

    augmentation: Augmentation = field(default_factory=Augmentation)
    lengths: tuple[int, ...] = (0, 1, 3, 10)
    steps_per_epoch: int | None = None
    jitter: float = 0.5
    distill: float = 0.0
    model: str = "resnet18"
    plain_recipe: Recipe = field(
        default_factory=lambda: Recipe(3000, warmup=200, nesterov=True, weight_decay=5e-4, schedule="cosine")
    )

    fixed: ClassVar = {**Plan.fixed, "plain_recipe": "it is as long as --steps makes it, and has no values to set"}

    def __post_init__(self) -> None:
        """Complain about lengths that are no numbers of epochs."""
        lengths: Any = self.lengths
        if not isinstance(lengths, tuple) or not lengths or any(type(n) is not int or n < 0 for n in lengths):
            raise ValueError(
                f"lengths are numbers of epochs, such as lengths=0,1,3,10 or lengths=1, (with a comma); not {lengths!r}"
            )


_RECIPE: dict[str, Any] = {"nesterov": True, "weight_decay": 5e-4, "schedule": "cosine", "checkpoint_every": 500}


def epoch_recipe(recipe: Recipe, images: int, epochs: int, steps_per_epoch: int | None = None) -> Recipe:
    """The recipe for so many epochs, at least one step of them: a twentieth of it is warm-up.

    >>> epoch_recipe(Recipe(1, batch_size=10), images=95, epochs=2).steps
    20
    """
    batch = min(recipe.batch_size, images)
    steps = max(1, epochs * (steps_per_epoch or -(-images // batch)))
    return dataclasses.replace(recipe, steps=steps, batch_size=batch, warmup=steps // 20, milestones=())


def task_for(
    classifier: Classifier, pictures: Pictures, augmentation: Augmentation, teacher: Classifier | None, distill: float
) -> RecognitionTask:
    """What a classifier is fine-tuned on; with a share to `distill`, also on what the teacher says."""
    images, labels = pictures.train_images, pictures.train_labels
    if not isinstance(images, Tensor):
        if distill:
            raise ValueError("a teacher needs images that fit in memory: leave distill at 0, or give a smaller size")
        return LazyRecognitionTask(images, labels, classifier.prepare, augmentation)
    if distill and teacher is not None:
        return DistillationTask(images, labels, classifier, teacher, augmentation, distill)
    return RecognitionTask(images, labels, classifier.prepare, augmentation)


@dataclass
class FineTuning(Study):
    """Ways to go on with a trained conventional classifier, after none, one and more epochs of fine-tuning."""

    size: int | None = option(None, "Pixels to which pictures are scaled; their own by default.", minimum=8)
    start_from: str | None = option(
        None,
        "The conventional classifier: a folder, or a packaged model. By default, the packaged ResNet-20 for CIFAR-10, "
        "and one that is trained first for other pictures.",
    )
    held_out: bool = option(
        False, "Test on a tenth of the training images instead, which are not trained on: to choose."
    )

    help = (
        "Fine-tune a trained conventional network in several ways, and count errors under all lights after each epoch."
    )
    data_help = "As for recognition: CIFAR-10, or a folder with one sub-folder a class; by default, drawn pictures."
    noun = "way"
    kinds = WAYS
    plans: ClassVar = {
        plan.name: plan
        for plan in (
            FineTuningPlan(
                "usual",
                "a short fine-tuning with a cosine schedule",
                Recipe(3910, lr=0.05, **_RECIPE),
                Augmentation(crop=4),
                distill=0.5,
            ),
            FineTuningPlan(
                "demo",
                "a fine-tuning of a minute for drawn pictures",
                Recipe(64, batch_size=64, lr=0.02, **_RECIPE),
                Augmentation(),
                lengths=(0, 1, 2),
                model="resnet20",
                plain_recipe=Recipe(120, batch_size=64, lr=0.2, warmup=20, log_every=25, **_RECIPE),
            ),
        )
    }
    usual_recipe = "usual"
    pipeline = Classifier
    together = 1

    @classmethod
    def load(cls, data: Path | None, options: Mapping[str, Any]) -> Pictures:
        pictures = drawn_pictures(train=1024, test=512) if data is None else load_pictures(data, options["size"])
        return pictures.held_out() if options["held_out"] else pictures

    def __post_init__(self) -> None:
        """Images and labels on the device."""
        self.data = self.data.to_train_on(self.device)

    def about_data(self) -> dict[str, Any]:
        data = self.data
        return {
            "data": data.name,
            "train_images": len(data.train_labels),
            "test_images": len(data.test_labels),
            "start_from": self._source or "trained first",
        }

    @property
    def _source(self) -> str | None:
        return self.start_from or (_PACKAGED if self.data.name == "CIFAR-10" else None)

    def splits(self) -> list[str]:
        return [str(epochs) for epochs in self.plan.lengths]

    def runs(self) -> list[Run]:
        """As in all experiments, but for what is not fine-tuned: that is measured once."""
        wanted = [Run(run.kind, run.seed, run.split if WAYS[run.kind].trained else "0") for run in super().runs()]
        return list(dict.fromkeys(wanted))

    @cached_property
    def plain(self) -> Classifier:
        """The conventional classifier that everything starts from; trained first, and kept, if none is given."""
        folder = self.out / "plain"
        source = self._source or (str(folder) if (folder / "model.safetensors").exists() else None)
        if source is not None:
            found = load(source)
            if not isinstance(found, Classifier) or found.classes != list(self.data.classes):
                raise ValueError(f"{source} is no classifier for these pictures, of {len(self.data.classes)} classes")
            return found
        from lightfast._experiments.engine import Job

        self.tell(f"training a conventional {self.plan.model} first")
        images = self.data.train_images
        if not isinstance(images, Tensor):
            raise ValueError("the pictures do not fit in memory: train a conventional classifier, and name it")
        torch.manual_seed(0)
        size = images.shape[-1]
        classifier = Classifier(self.plan.model, self.data.classes, ChannelNorm.fit(images.cpu()), size=size)
        classifier.prepare.to(self.device)
        task = RecognitionTask(images, self.data.train_labels, classifier.prepare, self.plan.augmentation)
        self.train_jobs([Job(classifier.network, task, self.plan.plain_recipe, folder, self.resume, name="plain")])
        classifier.about = {"strategy": "original", "data": self.data.name, "seed": 0}
        if is_main():
            classifier.save(folder)
        return classifier

    def make(self, run: Run, folder: Path) -> Training:
        way, plan = WAYS[run.kind], self.plan
        torch.manual_seed(run.seed)
        classifier = start(self.plain, run.kind, self.data.train_images)
        classifier.about |= {"way": way.name, "data": self.data.name, "seed": run.seed}
        augmentation = dataclasses.replace(plan.augmentation, jitter=plan.jitter if way.jitter else 0.0)
        distill = plan.distill if way.name in ("equivariant", "wrapped") else 0.0
        classifier.prepare.to(self.device)
        task = task_for(classifier, self.data, augmentation, self.plain, distill)
        recipe = epoch_recipe(plan.recipe, len(self.data.train_labels), int(run.split), plan.steps_per_epoch)
        return Training(classifier, task, recipe, about={"epochs": int(run.split)})

    def train(self, folders: Mapping[Run, Path], name: str = "model") -> dict[Run, Record]:
        """As in all experiments; zero epochs are measured as they are."""
        still = {run: folder for run, folder in folders.items() if run.split == "0"}
        moving = {run: folder for run, folder in folders.items() if run not in still}
        records: dict[Run, Record] = {}
        for run, folder in still.items():
            folder.mkdir(parents=True, exist_ok=True)
            made = self.make(run, folder)
            records[run] = self._finish(run, made, folder, 0.0, 1, name)
        return records | (super().train(moving, name) if moving else {})

    def keeps_model(self, run: Run) -> bool:
        return WAYS[run.kind].trained and run.split != "0"

    def measure(self, run: Run, pipeline: Classifier) -> Record:
        found = evaluate(pipeline, self.data.test_images, self.data.test_labels, device=self.device)
        return dataclasses.asdict(found) | ({"steps": 0} if run.split == "0" else {})

    def line(self, record: Record) -> str:
        at = dict(zip(record["saturations"], record["errors"], strict=True))
        return f"error {at[0.0]:.2f} % in white light, {_worst(record):.2f} % at worst up to S = {_WORST:g}"

    def report(self, records: Sequence[Record]) -> Report:
        summaries, epochs = self.summaries(records), self.plan.lengths
        title = f"{self.data.name}, {', '.join(map(str, epochs))} epochs"
        parts: list[Figure | Table] = []
        for key, caption in _MEASURES.items():
            about = "; ".join(
                f"{s.title}: {', '.join(s.text(key, place) for place in range(len(epochs)))}" for s in summaries
            )
            parts.append(Figure(key, lambda theme, key=key: _figure(summaries, epochs, key, title, theme), about))
            parts.append(
                comparison(
                    summaries,
                    ["Way", *(f"{count} epoch{'s' * (count != 1)}" for count in epochs)],
                    lambda s, key=key: [s.text(key, place) for place in range(len(epochs))],
                    f"Test error, %, {caption}, after so many epochs of fine-tuning.",
                    seeds=True,
                )
            )
        lead = (
            "A conventional network that was trained before is made invariant to the light in several ways, and "
            "fine-tuned: how soon it is as good as it was in white light, under every light."
        )
        return Report(f"Fine-tuning: {title}", lead, summaries, [Chapter("Error over epochs", parts)])

    def summaries(self, records: Sequence[Record]) -> list[Summary]:
        """What was measured of each way, over seeds: a number for each of the plan's epochs, or None."""
        by_way: dict[str, dict[int, dict[int, Record]]] = {}
        for record in records:
            by_way.setdefault(record[self.noun], {}).setdefault(record["seed"], {})[record["epochs"]] = record
        return [
            Summary.of(
                way,
                WAYS[way].title,
                next(iter(next(iter(seeds.values())).values()))["parameters"],
                [_over_epochs(runs, self.plan.lengths) for runs in seeds.values()],
                self.is_ours(way),
            )
            for way, seeds in by_way.items()
        ]

    @classmethod
    def recipes(cls, data: Path | None) -> dict[str, Plan]:
        recipes = super().recipes(data)
        if data is None or holds_cifar10(data):
            return recipes
        # Photographs are cut as they are where networks for them are trained.
        cut = Augmentation(resize=True, smallest_part=0.25)
        return {name: dataclasses.replace(plan, augmentation=cut) for name, plan in recipes.items()}


_MEASURES = {
    "white": "in white light",
    "worst": f"under the worst light up to saturation {_WORST:g}",
    "mixed": "under light that turns from one hue into another over the image",
}


def _worst(record: Record) -> float:
    pairs = zip(record["saturations"], record["errors"], strict=True)
    return max(error for saturation, error in pairs if saturation <= _WORST)


def _over_epochs(runs: Mapping[int, Record], epochs: Sequence[int]) -> dict[str, list[float | None]]:
    def at(number: int, key: str) -> float | None:
        record = runs.get(number)
        if record is None:
            return None
        return _worst(record) if key == "worst" else record["mixed"] if key == "mixed" else record["errors"][0]

    return {key: [at(number, key) for number in epochs] for key in _MEASURES}


def _figure(summaries: Sequence[Summary], epochs: Sequence[int], key: str, title: str, theme: Any) -> bytes:
    figure, (axes,) = new_figure((8.6, 4.8), theme)
    places = list(range(len(epochs)))
    draw_curves(axes, theme, summaries, places, lambda measured: _everywhere(measured[key]))
    axes.set_xticks(places, [str(number) for number in epochs])
    axes.set_yscale("log")
    for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        which("{x:g}")
    label_axes(axes, theme, f"{title}, {_MEASURES[key]}", "epochs of fine-tuning", "test error, %", beside=True)
    return png_of(figure)


def _everywhere(errors: Sequence[float | None]) -> list[float | None]:
    """The errors of what is fine-tuned; of what is not, the one that was measured, at all lengths."""
    return list(errors) if any(error is not None for error in errors[1:]) else [errors[0]] * len(errors)
