"""The comparison: prints that are learned under one lamp, and recognized under the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightfast._experiments.classification import STRATEGIES, ClassificationTask
from lightfast._experiments.data.augment import color_jitter, random_affine, random_flip
from lightfast._experiments.data.prints import Prints, drawn_prints, load_prints
from lightfast._experiments.engine import Recipe
from lightfast._experiments.plan import Plan
from lightfast._experiments.records import Record, Run
from lightfast._experiments.report import Chapter, Figure, Report
from lightfast._experiments.report.figures import Theme, draw_curves, label_axes, new_figure, png_of
from lightfast._experiments.report.tables import comparison
from lightfast._experiments.study import Study, Training, option
from lightfast._experiments.summary import Summary
from lightfast._pipelines.classifier import Classifier
from lightfast.color import linear_to_srgb
from lightfast.metrics import recovery_error


@dataclass(frozen=True)
class Augmentation:
    """What training does to an image. Only `jitter` changes its light.

    Args:
        shift: by up to this share of the image, both ways.
        turn: by up to so many degrees.
        zoom: by a factor of up to 1 + zoom, larger or smaller.
        flip: mirror half of the images.
        noise: standard deviation of what is added to each number, in sRGB.
        jitter: strength of the color jitter, for the strategy that does, from 0 to 1.
        label_smoothing: share of the target that is spread over all prints.
    """

    shift: float = 0.08
    turn: float = 8.0
    zoom: float = 0.1
    flip: bool = False
    noise: float = 0.01
    jitter: float = 0.5
    label_smoothing: float = 0.1


@dataclass(frozen=True)
class PrintsPlan(Plan):
    """A plan with a network's name."""

    augmentation: Augmentation = field(default_factory=Augmentation)
    model: str = "resnet20"


class PrintTask(ClassificationTask):
    """Images under one lamp and what they show. Shapes: sRGB (N, 3, S, S) in [0, 1], and (N,)."""

    def __init__(
        self, images: Tensor, labels: Tensor, pipeline: Classifier, augmentation: Augmentation, jitter: bool
    ) -> None:
        super().__init__(images, labels, pipeline.prepare, augmentation)
        self.jitter = augmentation.jitter if jitter else 0.0

    @torch.no_grad()
    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """What the network sees, and labels."""
        how, x = self.augmentation, self.images[indices]
        x = random_affine(x, how.shift, how.turn, how.zoom, generator)
        x = random_flip(x, generator) if how.flip else x
        if self.jitter:
            strength = 0.8 * self.jitter
            x = color_jitter(x, strength, strength, strength, 0.5 * self.jitter, generator=generator)
        drawn = torch.randn(x.shape, generator=generator, device=generator.device)
        x = (x + how.noise * drawn.to(x.device)).clamp(0, 1)
        return self.prepare(x), self.labels[indices]


_COSINE: dict[str, Any] = {"nesterov": True, "weight_decay": 5e-4, "schedule": "cosine", "checkpoint_every": 0}


