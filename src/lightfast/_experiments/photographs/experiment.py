"""The comparison: methods of white balance on pictures that a camera has balanced, rightly or wrongly."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lightfast._experiments.data.generated_scenes import draw_scenes
from lightfast._experiments.data.lit_scenes import LitScenes
from lightfast._experiments.data.scene_folder import load_scenes
from lightfast._experiments.engine import Recipe
from lightfast._experiments.photographs.difference import delta_e, lab
from lightfast._experiments.photographs.render import CASTS, Renders, render
from lightfast._experiments.photographs.task import CastTask, fit_reader, held_out
from lightfast._experiments.plan import Plan
from lightfast._experiments.provenance import provenance
from lightfast._experiments.records import Record, Run, keep_settings, run_folder, write_record
from lightfast._experiments.report import Chapter, Report
from lightfast._experiments.report.tables import comparison
from lightfast._experiments.study import Study, Training, option
from lightfast._photographs.balance import DEFAULT_ESTIMATOR, balance, choose_estimator
from lightfast._photographs.cast import CastReader
from lightfast._pipelines.estimator import Estimator

__all__ = ["Photographs"]


@dataclass(frozen=True)
class Method:
    """A way to balance a picture: an estimator by its name, or none, and what is thought of pictures before."""

    title: str
    estimator: str | None = None
    prior: Literal["auto", "none"] = "none"

    @property
    def color(self) -> str:
        """What reports ask: whether it is ours."""
        return "log" if self.estimator == DEFAULT_ESTIMATOR else "srgb"


_RECIPE = Recipe(
    1500,
    batch_size=128,
    optimizer="adamw",
    lr=0.002,
    weight_decay=0.02,
    schedule="cosine",
    warmup=120,
    ema=0.99,
    clip=1.0,
    log_every=100,
    checkpoint_every=300,
)
# Of pictures that are right, how many may be changed in part, and in full.
_MAY_CHANGE = (0.02, 0.01)
_ESTIMATES = 80


class CastPlan(Plan):
    """Rendering makes small tensors in every step, which no CUDA graph takes; and small numbers need their bits."""

    on_gpu: ClassVar = {}


@dataclass
class Photographs(Study):
    """Methods of white balance, measured on scenes as cameras render them.

    What `train` trains is the prior of rendered pictures, :class:`~lightfast._photographs.cast.CastReader`.
    """

    scenes: int = option(
        300, "How many scenes to render, evenly spread over those that there are.", "reproduce", minimum=2
    )
    estimator: str = option(
        DEFAULT_ESTIMATOR,
        "What estimates the light, as `lightfast balance --estimator` takes it: one that has not seen the scenes.",
    )
    rounds: int = option(3, "How many times each scene that is held out is rendered, to fit.", "train", minimum=1)
    _kept: dict[tuple[int, float], Renders] = dataclasses.field(default_factory=dict, repr=False)

    train_help = "Train the small network that tells whether a camera has balanced a picture already."
    help = "Balance pictures as cameras render them, rightly or wrongly: what is repaired, and what is made worse."
    data_help = (
        "A folder of raw scenes with their light, laid out as the reduced NUS set (index.csv, 16-bit linear PNGs), "
        "none that the networks were trained on; by default, scenes that lightfast draws itself."
    )
    noun = "method"
    kinds: ClassVar = {
        "nothing": Method("Nothing is done"),
        "gray-world": Method("Gray world", "gray-world"),
        "white-patch": Method("White patch", "white-patch"),
        "shades-of-gray": Method("Shades of gray", "shades-of-gray"),
        "gray-edge-1": Method("Gray edge", "gray-edge-1"),
        "no-prior": Method("Balance, without prior", DEFAULT_ESTIMATOR),
        "prior": Method("Balance", DEFAULT_ESTIMATOR, "auto"),
    }
    plans: ClassVar = {
        "best": CastPlan("best", "Scenes of a data set", _RECIPE),
        "demo": CastPlan("demo", "Drawn scenes", dataclasses.replace(_RECIPE, steps=100, batch_size=32, warmup=10)),
    }
    trained = "prior"
    pipeline = CastReader
    measured = ("before", "after", "angle_before", "angle_after", "worse", "moved", "moved_95")

    @classmethod
    def load(cls, data: Path | None, options: Mapping[str, Any]) -> LitScenes:
        return draw_scenes() if data is None else load_scenes(data)

    def about_data(self) -> dict[str, Any]:
        return {
            "data": self.data.name,
            "cameras": list(self.data.camera_names),
            "scenes": len(self._chosen()),
            "estimator": Path(self.estimator).name,
        }

    @cached_property
    def _held_out(self) -> Tensor:
        return held_out(self.data)

    def _chosen(self) -> Tensor:
        """Numbers of the scenes that are rendered."""
        count = min(self.scenes, len(self.data))
        return torch.linspace(0, len(self.data) - 1, count).round().long()

    def _renders(self, seed: int, cast: float) -> Renders:
        """The pictures that all methods get; kept from one to the next."""
        if (seed, cast) not in self._kept:
            chosen = self.data.subset(self._chosen())
            generator = torch.Generator().manual_seed(1000 * seed + round(10 * cast))
            self._kept[seed, cast] = render(chosen.images, chosen.illuminants, cast, generator)
        return self._kept[seed, cast]

    def make(self, run: Run, folder: Path) -> Training:
        reader = CastReader()
        kept = self.data.subset(torch.where(~self._held_out)[0])
        reader.about = {"data": self.data.name, "cameras": list(self.data.camera_names), "plan": self.plan.to_dict()}
        return Training(reader, CastTask(kept, reader.encoding), self.plan.recipe)

    def run(self) -> list[Record]:
        """Measure what is not measured yet."""
        # How the prior is trained is no setting of what is measured.
        keep_settings(self.out, self.about_data(), write=self.main)
        records = self.finished()
        for run in self.runs():
            if run in records:
                continue
            start = time.monotonic()
            record = {
                "method": run.kind,
                "title": self.kinds[run.kind].title,
                "seed": run.seed,
                "parameters": 0,
                "steps": 0,
                "train_seconds": 0.0,
                **self.measure(run, None),
                "evaluate_seconds": round(time.monotonic() - start, 1),
                "provenance": provenance(),
            }
            folder = run_folder(self.out, run)
            folder.mkdir(parents=True, exist_ok=True)
            write_record(folder, record)
            self.tell(f"{run} is done: {self.line(record)}")
            records[run] = record
        return list(self._in_order(records).values())

    @torch.no_grad()
    def measure(self, run: Run, pipeline: Any) -> Record:
        """Differences of color and angles before and after, for right pictures and for each size of error.

        A reader that was just trained is fitted to scenes that it was not trained on, instead.
        """
        if pipeline is not None:
            rest = self.data.subset(torch.where(self._held_out)[0])
            estimator = Estimator.load(self.estimator)
            fit = fit_reader(pipeline.to(self.device).eval(), rest, estimator, _MAY_CHANGE, self.rounds, _ESTIMATES)
            pipeline.about |= {"fit": fit, "provenance": provenance()}
            return fit
        method = self.kinds[run.kind]
        named = self.estimator if method.estimator == DEFAULT_ESTIMATOR else method.estimator
        estimate = None if named is None else choose_estimator(named)
        found: dict[str, list[float]] = {name: [] for name in self.measured}
        for cast in CASTS:
            for name, value in _measured(self._renders(run.seed, cast), estimate, method):
                found[name].append(round(value, 4))
        return {"casts": list(CASTS), **found}

    def line(self, record: Record) -> str:
        if "wrong_told" in record:
            left, told = record["right_left"], record["wrong_told"]
            return f"{left:.1f} % of pictures that are right are left alone, {told:.1f} % of the others are told"
        pairs = zip(record["casts"], record["before"], record["after"], strict=True)
        return "ΔE " + ", ".join(f"{before:.1f} to {after:.1f} at {cast:g}°" for cast, before, after in pairs)

    def report(self, records: Sequence[Record]) -> Report:
        summaries = self.summaries(records)
        columns = ["right", *(f"{cast:g}° off" for cast in CASTS[1:])]
        about = (
            f"Mean over {len(self._chosen())} pictures of {self.data.name}, rendered as cameras do, right or off by an "
            "angle of what should be gray."
        )
        captions = {
            "after": "Difference to the right picture, ΔE2000.",
            "angle_after": "Angle between what should be gray and gray, degrees.",
            "worse": "Share of pictures made worse by more than ΔE 1, %.",
            "moved": "By how much pictures were moved, degrees.",
            "moved_95": "By how much the twentieth of pictures that were moved most was moved at least, degrees.",
        }
        tables = [
            comparison(
                summaries,
                ["Method", *columns],
                lambda summary, key=key: [summary.text(key, place) for place in range(len(CASTS))],
                f"{caption} {about}",
            )
            for key, caption in captions.items()
        ]
        ours = next((summary for summary in summaries if summary.name == "prior"), summaries[-1])
        lead = (
            f"{ours.title}: right pictures are moved by {ours.at('moved', 0):.1f} degrees in the mean (95 %: "
            f"{ours.at('moved_95', 0):.1f}), {ours.at('worse', 0):.1f} % of them get worse by more than ΔE 1; pictures "
            f"that are 10 degrees off go from ΔE {ours.at('before', 3):.1f} to {ours.at('after', 3):.1f}."
        )
        bare = next((summary for summary in summaries if summary.name == "no-prior"), None)
        if bare is not None:
            shares = [
                f"{100 * (ours.at('before', place) - ours.at('after', place)) / gained:.0f} % at {cast:g} degrees"
                for place, cast in enumerate(CASTS)
                if (gained := bare.at("before", place) - bare.at("after", place)) > 0
            ]
            lead += f" Of what is gained without prior, that is {', '.join(shares)}."
        return Report("White balance of rendered pictures", lead, summaries, [Chapter("Methods", tables)])


def _measured(renders: Renders, estimate: Any, method: Method) -> list[tuple[str, float]]:
    """The names and values of `Photographs.measured`, for pictures that are all off by the same angle."""
    after, gains = [], []
    for picture in renders.pictures:
        if estimate is None:
            after.append(picture)
            gains.append(torch.ones(3))
            continue
        found = balance((255 * picture).round().byte(), estimate, prior=method.prior)
        after.append(found.picture.float() / 255)
        gains.append(torch.tensor(found.gains))
    gray, gain = renders.gray, torch.stack(gains)
    right = lab(renders.right)
    before, behind = (_mean(delta_e(lab(p), right), renders.mask) for p in (renders.pictures, torch.stack(after)))
    moved = _angle(gain)
    values = {
        "before": before.mean(),
        "after": behind.mean(),
        "angle_before": _angle(gray).mean(),
        "angle_after": _angle(gray * gain).mean(),
        "worse": 100 * (behind > before + 1).float().mean(),
        "moved": moved.mean(),
        "moved_95": moved.quantile(0.95),
    }
    return [(name, float(value)) for name, value in values.items()]


def _mean(differences: Tensor, mask: Tensor) -> Tensor:
    """Of each picture, over pixels that count."""
    return (differences * mask[:, 0]).sum((1, 2)) / mask.sum((1, 2, 3)).clamp(min=1)


def _angle(colors: Tensor) -> Tensor:
    """Degrees from gray."""
    return (colors.sum(1) / 3**0.5 / colors.norm(dim=1)).clamp(max=1).acos().rad2deg()
