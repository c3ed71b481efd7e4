"""The comparison of inpainting networks: how they are made, trained against a discriminator, tested and reported on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightfast import models
from lightfast._experiments.data.generated_textures import drawn_textures
from lightfast._experiments.data.street import HoleImages, load_street
from lightfast._experiments.inpainting.evaluation import evaluate_inpainter, worst_stability
from lightfast._experiments.inpainting.plans import NETWORKS, PLANS
from lightfast._experiments.inpainting.report import evaluation_table, inpainting_report
from lightfast._experiments.inpainting.samples import Sampler
from lightfast._experiments.inpainting.task import Adversaries, InpaintingTask, discriminator, start_at_mean
from lightfast._experiments.records import Record, Run
from lightfast._experiments.report import Report
from lightfast._experiments.study import Study, Training, option
from lightfast._pipelines.inpainter import Inpainter

_FIRST_LOOK = 64


@dataclass
class Inpainting(Study):
    """Context encoders that fill a hole in an image."""

    start: str | None = option(
        None, "Begin from a trained inpainter of the same kind: a folder, or a pretrained one.", "train"
    )

    help = "Compare inpainting networks: train, relight the test images, fill the hole, measure, write a report."
    train_help = "Train an inpainter, and save it, as `lightfast inpaint --model` takes it."
    data_help = (
        "A folder that holds street128/train, street128/test and paris_eval, folders of photographs; by default, "
        "textures that lightfast draws itself."
    )
    kinds, plans = NETWORKS, PLANS
    aliases: ClassVar = {"all": ("original", "wrapped", "equivariant", "equivariant-free")}
    trained = "equivariant-free"
    networks = tuple(models.INPAINTERS)
    together: ClassVar[int] = 3
    pipeline = Inpainter
    measured = ("tests",)

    def __post_init__(self) -> None:
        """Find the weights to start from, before anything is written."""
        self._start = None if self.start is None else Inpainter.load(self.start)

    @classmethod
    def load(cls, data: Path | None, options: Mapping[str, Any]) -> HoleImages:
        return drawn_textures() if data is None else load_street(data)

    def about_data(self) -> dict[str, Any]:
        return {
            "data": self.data.name,
            "train_images": len(self.data.train) - self.plan.held_out,
            "test_images": {name: len(images) for name, images in self.data.tests.items()},
        }

    @cached_property
    def _images(self) -> tuple[Tensor, Tensor]:
        """Images to train on, on the device, and those that are held out."""
        images, held_out = self.data.held_out(self.plan.held_out)
        return images.train.to(self.device), held_out

    def make(self, run: Run, folder: Path) -> Training:
        plan, kind = self.plan, NETWORKS[run.kind]
        details = {"kind": run.kind, "data": self.data.name, "seed": run.seed, "plan": plan.to_dict()}
        inpainter = plan.inpainter(kind, run.seed, details)
        if self._start is None:
            start_at_mean(inpainter, self.data.train[:_FIRST_LOOK])
        else:
            copy_weights(self._start, inpainter)
        images, held_out = self._images
        inpainter.to(self.device)
        # Lifted layers lay projected weights out as the hardware wants them; the raw ones are best left as they are.
        last = plan.recipe.channels_last and kind.offset_groups is None
        return Training(
            inpainter,
            InpaintingTask(images, inpainter.encoding, plan.augmentation, plan.adversarial, plan.border),
            dataclasses.replace(plan.recipe, channels_last=last),
            Adversaries(inpainter.network, discriminator(plan.discriminator, run.seed + 1)),
            on_log=Sampler(inpainter, held_out, folder, plan.sheet_every),
        )

    def measure(self, run: Run, pipeline: Inpainter) -> Record:
        return {"tests": self._measure(pipeline, self.data, self.device)}

    @staticmethod
    def _measure(inpainter: Inpainter, images: HoleImages, device: torch.device, seed: int = 0) -> dict[str, Any]:
        return {
            test: dataclasses.asdict(evaluate_inpainter(inpainter, each, seed=seed, device=device))
            for test, each in images.tests.items()
        }

    def line(self, record: Record) -> str:
        shown = []
        for test, found in record["tests"].items():
            at = dict(zip(found["saturations"], found["psnr"], strict=True))
            levels = ", ".join(f"{at[saturation]:.2f} at S = {saturation:g}" for saturation in (0.0, 0.5, 0.9))
            stable = worst_stability(found["saturations"], found["stability"])
            shown.append(f"{test}: PSNR {levels}, stability {stable:.1f} dB")
        return "; ".join(shown)

    def report(self, records: Sequence[Record]) -> Report:
        return inpainting_report(self, self.summaries(records))

    @classmethod
    def evaluate(
        cls, pipeline: Inpainter, data: Path | None, size: int | None, seed: int, device: torch.device
    ) -> tuple[str, Record]:
        found = cls._measure(pipeline, cls.load(data, {}), device, seed)
        tables = [f"{name}, {each['images']} images:\n\n{evaluation_table(each)}\n" for name, each in found.items()]
        return "\n".join(tables), {"tests": found}


def copy_weights(source: Inpainter, target: Inpainter) -> None:
    """Give one inpainter the weights of another with the same network."""
    before, after = source.state_dict(), target.state_dict()
    if {name: value.shape for name, value in before.items()} != {name: value.shape for name, value in after.items()}:
        raise ValueError(
            f"a {target.config['network']} with {target.config['options']} cannot start from the weights of a "
            f"{source.config['network']} with {source.config['options']}: they are not the same network"
        )
    target.load_state_dict(before)