@dataclass
class PrintsStudy(Study):
    """Strategies against another lamp; every lamp of every camera is learned under once."""

    size: int = option(32, "Pixels to which prints are scaled.", minimum=8)
    camera: str | None = option(None, "Do the trainings of this camera alone; the others can follow.")

    help = "Compare strategies against real lamps: learn prints under one, recognize them under every other."
    data_help = (
        "A folder of INTEL-TAU images with index.csv, of which those of kind lab_printouts are used; by default, "
        "prints that lightfast draws itself."
    )
    noun = "strategy"
    kinds: ClassVar = {
        name: STRATEGIES[name]
        for name in (
            *("original", "augmentation", "gray-world", "equivariant", "equivariant-free", "equivariant-plane"),
            *("equivariant-plane-free", "wrapped", "wrapped-plane", "wrapped-quadratic"),
        )
    }
    plans: ClassVar = {
        "best": PrintsPlan("best", "60 prints", Recipe(800, 64, lr=0.1, warmup=80, **_COSINE)),
        "demo": PrintsPlan(
            "demo", "Drawn prints", Recipe(40, 24, lr=0.1, warmup=5, **_COSINE), Augmentation(), "resnet20"
        ),
    }
    together = 15
    pipeline = Classifier
    measured = ("pairs", "cameras", "same", "mean")

    @classmethod
    def load(cls, data: Path | None, options: Mapping[str, Any]) -> Prints:
        prints = drawn_prints(size=options["size"]) if data is None else load_prints(data, options["size"])
        if options["camera"] not in (None, *prints.cameras):
            known = ", ".join(sorted(set(prints.cameras)))
            raise ValueError(f"there is no camera {options['camera']!r}; there are {known}")
        return prints

    def __post_init__(self) -> None:
        """What networks see begins as sRGB, as other classifiers' images do; the camera's colors stay its own."""
        self._images = linear_to_srgb(self.data.images)

    def about_data(self) -> dict[str, Any]:
        return {"data": self.data.name, "images": len(self.data.images), "size": self.size}

    def _lamps(self) -> dict[str, list[str]]:
        return {camera: self.data.lamps_of(camera) for camera in sorted(set(self.data.cameras))}

    def splits(self) -> Sequence[str]:
        """The lamps to learn under."""
        lamps = self._lamps()
        chosen = lamps if self.camera is None else [self.camera]
        return [f"{camera}-{lamp}" for camera in chosen for lamp in lamps[camera]]

    def _classes(self, camera: str) -> list[int]:
        return self.data.prints[self.data.of(camera)].unique().tolist()

    def _samples(self, camera: str, lamp: str) -> tuple[Tensor, Tensor]:
        chosen = self.data.of(camera, lamp)
        return self._images[chosen], torch.searchsorted(
            torch.tensor(self._classes(camera)), self.data.prints[chosen].contiguous()
        )

    def make(self, run: Run, folder: Path) -> Training:
        strategy, (camera, lamp) = self.kinds[run.kind], run.split.rsplit("-", 1)
        images, labels = self._samples(camera, lamp)
        classes = [f"print {number}" for number in self._classes(camera)]
        pipeline = strategy.classifier(self.plan.model, classes, strategy.norm(images), self.size, run.seed)
        task = PrintTask(images, labels, pipeline, self.plan.augmentation, strategy.jitter)
        return Training(pipeline, task, self.plan.recipe, about={"camera": camera, "lamp": lamp})

    @torch.no_grad()
    def measure(self, run: Run, pipeline: Classifier) -> Record:
        """Errors in per cent under each lamp, its own included, on the prints that were learned."""
        camera, lamp = run.split.rsplit("-", 1)
        pipeline = pipeline.to(self.device).eval()
        learned = self._samples(camera, lamp)[1].unique()
        errors, counts = {}, {}
        for other in self.data.lamps_of(camera):
            images, labels = self._samples(camera, other)
            known = torch.isin(labels, learned)
            wrong = pipeline(images[known].to(self.device)).argmax(1).cpu() != labels[known]
            errors[other], counts[other] = 100 * int(wrong.sum()) / len(wrong), len(wrong)
        return {"errors": errors, "images": counts}

    def line(self, record: Record) -> str:
        others = [error for lamp, error in record["errors"].items() if lamp != record["lamp"]]
        return f"error {statistics.fmean(others):.1f} % under the other lamps, at worst {max(others):.1f} %"

    def keeps_model(self, run: Run) -> bool:
        return False

    def report(self, records: Sequence[Record]) -> Report:
        whole = self._whole(records)
        if not whole:
            raise ValueError("no strategy was trained under all lamps of a camera yet: run the command again")
        cameras = sorted({camera for record in whole for camera in record["cameras"]})
        measured = self.summaries(whole)
        title = f"{self.data.name}, {self.plan.model}, {self.plan.recipe.steps:,} steps"
        means = comparison(
            measured,
            ["Strategy", *cameras, "all", "hardest pair", "the same lamp"],
            lambda s: [
                *(s.text("cameras", camera) if camera in s.mean["cameras"] else "" for camera in cameras),
                s.text("mean"),
                _hardest(s),
                s.text("same"),
            ],
            "Error, %, on prints that were learned under one lamp and seen under another: mean over all ordered pairs "
            "of lamps of each camera, over all cameras, and for the pair with the largest error (lamp learned under → "
            "lamp seen under). The last column has the images that were learned. Mean ± standard deviation over seeds "
            "if there are several.",
            seeds=True,
        )
        by_pair = [self._pair_table(measured, camera) for camera in cameras]
        described = "; ".join(f"{s.title}: {s.at('mean'):.1f} %" for s in measured)
        figure = Figure("lamps", lambda theme: self._figure(measured, cameras, theme), described)
        chapters = [
            Chapter("Error under other lamps", [figure, means]),
            Chapter("Pairs of lamps", by_pair),
        ]
        lead = f"Mean error under lamps that were not learned under: {described}."
        return Report(f"Prints under real lamps: {title}", lead, measured, chapters)

    def _pair_table(self, summaries: Sequence[Summary], camera: str) -> Any:
        there = [s for s in summaries if camera in s.mean["pairs"]]
        pairs = self._by_angle(camera)
        return comparison(
            there,
            ["Strategy", *(f"{a}, {b}" for a, b in pairs)],
            lambda s: [f"{_both(s.mean, camera, pair):.1f}" for pair in pairs],
            f"{camera}: mean error, %, for each pair of lamps, both ways, from those of nearly the same color to those "
            f"that differ most ({', '.join(f'{angle:.1f}°' for angle in pairs.values())} apart).",
        )

    def _by_angle(self, camera: str) -> dict[tuple[str, str], float]:
        """Pairs of a camera's lamps and the angle between their colors, in degrees, smallest first."""
        lamps = self.data.lamps_of(camera)
        light = {lamp: self.data.illuminants[self.data.of(camera, lamp)].mean(0) for lamp in lamps}
        angles = {
            (a, b): recovery_error(light[a][None], light[b][None]).item()
            for place, a in enumerate(lamps)
            for b in lamps[place + 1 :]
        }
        return dict(sorted(angles.items(), key=lambda item: item[1]))

    def _whole(self, records: Sequence[Record]) -> list[Record]:
        """The records of each strategy and seed over all lamps, as one; cameras that are not complete are left out."""
        found: dict[tuple[str, int], dict[str, dict[str, Record]]] = {}
        for record in records:
            cameras = found.setdefault((record["strategy"], record["seed"]), {})
            cameras.setdefault(record["camera"], {})[record["lamp"]] = record
        whole, lamps = [], self._lamps()
        for cameras in found.values():
            complete = {camera: runs for camera, runs in cameras.items() if sorted(runs) == lamps.get(camera)}
            if complete:
                whole.append(self._joined(complete))
        return whole

    @staticmethod
    def _joined(cameras: Mapping[str, Mapping[str, Record]]) -> Record:
        pairs = {
            camera: {f"{a} → {b}": e for a, run in runs.items() for b, e in run["errors"].items() if a != b}
            for camera, runs in cameras.items()
        }
        means = {camera: statistics.fmean(errors.values()) for camera, errors in pairs.items()}
        same = statistics.fmean(run["errors"][lamp] for runs in cameras.values() for lamp, run in runs.items())
        first = next(iter(next(iter(cameras.values())).values()))
        return {**first, "pairs": pairs, "cameras": means, "same": same, "mean": statistics.fmean(means.values())}

    def _figure(self, summaries: Sequence[Summary], cameras: Sequence[str], theme: Theme) -> bytes:
        """Error over the angle between lamps, a panel per camera."""
        figure, panels = new_figure((4.2 * len(cameras) + 2, 4.2), theme, len(cameras))
        for camera, axes in zip(cameras, panels, strict=True):
            pairs = self._by_angle(camera)
            there = [s for s in summaries if camera in s.mean["pairs"]]

            def numbers(measured: Any, camera: str = camera, pairs: Any = pairs) -> list[float]:
                return [_both(measured, camera, pair) for pair in pairs]

            draw_curves(axes, theme, there, list(pairs.values()), numbers)
            axes.set_ylim(bottom=0)
            last = camera == cameras[-1]
            label_axes(axes, theme, camera, "angle between the lamps, °", "error, %", legend=last, beside=last)
        return png_of(figure)


def _both(measured: Any, camera: str, pair: tuple[str, str]) -> float:
    """The error for a pair of lamps, both ways."""
    (a, b), errors = pair, measured["pairs"][camera]
    return (errors[f"{a} → {b}"] + errors[f"{b} → {a}"]) / 2


def _hardest(summary: Summary) -> str:
    errors = [
        (error, f"{camera} {pair}") for camera, pairs in summary.mean["pairs"].items() for pair, error in pairs.items()
    ]
    error, pair = max(errors, key=lambda found: found[0])
    return f"{error:.1f} ({pair})"
