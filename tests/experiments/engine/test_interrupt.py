"""Told to stop, a training keeps what it has reached, says how to go on, and ends with the same bits."""

from __future__ import annotations

import os
import signal

import pytest
from toy import Interrupted as Stopped
from toy import Interrupting, ToyTask, state, toy_model

from lightfast._experiments.engine import CHECKPOINT, Interrupted, Job, Recipe, train, train_many
from lightfast._experiments.engine import loop as loops
from lightfast._experiments.engine.checkpoint import read_header

RECIPE = Recipe(steps=30, batch_size=8, lr=0.05, ema=0.9, log_every=7, checkpoint_every=0)


@pytest.fixture(autouse=True)
def _ctrl_c():
    """As in the foreground; in the background of a shell it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Told(ToyTask):
    """Sends its own process a signal at a batch of a given number."""

    def __init__(self, number, at):
        super().__init__(noise=0.1)
        self.number, self.at = number, at

    def batch(self, indices, generator):
        self.at -= 1
        if self.at == 0:
            os.kill(os.getpid(), self.number)
        return super().batch(indices, generator)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop_it_keeps_the_step_and_goes_on_to_the_same_bits(tmp_path, number):
    whole = state(train(toy_model(dropout=0.2), ToyTask(noise=0.1), RECIPE, progress=False))
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as error:
        train(toy_model(dropout=0.2), Told(number, 11), RECIPE, tmp_path, progress=False)
    path = tmp_path / CHECKPOINT
    assert error.value.exit_code == 128 + number and signal.getsignal(number) is before
    assert f"interrupted after step 11 of 30, and all of it is in {path}" in str(error.value)
    assert "give the same command with --resume" in str(error.value)
    assert read_header(path)["step"] == 11
    resumed = state(
        train(toy_model(dropout=0.2, seed=1), ToyTask(noise=0.1), RECIPE, tmp_path, resume=True, progress=False)
    )
    assert all((resumed[name] == whole[name]).all() for name in whole)


def test_without_a_folder_nothing_can_be_kept_and_that_is_said():
    jobs = [Job(toy_model(), Told(signal.SIGTERM, 2), RECIPE, name="first"), Job(toy_model(), ToyTask(), RECIPE)]
    with pytest.raises(Interrupted, match="first was interrupted after step 2 of 30; it has no folder"):
        train_many(jobs, progress=False)


def test_checkpoints_are_written_by_the_clock_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(loops, "_SAVE_SECONDS", 0.0)
    with pytest.raises(Stopped):
        train(toy_model(), Interrupting(13), RECIPE, tmp_path, progress=False)
    assert read_header(tmp_path / CHECKPOINT)["step"] == 13


def test_seconds_add_up_over_interruptions(tmp_path, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(loops.time, "monotonic", lambda: float(next(clock)))
    spent = []
    for at in (5, 5, 5):
        with pytest.raises(Interrupted):
            train(toy_model(), Told(signal.SIGINT, at), RECIPE, tmp_path, resume=True, progress=False)
        spent.append(read_header(tmp_path / CHECKPOINT)["seconds"])
    assert spent == sorted(spent) and spent[2] > 1.8 * spent[0]


def test_a_line_every_half_minute_without_a_terminal(capsys, monkeypatch):
    from lightfast._experiments.engine.log import Display

    now = [0.0]
    monkeypatch.setattr("lightfast._experiments.engine.log.time.monotonic", lambda: now[0])
    display = Display(enabled=True)
    bar = display.add("training", 100, 0)
    for step in range(1, 101):
        now[0] += 7.0
        display.advance(bar, step)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 20 and lines[0] == "training  5/100  11.1 min left"
