"""The shortest time to an accurate classifier that the color of the light does not matter to.

What is on the clock: every step of training, augmentation included, until the device has done the last. What is beside
it, and reported: compiling, capturing and warming up; reading the images and moving them to the device; evaluation.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from lightfast._experiments.classification import STRATEGIES
from lightfast._experiments.engine import Recipe, train
from lightfast._experiments.recognition.evaluation import evaluate
from lightfast._experiments.recognition.pictures import Pictures
from lightfast._experiments.recognition.task import Augmentation, RecognitionTask
from lightfast._pipelines.classifier import Classifier

SATURATIONS = (0.0, 0.9)
"""White light, and light of strong color: both errors have to be low."""

GRADIENTS = ("log-gradient", "gradient")
"""Light that turns from one strong color into another over the picture: both errors have to be low, too."""

_WARMUP_STEPS = 10


@dataclass(frozen=True)
class Attempt:
    """A network, and how it is trained.

    Args:
        network: a name that :func:`lightfast.models.create` knows.
        strategy: one on log RGB, which does not see the color of the light.
        epochs: how often each training image is seen.
        seed: of the first weights, the order and the augmentation.
        batch_size: images a step.
        lr: the highest rate of learning.
        weight_decay: of all parameters.
        warmup: share of the steps over which the rate grows; after that it falls to 0 as a cosine does.
        ema: decay of the average of the weights; None for no average.
        crop: pixels by which images are shifted at most.
        erasing: probability of erasing a random rectangle.
        label_smoothing: share of the target that is spread over all classes.
        mirror: whether a test image's scores are the mean of its own and its mirror image's.
        compile: whether torch's compiler joins what the network does.
    """

    network: str = "resnet9"
    strategy: str = "wrapped-plane"
    epochs: float = 30.0
    seed: int = 0
    batch_size: int = 512
    lr: float = 0.4
    weight_decay: float = 5e-4
    warmup: float = 0.2
    ema: float | None = None
    crop: int = 4
    erasing: float = 0.25
    label_smoothing: float = 0.1
    mirror: bool = True
    compile: bool = False

    def __post_init__(self) -> None:
        """Complain about what cannot be meant."""
        blind = [name for name, strategy in STRATEGIES.items() if strategy.color == "log"]
        if self.strategy not in blind:
            raise ValueError(f"light can fool {self.strategy!r}; it cannot fool {', '.join(blind)}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a share of the steps, from 0 to below 1, not {self.warmup}")


class Mirrored(nn.Module):
    """The mean of the scores of an image and of its mirror image. Shapes: (N, 3, H, W) to (N, classes)."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        return (self.classifier(images) + self.classifier(images.flip(3))) / 2


def recipe_for(how: Attempt, samples: int, device: torch.device) -> Recipe:
    """The engine's recipe; on a GPU in bfloat16, channels-last, and in a CUDA graph."""
    on_gpu = device.type == "cuda"
    steps = max(1, round(how.epochs * samples / how.batch_size))
    return Recipe(
        steps,
        batch_size=how.batch_size,
        lr=how.lr,
        nesterov=True,
        weight_decay=how.weight_decay,
        schedule="cosine",
        warmup=round(how.warmup * steps),
        ema=how.ema,
        precision="bfloat16" if on_gpu else "float32",
        seed=how.seed,
        log_every=max(1, math.ceil(samples / how.batch_size)),
        checkpoint_every=steps,
        channels_last=True,
        graph=on_gpu,
        compile=how.compile,
    )


def attempt(
    how: Attempt, pictures: Pictures, device: torch.device, target: float = 94.0, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Warm up, train against the clock, and evaluate; a record as JSON can hold it.

    The target are the per cent of the pictures, which are in memory, that have to be right under every light of
    :data:`SATURATIONS` and :data:`GRADIENTS`.
    """
    if not isinstance(pictures.train_images, Tensor):
        raise ValueError("the speedrun wants its pictures in memory, not read from files while it runs")
    recipe = recipe_for(how, len(pictures.train_labels), device)
    start = time.perf_counter()
    warming = dataclasses.replace(recipe, steps=min(_WARMUP_STEPS, recipe.steps), warmup=0)
    _train(how, pictures, warming, device)
    warmup_seconds = time.perf_counter() - start
    start = time.perf_counter()
    classifier, curve = _train(how, pictures, recipe, device)
    whole = time.perf_counter() - start
    seconds = curve[-1]["seconds"]
    start = time.perf_counter()
    judged = Mirrored(classifier) if how.mirror else classifier
    evaluation = evaluate(
        judged,
        pictures.test_images,
        pictures.test_labels,
        saturations=SATURATIONS,
        device=device,
    )
    errors = dict(zip((f"S = {s:g}" for s in SATURATIONS), evaluation.errors, strict=True))
    errors |= {kind: evaluation.varying[kind] for kind in GRADIENTS}
    shown = ", ".join(f"{error:.2f} % ({light})" for light, error in errors.items())
    say(f"{how.network}, {how.strategy}, {how.epochs:g} epochs, seed {how.seed}: {seconds:.2f} s; error {shown}")
    return {
        **dataclasses.asdict(how),
        "steps": recipe.steps,
        "parameters": sum(parameter.numel() for parameter in classifier.network.parameters()),
        "data": pictures.name,
        "seconds": round(seconds, 3),
        "warmup_seconds": round(warmup_seconds, 3),
        "capture_seconds": round(max(whole - seconds, 0.0), 3),
        "evaluation_seconds": round(time.perf_counter() - start, 3),
        "errors": {light: round(error, 4) for light, error in errors.items()},
        "target": target,
        "reached": max(errors.values()) <= 100 - target,
        "curve": [{key: round(value, 5) for key, value in line.items()} for line in curve],
    }


def _train(
    how: Attempt, pictures: Pictures, recipe: Recipe, device: torch.device
) -> tuple[Classifier, Sequence[dict[str, float]]]:
    """The trained classifier, and the lines of its log, one an epoch, with the seconds since the first step."""
    strategy = STRATEGIES[how.strategy]
    images = pictures.train_images
    assert isinstance(images, Tensor)
    classifier = strategy.classifier(how.network, pictures.classes, strategy.norm(images), images.shape[-1], how.seed)
    augmentation = Augmentation(crop=how.crop, erasing=how.erasing, label_smoothing=how.label_smoothing)
    task = RecognitionTask(images, pictures.train_labels, classifier.prepare.to(device), augmentation)
    with TemporaryDirectory() as folder:
        train(classifier.network, task, recipe, Path(folder), device=device, progress=False)
        lines = (Path(folder) / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return classifier, [json.loads(line) for line in lines]
