import dataclasses
import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from toy import ToyTask, state, toy_model

from lightfast._experiments.engine import (
    CHECKPOINT,
    CheckpointError,
    Diverged,
    Job,
    Recipe,
    learning_rate,
    train,
    train_many,
)
from lightfast._experiments.engine.checkpoint import read_header
from lightfast._experiments.engine.order import Order


def quiet(model, task, recipe, out=None, **options):
    return train(model, task, recipe, out, progress=False, **options)


def assert_same(first, second):
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different


def test_is_the_loop_one_would_write_by_hand():
    recipe = Recipe(steps=12, batch_size=8, lr=0.1, milestones=(5,), warmup=2)
    task, ours, theirs = ToyTask(), toy_model(), toy_model()
    assert quiet(ours, task, recipe) is ours
    order = Order(task.samples, 8, recipe.seed)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for step in range(12):
        optimizer.param_groups[0]["lr"] = learning_rate(recipe, step)
        indices = order.indices(step)[0]
        optimizer.zero_grad()
        F.cross_entropy(theirs(task.images[indices]), task.labels[indices]).backward()
        optimizer.step()
    assert_same(state(ours), state(theirs))
    assert not ours.training and all(parameter.grad is None for parameter in ours.parameters())


def test_learns():
    values = {}
    recipe = Recipe(steps=150, batch_size=16, lr=0.05, log_every=50)
    quiet(toy_model(), ToyTask(), recipe, on_log=lambda step, new: values.update({step: new}))
    assert list(values) == [50, 100, 150]
    assert values[150]["error"] < 0.05 and values[150]["loss"] < values[100]["loss"] < values[50]["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_compiled_it_learns_the_same(device):
    models = [toy_model() for _ in range(2)]
    for model, compiled in zip(models, (False, True), strict=True):
        recipe = Recipe(steps=6, batch_size=8, lr=0.05, compile=compiled, graph=compiled and device == "cuda")
        quiet(model, ToyTask(), recipe, device=torch.device(device))
    torch.testing.assert_close(state(models[1]), state(models[0]), rtol=1e-3, atol=1e-3)


def test_accumulation_is_the_whole_batch():
    models = [toy_model("none").double() for _ in range(2)]
    for model, accumulate in zip(models, (1, 4), strict=True):
        recipe = Recipe(steps=10, batch_size=16, accumulate=accumulate, clip=0.5)
        quiet(model, ToyTask(dtype=torch.float64), recipe)
    torch.testing.assert_close(state(models[0]), state(models[1]))


def test_clipping_limits_the_step():
    before, model = toy_model(), toy_model()
    quiet(model, ToyTask(), Recipe(steps=1, lr=1.0, clip=1e-3, momentum=0.0, weight_decay=0.0))
    moved = [(a - b).norm() for a, b in zip(model.parameters(), before.parameters(), strict=True)]
    assert torch.stack(moved).norm().item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("changes", [{"precision": "bfloat16"}, {"channels_last": True}, {"optimizer": "adam"}])
def test_variants_learn_too(changes):
    last = {}
    recipe = Recipe(steps=80, batch_size=16, lr=0.02, log_every=40, graph=True, **changes)
    model = quiet(toy_model(), ToyTask(), recipe, on_log=lambda step, values: last.update(values))
    assert last["error"] < 0.2
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_returns_the_average():
    recipe = Recipe(steps=20, batch_size=8)
    plain, averaged = (
        state(quiet(toy_model(), ToyTask(), dataclasses.replace(recipe, ema=ema))) for ema in (None, 0.9)
    )
    assert not torch.equal(plain["0.weight"], averaged["0.weight"])
    assert not torch.equal(plain["1.running_mean"], averaged["1.running_mean"])
    assert torch.equal(plain["1.num_batches_tracked"], averaged["1.num_batches_tracked"])
    instant = state(quiet(toy_model(), ToyTask(), dataclasses.replace(recipe, ema=0.0)))
    torch.testing.assert_close(instant, plain)


def test_frozen_parameters_stay():
    model = toy_model()
    model[0].requires_grad_(False)
    before = state(model)
    after = state(quiet(model, ToyTask(), Recipe(steps=5, batch_size=8)))
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["5.weight"], after["5.weight"])


