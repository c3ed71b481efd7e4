"""The comparison: strategies against light of another spectrum, where each band is a group of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast._experiments.data.augment import pad_crop, random_flip
from lightfast._experiments.data.spectral import Cubes, drawn_cubes, holds_pixels, load_cubes
from lightfast._experiments.engine import Recipe
from lightfast._experiments.plan import Plan
from lightfast._experiments.records import Record, Run
from lightfast._experiments.report import Chapter, Figure, Report
from lightfast._experiments.report.figures import Theme, draw_curves, label_axes, new_figure, png_of
from lightfast._experiments.report.tables import comparison
from lightfast._experiments.study import Study, Training, option
from lightfast._experiments.summary import Summary
from lightfast._pipelines.spectral import SpectralClassifier
from lightfast.light import spectral_gains

__all__ = ["Spectral"]

STRENGTHS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""Of the light to test with: the standard deviation over bands of the logarithm of its gains."""

_LIGHTS = 8
_SIDE = 32


@dataclass(frozen=True)
class Strategy:
    """One way to meet light of another spectrum."""

    title: str
    kind: Literal["conventional", "wrapped", "equivariant"] = "conventional"
    constrained: bool = True
    relit: bool = False

    @property
    def color(self) -> str:
        """What reports ask: whether light cannot fool it."""
        return "linear" if self.kind == "conventional" else "log"


@dataclass(frozen=True)
class Augmentation:
    """What training does to a cube.

    Args:
        shift: by up to so many pixels, both ways.
        flip: mirror half of the cubes.
        relight: the strongest light that is put on cubes by the strategy that trains with other light.
        label_smoothing: share of the target that is spread over all classes.
    """

    shift: int = 4
    flip: bool = True
    relight: float = 1.0
    label_smoothing: float = 0.1


@dataclass(frozen=True)
class SpectralPlan(Plan):
    """A plan with the network's widths, in features per band."""

    widths: tuple[int, ...] = (2, 4, 8)


