"""Sheets of samples while an inpainter is trained, and its PSNR on images that it is not trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from lightfast._atomic import write_whole
from lightfast._experiments.inpainting.evaluation import HOLE, exact_convolutions
from lightfast._experiments.report.figures import LIGHT, image_grid
from lightfast._pipelines.inpainter import Inpainter, center_mask
from lightfast.light import random_illuminants, relight
from lightfast.metrics import psnr

_SHOWN = 8


class Sampler:
    """Called by the engine at each log line; now and then it fills held-out images with the weights of the moment.

    It writes `samples/STEP.png`, with what was there, the hole, what is filled in, and the same under colored light;
    and adds a line with step and PSNR to `held-out.jsonl`.

    Args:
        inpainter: the one in training, on its device.
        images: sRGB, uint8 (N, 3, 128, 128), which it is not trained on.
        folder: of the run.
        every: steps between two sheets; 0 for none.
    """

    def __init__(self, inpainter: Inpainter, images: Tensor, folder: Path, every: int) -> None:
        self.inpainter, self.images, self.folder, self.every = inpainter, images, folder, every

    @torch.no_grad()
    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Write a sheet, if it is time."""
        if not self.every or step % self.every or not len(self.images):
            return
        device = next(self.inpainter.parameters()).device
        training = self.inpainter.training
        self.inpainter.eval()
        try:
            images, mask = self.images.to(device).float() / 255, center_mask().to(device)
            light = random_illuminants(_SHOWN, 0.8, generator=torch.Generator().manual_seed(0)).to(device)
            with exact_convolutions():
                filled = self.inpainter(images, mask)
                colored = self.inpainter(relight(images[:_SHOWN], illuminants=light[: len(images)]), mask)
        finally:
            self.inpainter.train(training)
        level = psnr(filled[:, :, HOLE, HOLE], images[:, :, HOLE, HOLE]).mean()
        few = images[:_SHOWN]
        parts = {
            "real": few,
            "cut": torch.where(mask, 0.5, few),
            "filled": filled[:_SHOWN],
            "in colored light": colored,
        }
        rows = [(name, list(images.cpu())) for name, images in parts.items()]
        (self.folder / "samples").mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / "samples" / f"{step:06d}.png", image_grid(rows, [""] * len(few), LIGHT))
        with (self.folder / "held-out.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"step": step, "psnr": round(float(level), 4)}) + "\n")
