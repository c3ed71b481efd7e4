"""A small task and models for the engine's tests, and a script that trains them in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import lightfast as lf
from lightfast._experiments.engine import Recipe, train
from lightfast._experiments.engine.processes import rank


class ToyTask:
    """Small images, of which one half is brighter: left or right."""

    def __init__(self, samples=50, noise=0.0, dtype=torch.float32):
        generator = torch.Generator().manual_seed(1)
        self.labels = torch.arange(samples) % 2
        self.images = torch.rand(samples, 3, 6, 6, generator=generator, dtype=dtype)
        self.images[self.labels == 1, :, :, :3] += 0.2
        self.samples, self.noise = samples, noise

    def to(self, device):
        self.images, self.labels = self.images.to(device), self.labels.to(device)

    def batch(self, indices, generator):
        images = self.images[indices]
        noise = torch.randn(images.shape, generator=generator, device=generator.device, dtype=images.dtype)
        return images + self.noise * noise, self.labels[indices]

    def loss(self, model, batch):
        images, labels = batch
        scores = model(images)
        return F.cross_entropy(scores, labels), {"error": (scores.argmax(1) != labels).float().mean()}


class Lower(nn.Module):
    def forward(self, lifted):
        return lf.nn.lower(lifted)


def toy_model(norm="torch", dropout=0.0, seed=0):
    """A small network with torch's batch norm, lightfast's, that of lifted maps, or none."""
    norms = {"torch": lambda: nn.BatchNorm2d(6), "lightfast": lambda: lf.nn.BatchNorm2d(6), "none": nn.Identity}
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        if norm == "lifted":
            first = [lf.nn.Lift(3), lf.nn.ConvNormAct2d(3, 6, 3), Lower()]
        else:
            first = [nn.Conv2d(3, 6, 3), norms[norm](), nn.ReLU()]
        return nn.Sequential(*first, nn.Dropout(dropout), nn.Flatten(), nn.Linear(96, 2))


def state(model):
    return {
        name: tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in model.state_dict().items()
    }


# What is trained in several processes, and into how many micro-batches one must split batches to get the same.
PROCESSES = 3
SHARED = {
    "torch": ({"norm": "torch"}, {"noise": 0.0}, 1, 1),
    "lightfast": ({"norm": "lightfast"}, {"noise": 0.0}, 1, 1),
    "lifted": ({"norm": "lifted"}, {"noise": 0.0}, 1, 1),
    "random": ({"norm": "none", "dropout": 0.3}, {"noise": 0.3}, 1, PROCESSES),
    "accumulated": ({"norm": "none", "dropout": 0.3}, {"noise": 0.3}, 2, 2 * PROCESSES),
}


def shared_recipe(accumulate):
    return Recipe(
        steps=25,
        batch_size=18,
        lr=0.05,
        ema=0.9,
        clip=1.0,
        accumulate=accumulate,
        log_every=5,
        checkpoint_every=4,
        channels_last=True,
    )


class Interrupted(Exception):
    pass


class Interrupting(ToyTask):
    """Stops after so many batches."""

    def __init__(self, after, **options):
        super().__init__(**options)
        self.left = after

    def batch(self, indices, generator):
        self.left -= 1
        if self.left < 0:
            raise Interrupted
        return super().batch(indices, generator)


KILLED_RECIPE = Recipe(
    steps=400, batch_size=16, optimizer="adamw", lr=3e-3, schedule="cosine", warmup=10, ema=0.95, accumulate=2,
    log_every=7, checkpoint_every=3,
)  # fmt: skip


def train_killed(out, resume):
    model = toy_model(dropout=0.2)
    return train(model, ToyTask(noise=0.2), KILLED_RECIPE, out, resume=resume, progress=False)


def main():
    torch.set_num_threads(1)
    what, out = sys.argv[1], Path(sys.argv[2])
    if what == "killed":
        save_file(state(train_killed(out, resume=True)), out / "final.safetensors")
        return
    for name, (model, task, accumulate, _) in SHARED.items():
        # Each process starts from other weights: those of the first count.
        trained = toy_model(**model, seed=rank()).double()
        train(trained, ToyTask(**task, dtype=torch.float64), shared_recipe(accumulate), out / name, progress=False)
        save_file(state(trained), out / f"{name}-{rank()}.safetensors")
    import test_game

    game = train(test_game.Pair(), test_game.GameOfTwo(), test_game.recipe(batch_size=9), progress=False)
    save_file(state(game), out / f"game-{rank()}.safetensors")
    options = {"noise": 0.2, "samples": 60}
    for name, task in (("whole", ToyTask(**options)), ("parts", Interrupting(13, **options)), ("parts", None)):
        model = toy_model(dropout=0.2, seed=rank())
        try:
            train(model, task or ToyTask(**options), shared_recipe(1), out / name, resume=task is None, progress=False)
        except Interrupted:
            continue
        save_file(state(model), out / f"{name}-{rank()}.safetensors")


if __name__ == "__main__":
    main()