class CubeTask:
    """Cubes and their labels. Shapes: (N, b, H, W) and (N,)."""

    def __init__(
        self, cubes: Tensor, labels: Tensor, pipeline: SpectralClassifier, augmentation: Augmentation, relit: bool
    ) -> None:
        self.cubes, self.labels, self.encode = cubes, labels, pipeline.encode
        self.pipeline, self.augmentation, self.relit = pipeline, augmentation, relit
        self.samples = len(labels)

    def to(self, device: torch.device) -> None:
        """Move everything to the device."""
        self.cubes, self.labels = self.cubes.to(device), self.labels.to(device)
        self.pipeline.norm.to(device)

    @torch.no_grad()
    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """What the network sees, and labels."""
        x = self.encode(self._relight(self.cubes[indices], generator))
        if self.augmentation.shift:
            x = pad_crop(x, self.augmentation.shift, generator=generator)
        if self.augmentation.flip:
            x = random_flip(x, generator=generator)
        return x, self.labels[indices]

    def _relight(self, cubes: Tensor, generator: torch.Generator) -> Tensor:
        if not self.relit:
            return cubes
        strengths = self.augmentation.relight * torch.rand(len(cubes), generator=generator, device=generator.device)
        gains = spectral_gains(len(cubes), cubes.shape[1], strengths, generator=generator)
        return cubes * gains.to(cubes.device)[:, :, None, None]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross entropy where there are labels, and the share of what is wrong as `error`, in per cent."""
        x, labels = batch
        scores, known = model(x).float(), labels >= 0
        smoothing = self.augmentation.label_smoothing
        loss = F.cross_entropy(scores, labels, ignore_index=-1, label_smoothing=smoothing)
        wrong = ((scores.detach().argmax(1) != labels) & known).sum() / known.sum().clamp(min=1)
        return loss, {"error": 100 * wrong}


class PixelTask(CubeTask):
    """Pixels and their labels, (P, b) and (P,): squares of pixels from anywhere are cubes in one light each."""

    @torch.no_grad()
    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        cubes = self.cubes[indices].view(-1, _SIDE, _SIDE, self.cubes.shape[1]).permute(0, 3, 1, 2)
        return self.encode(self._relight(cubes, generator)), self.labels[indices].view(-1, _SIDE, _SIDE)


@dataclass
class Spectral(Study):
    """Strategies against light of another spectrum; every fold of the data is tested on once."""

    held_out: bool = option(
        False, "Test on the fold after the one that is tested otherwise, and train on neither: to choose settings by."
    )

    help = "Compare strategies against light of another spectrum, on cubes of many bands, each a group of its own."
    train_help = ""
    data_help = (
        "A folder with cubes.npz and index.csv, or with Indian_pines_corrected.npy and Indian_pines_gt.npy (the wheel "
        "of tensorly has them, in tensorly/datasets/data); by default, cubes that lightfast draws itself."
    )
    noun = "strategy"
    kinds: ClassVar = {
        "original": Strategy("Original"),
        "augmentation": Strategy("Augmentation", relit=True),
        "wrapped": Strategy("Wrapped", "wrapped"),
        "equivariant": Strategy("Equivariant", "equivariant"),
        "equivariant-free": Strategy("Equivariant, free weights", "equivariant", constrained=False),
    }
    plans: ClassVar = {
        "cubes": SpectralPlan(
            "cubes",
            "Cubes",
            Recipe(
                4000, 32, lr=0.05, nesterov=True, weight_decay=1e-3, schedule="cosine", warmup=333, checkpoint_every=0
            ),
            Augmentation(),
            (4, 8, 16),
        ),
        "pixels": SpectralPlan(
            "pixels",
            "Pixels",
            Recipe(3000, 4096, "adamw", lr=3e-3, weight_decay=0.05, schedule="cosine", warmup=300, checkpoint_every=0),
            Augmentation(shift=0, flip=False),
            (2, 2),
        ),
        "demo": SpectralPlan(
            "demo", "Demo", Recipe(60, 16, lr=0.05, schedule="cosine", warmup=10), Augmentation(shift=1), (2, 2)
        ),
    }
    usual_recipe = "cubes"
    together = 15
    pipeline = SpectralClassifier
    measured = ("strengths", "errors", "class_errors")

    @classmethod
    def recipes(cls, data: Path | None) -> dict[str, Plan]:
        """`best` is what suits the data."""
        suits = "demo" if data is None else "pixels" if holds_pixels(data) else "cubes"
        return {**super().recipes(data), "best": cls.plans[suits]}

    @classmethod
    def load(cls, data: Path | None, options: Mapping[str, Any]) -> Cubes:
        return drawn_cubes() if data is None else load_cubes(data)

    def about_data(self) -> dict[str, Any]:
        n, bands, height, width = self.data.cubes.shape
        sizes = {"cubes": n, "bands": bands, "height": height, "width": width, "classes": len(self.data.classes)}
        return {
            "data": self.data.name,
            **sizes,
            "labels": int((self.data.labels >= 0).sum()),
            "held_out": self.held_out,
        }

    def trains(self) -> Sequence[str]:
        """All that is compared; a constrained network of 1x1 convolutions has nothing to learn."""
        return [kind for kind in self.chosen if not (self.data.per_pixel and kind == "equivariant")]

    def splits(self) -> Sequence[str]:
        return [str(fold) for fold in range(int(self.data.folds.max()) + 1)]

    def _sides(self, split: str) -> tuple[Tensor, Tensor]:
        """What to train on, and what to test on, as masks over labels."""
        folds, count = self.data.folds, len(self.splits())
        other = (int(split) + 1) % count if self.held_out else int(split)
        return (folds != int(split)) & (folds != other), folds == other

    def make(self, run: Run, folder: Path) -> Training:
        data, strategy, plan = self.data, self.kinds[run.kind], self.plan
        train = self._sides(run.split)[0]
        samples = data.cubes.permute(0, 2, 3, 1)[train] if data.per_pixel else data.cubes[train]
        logs = -samples.log()
        over = 0 if data.per_pixel else (0, 2, 3)
        torch.manual_seed(run.seed)
        pipeline = SpectralClassifier(
            list(data.classes),
            logs.mean(over).tolist(),
            logs.std(over).tolist(),
            strategy.kind,
            strategy.constrained,
            list(plan.widths),
            data.per_pixel,
        )
        task = PixelTask if data.per_pixel else CubeTask
        return Training(
            pipeline, task(samples, data.labels[train], pipeline, plan.augmentation, strategy.relit), plan.recipe
        )

    @torch.no_grad()
    def measure(self, run: Run, pipeline: SpectralClassifier) -> Record:
        """How many labels of the test fold are wrong under each light, and how many there are, of each class."""
        data, test = self.data, self._sides(run.split)[1]
        pipeline = pipeline.to(self.device).eval()
        if data.per_pixel:
            cubes = data.cubes.permute(0, 2, 3, 1)[test].T[None, :, :, None]
            labels = data.labels[test][None, :, None]
        else:
            cubes, labels = data.cubes[test], data.labels[test]
        cubes, labels, classes = cubes.to(self.device), labels.to(self.device), len(data.classes)
        wrong = []
        for strength in STRENGTHS:
            generator = torch.Generator().manual_seed(0)
            counts = torch.zeros(classes, device=self.device)
            for _ in range(_LIGHTS):
                gains = spectral_gains(len(cubes), cubes.shape[1], strength, generator=generator)
                missed = pipeline(cubes * gains.to(self.device)[:, :, None, None]).argmax(1) != labels
                counts += torch.bincount(labels[missed & (labels >= 0)], minlength=classes)
            wrong.append((counts / _LIGHTS).tolist())
        known = torch.bincount(labels[labels >= 0], minlength=classes).tolist()
        return {"strengths": list(STRENGTHS), "wrong": wrong, "known": known, "lights": _LIGHTS}

    def line(self, record: Record) -> str:
        known = sum(record["known"])
        at = dict(zip(record["strengths"], record["wrong"], strict=True))
        return "error " + ", ".join(f"{100 * sum(at[s]) / known:.1f} % at strength {s:g}" for s in (0.0, 0.2, 0.5, 1.0))

    def keeps_model(self, run: Run) -> bool:
        return run.seed == 0 and run.split == "0"

    def report(self, records: Sequence[Record]) -> Report:
        summaries = self.summaries(self._whole(records))
        title = f"{self.data.name}, {len(self.data.classes)} classes"
        columns = [f"{strength:g}" for strength in STRENGTHS]
        caption = (
            f"{{}}, under smooth random spectra of light; the columns have the standard deviation of the logarithm of "
            f"its gains over bands. Each of the {len(self.splits())} folds is tested on once; mean ± standard "
            "deviation over seeds if there are several."
        )
        tables = [
            comparison(
                summaries,
                ["Strategy", *columns],
                lambda summary, key=key: [summary.text(key, place) for place in range(len(STRENGTHS))],
                caption.format(words),
                seeds=key == "errors",
            )
            for key, words in (("errors", "Test error, %"), ("class_errors", "Mean over classes of the error, %"))
        ]
        described = "; ".join(f"{s.title}: {s.at('errors', 0):.1f} to {s.at('errors', -1):.1f} %" for s in summaries)
        figure = Figure("errors", lambda theme: _figure(summaries, title, theme), described)
        heading = "Error over the strength of the light"
        chapters = [Chapter(heading, [figure, tables[0]]), Chapter("Classes", [tables[1]])]
        return Report(f"Spectral recognition: {title}", f"{described}.", summaries, chapters)

    def _whole(self, records: Sequence[Record]) -> list[Record]:
        """The records of each strategy and seed over all folds, as one; incomplete ones are left out."""
        whole: dict[tuple[str, int], list[Record]] = {}
        for record in records:
            whole.setdefault((record["strategy"], record["seed"]), []).append(record)
        return [self._joined(folds) for folds in whole.values() if len(folds) == len(self.splits())]

    @staticmethod
    def _joined(folds: Sequence[Record]) -> Record:
        wrong = torch.tensor([fold["wrong"] for fold in folds]).sum(0)
        known = torch.tensor([fold["known"] for fold in folds]).sum(0)
        errors, by_class = 100 * wrong.sum(1) / known.sum(), 100 * (wrong / known)[:, known > 0].mean(1)
        return {**folds[0], "errors": errors.tolist(), "class_errors": by_class.tolist()}


def _figure(summaries: Sequence[Summary], title: str, theme: Theme) -> bytes:
    figure, (axes,) = new_figure((7, 4), theme)
    draw_curves(axes, theme, summaries, STRENGTHS, lambda measured: measured["errors"])
    label_axes(axes, theme, title, "strength of the light", "test error, %", beside=True)
    return png_of(figure)