def test_the_seed_alone_decides_and_the_callers_randomness_is_left_alone():
    results = []
    for seed, before in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(before)
        expected = torch.get_rng_state()
        recipe = Recipe(steps=5, batch_size=8, seed=seed)
        results.append(state(quiet(toy_model(dropout=0.5), ToyTask(noise=0.5), recipe)))
        assert torch.equal(torch.get_rng_state(), expected)
    assert_same(results[0], results[1])
    assert not torch.equal(results[0]["0.weight"], results[2]["0.weight"])


def test_batches_larger_than_the_training_set():
    quiet(toy_model(), ToyTask(samples=5), Recipe(steps=3, batch_size=16))


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("stop", [10, 20, 35])
def test_resumes_to_the_same_bits(tmp_path, stop):
    recipe = Recipe(steps=40, batch_size=8, ema=0.9, accumulate=2, log_every=5, checkpoint_every=4)
    logged = {"whole": [], "parts": []}

    def on_log(step, values):
        logged["parts"].append((step, values))
        if step == stop:
            raise Interrupted

    whole = quiet(toy_model(dropout=0.2), ToyTask(noise=0.1), recipe, on_log=lambda *line: logged["whole"].append(line))
    with pytest.raises(Interrupted):
        quiet(toy_model(dropout=0.2), ToyTask(noise=0.1), recipe, tmp_path, resume=True, on_log=on_log)
    stop = 0
    written = read_header(tmp_path / CHECKPOINT)["step"]
    logged["parts"] = [line for line in logged["parts"] if line[0] <= written]
    other = toy_model(dropout=0.2, seed=5)
    resumed = quiet(other, ToyTask(noise=0.1), recipe, tmp_path, resume=True, on_log=on_log)
    assert_same(state(whole), state(resumed))
    assert logged["parts"] == logged["whole"]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(5, 41, 5))
    assert [line["loss"] for line in lines] == [values["loss"] for _, values in logged["whole"]]
    again = quiet(toy_model(dropout=0.2), ToyTask(noise=0.1), recipe, tmp_path, resume=True)
    assert_same(state(whole), state(again))


def test_logs(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    quiet(toy_model(), ToyTask(), Recipe(steps=25, batch_size=10, log_every=10), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 25]
    assert [line["epoch"] for line in lines] == [2.0, 4.0, 5.0]
    assert {"loss", "error", "lr", "seconds"} <= lines[0].keys()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("error")] == [10, 20, 25]


def test_progress_without_a_terminal(capsys):
    train(toy_model(), ToyTask(), Recipe(steps=5, batch_size=8))
    shown = capsys.readouterr()
    assert shown.out == "" and "5/5  loss" in shown.err and "error" in shown.err


def test_progress_on_a_terminal(monkeypatch):
    from lightfast._experiments.engine.log import Display

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    display = Display(enabled=True)
    assert display._progress is not None
    with display:
        bar = display.add("training", 10, 0)
        display.show(bar, 5, {"loss": 0.5, "error": 0.25})
        display.advance(bar, 6)
        (task,) = display._progress.tasks
        assert task.completed == 5 and task.fields["values"] == "loss 0.5  error 0.25"


class Exploding(ToyTask):
    """Its loss is NaN from the batch of a given number on."""

    def __init__(self, after):
        super().__init__()
        self.after, self.batches = after, 0

    def loss(self, model, batch):
        self.batches += 1
        loss, values = super().loss(model, batch)
        return loss * (float("nan") if self.batches > self.after else 1.0), values


