from contextlib import nullcontext

import pytest
import torch
from toy import ToyTask, state, toy_model

from lightfast._experiments.data import augment
from lightfast._experiments.engine import Job, Recipe, train, train_many
from lightfast._experiments.engine.order import Order
from lightfast._experiments.engine.step import GraphedStep, Step

on_cuda = pytest.mark.gpu

RECIPES = {
    "sgd": {"lr": 0.05, "nesterov": True, "milestones": (10,)},
    "adamw": {"lr": 0.01, "optimizer": "adamw", "schedule": "cosine", "warmup": 3},
    "everything": {"lr": 0.02, "ema": 0.9, "clip": 1.0, "accumulate": 2, "channels_last": True},
    "bfloat16": {"lr": 0.02, "precision": "bfloat16"},
}


def recipe(name, **changes):
    return Recipe(**{"steps": 20, "batch_size": 16, "log_every": 4, **RECIPES[name], **changes})


def model_without_idle_bias():
    """The toy network, less the bias before its batch norm.

    Its gradient is 0 but for rounding, and Adam makes full steps of that, so that no two ways of computing agree on it.
    """
    model = toy_model()
    model[0].register_parameter("bias", None)
    return model


class EagerGraph:
    """Stands for a graph where there is no CUDA: replaying does the captured work again."""

    def register_generator_state(self, generator):
        self.generator = generator


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_capture_changes_nothing_and_replays_are_steps(name, monkeypatch):
    monkeypatch.setattr("torch.cuda.CUDAGraph", EagerGraph)
    monkeypatch.setattr("torch.cuda.graph", lambda graph, stream: nullcontext())
    how = recipe(name, ema=0.9)
    device = torch.device("cpu")
    task = ToyTask(noise=0.2)
    order = Order(task.samples, how.batch_size, how.seed)
    plain, captured = (Step(toy_model(dropout=0.2).train(), task, how, device) for _ in range(2))
    graphed = GraphedStep(captured, order, stream=None)
    graphed.graph.replay = lambda: captured.run(graphed.indices.unbind(), None)
    assert graphed.graph.generator is captured.generator
    for step in range(how.steps):
        for work in (plain, captured):
            work.prepare(step)
        plain.run(order.indices(step).unbind(), order.seeds(step))
        graphed.run(step)
        expected, found = plain.tensors(), captured.tensors()
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected)


@on_cuda
@pytest.mark.parametrize("name", RECIPES)
def test_a_graph_trains_as_the_plain_loop_does(name):
    models, logs = [], []
    for graph in (False, True):
        log, how = {}, recipe(name, graph=graph)
        model = model_without_idle_bias()
        models.append(
            state(train(model, ToyTask(), how, progress=False, on_log=lambda s, v, to=log: to.update({s: v})))
        )
        logs.append(log)
    rounding = 2e-2 if name == "bfloat16" else 2e-3
    torch.testing.assert_close(models[1], models[0], rtol=rounding, atol=rounding)
    assert logs[0].keys() == logs[1].keys()
    for step, values in logs[0].items():
        assert logs[1][step]["loss"] == pytest.approx(values["loss"], rel=5e-2)


class Recording(ToyTask):
    """Augments in every way, and keeps the sum of what each batch looks like in a log value."""

    def batch(self, indices, generator):
        images = self.images[indices].clamp(0, 1)
        images = augment.random_flip(augment.pad_crop(images, 2, generator), generator)
        images = augment.color_jitter(images, 0.4, 0.4, 0.4, 0.1, generator)
        images = augment.random_relight(images, 0.5, generator)
        images = augment.random_resized_crop(images, 6, generator)
        return augment.random_erasing(images, 0.5, generator), self.labels[indices]

    def loss(self, model, batch):
        loss, values = super().loss(model, batch)
        return loss, {**values, "pixels": batch[0].mean()}


@on_cuda
def test_every_replay_augments_anew_and_as_the_plain_loop_does():
    logs = []
    for graph in (False, True):
        how = Recipe(steps=6, batch_size=50, log_every=1, lr=0.01, graph=graph)
        lines = []
        train(toy_model(), Recording(), how, progress=False, on_log=lambda s, v, to=lines: to.append(v["pixels"]))
        logs.append(lines)
    # Every batch is the whole training set, so that only augmentation differs.
    assert len(set(logs[1])) == 6
    assert logs[0] == pytest.approx(logs[1], rel=1e-4)


@on_cuda
def test_side_by_side_as_alone(tmp_path):
    task = ToyTask(noise=0.1)
    recipes = [recipe("everything", seed=seed, steps=10 + 5 * seed, graph=True) for seed in range(4)]
    alone = [state(train(toy_model(seed=seed), task, how, progress=False)) for seed, how in enumerate(recipes)]
    jobs = [Job(toy_model(seed=n), task, how, tmp_path / str(n)) for n, how in enumerate(recipes)]
    for expected, model in zip(alone, train_many(jobs, progress=False), strict=True):
        torch.testing.assert_close(state(model), expected, rtol=1e-3, atol=1e-3)


@on_cuda
def test_resumes_in_a_graph(tmp_path):
    how = recipe("everything", graph=True, checkpoint_every=8)

    def stop(step, values):
        if step == 12:
            raise KeyboardInterrupt

    whole = state(train(toy_model(), ToyTask(noise=0.1), how, progress=False))
    with pytest.raises(KeyboardInterrupt):
        train(toy_model(), ToyTask(noise=0.1), how, tmp_path, progress=False, on_log=stop)
    resumed = train(toy_model(seed=3), ToyTask(noise=0.1), how, tmp_path, resume=True, progress=False)
    torch.testing.assert_close(state(resumed), whole, rtol=1e-3, atol=1e-3)