def test_divergence_keeps_the_last_good_checkpoint(tmp_path):
    recipe = Recipe(steps=50, batch_size=8, log_every=10, checkpoint_every=8)
    with pytest.raises(Diverged, match="the loss became nan") as error:
        quiet(toy_model(), Exploding(after=17), recipe, tmp_path)
    assert f"of step 16, is {tmp_path / CHECKPOINT}" in str(error.value) and "lr=0.1" in str(error.value)
    assert read_header(tmp_path / CHECKPOINT)["step"] == 16
    finite = quiet(toy_model(), ToyTask(), recipe, tmp_path, resume=True)
    assert all(tensor.isfinite().all() for tensor in state(finite).values())


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    # The loss is finite, and so is its gradient; the step that follows is not.
    recipe = Recipe(steps=50, batch_size=8, lr=1e38, weight_decay=1e3, checkpoint_every=1, log_every=50)
    with pytest.raises(Diverged, match=r"weight is no longer finite.*no checkpoint had been written"):
        quiet(toy_model("none"), ToyTask(), recipe, tmp_path)
    assert not (tmp_path / CHECKPOINT).exists()


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    recipe = Recipe(steps=4, batch_size=8)
    quiet(toy_model(), ToyTask(), recipe, tmp_path)
    with pytest.raises(CheckpointError, match="holds a training run already"):
        quiet(toy_model(), ToyTask(), recipe, tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"lr": 0.2}, "lr was 0.1 and is 0.2"), ({"milestones": (3,)}, "milestones"), ({"accumulate": 2}, "accumulate")],
)
def test_another_recipe_cannot_resume(tmp_path, changes, sentence):
    recipe = Recipe(steps=4, batch_size=8)
    quiet(toy_model(), ToyTask(), recipe, tmp_path)
    with pytest.raises(CheckpointError, match=sentence):
        quiet(toy_model(), ToyTask(), dataclasses.replace(recipe, **changes), tmp_path, resume=True)
    quiet(toy_model(), ToyTask(), dataclasses.replace(recipe, log_every=3), tmp_path, resume=True)


def test_another_model_or_a_damaged_file_cannot_resume(tmp_path):
    recipe = Recipe(steps=4, batch_size=8)
    quiet(toy_model(), ToyTask(), recipe, tmp_path)
    with pytest.raises(CheckpointError, match="another model"):
        quiet(toy_model("none"), ToyTask(), recipe, tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="samples was 50 and is 49"):
        quiet(toy_model(), ToyTask(samples=49), recipe, tmp_path, resume=True)
    path = tmp_path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=f"{CHECKPOINT} is not a whole checkpoint"):
        quiet(toy_model(), ToyTask(), recipe, tmp_path, resume=True)


def test_many_are_as_each_alone(tmp_path):
    task = ToyTask(noise=0.1)
    recipes = [Recipe(steps=steps, batch_size=8, seed=seed) for seed, steps in enumerate((6, 3, 9))]
    alone = [state(quiet(toy_model(dropout=0.1), task, recipe)) for recipe in recipes]
    jobs = [Job(toy_model(dropout=0.1), task, recipe, tmp_path / str(number)) for number, recipe in enumerate(recipes)]
    models = train_many(jobs, progress=False)
    assert [job.model for job in jobs] == models
    for expected, model in zip(alone, models, strict=True):
        assert_same(expected, state(model))
    assert sorted(folder.name for folder in tmp_path.glob(f"*/{CHECKPOINT}")) == [CHECKPOINT] * 3


def test_one_of_many_diverges(tmp_path):
    recipe = Recipe(steps=10, batch_size=8, log_every=2)
    jobs = [Job(toy_model(), Exploding(after=3), recipe), Job(toy_model(), ToyTask(), recipe, tmp_path)]
    with pytest.raises(Diverged):
        train_many(jobs, progress=False)
    assert read_header(tmp_path / CHECKPOINT)["step"] == 10


class Reading(ToyTask):
    """Its images are read in `read_ahead`."""

    def read_ahead(self, draws, device):
        for draw in draws:
            yield self.images[draw.indices].to(device), self.labels[draw.indices].to(device)

    def batch(self, indices, generator):
        return indices


def test_data_that_is_read_lazily(tmp_path):
    recipe = Recipe(steps=10, batch_size=8, accumulate=2, checkpoint_every=5, log_every=5)
    expected = state(quiet(toy_model(), ToyTask(), recipe))
    assert_same(expected, state(quiet(toy_model(), Reading(), recipe)))

    def stop(step, values):
        if step == 10:
            raise Interrupted

    with pytest.raises(Interrupted):
        quiet(toy_model(), Reading(), recipe, tmp_path, on_log=stop)
    assert read_header(tmp_path / CHECKPOINT)["step"] == 5
    assert_same(expected, state(quiet(toy_model(), Reading(), recipe, tmp_path, resume=True)))


def test_nothing_to_train():
    with pytest.raises(ValueError, match="no parameters"):
        quiet(nn.Identity(), ToyTask(), Recipe(steps=1))
