import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from toy import KILLED_RECIPE, state, train_killed

from lightfast._experiments.engine import CHECKPOINT
from lightfast._experiments.engine.checkpoint import read_header

SCRIPT = Path(__file__).with_name("toy.py")
KILLS = 1


def test_killed_at_random_times_it_ends_with_the_same_bits(tmp_path):
    out, seed = tmp_path / "killed", int.from_bytes(os.urandom(4))
    out.mkdir()
    randomness, steps = random.Random(seed), []
    for _ in range(KILLS):
        process = start(out)
        wait_for_news(process, out)
        time.sleep(randomness.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            break  # A fast machine has nothing left to be killed.
        steps.append(read_header(out / CHECKPOINT)["step"])
    assert steps and steps == sorted(steps) and steps[0] < KILLED_RECIPE.steps, f"seed {seed}: {steps}"
    assert start(out).wait() == 0, (out / "errors").read_text()
    expected = state(train_killed(tmp_path / "whole", resume=False))
    found = load_file(out / "final.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected), f"seed {seed}: {steps}"


def start(out):
    with (out / "errors").open("w") as errors:
        return subprocess.Popen([sys.executable, str(SCRIPT), "killed", str(out)], stderr=errors)


def wait_for_news(process, out):
    """Until the process has written a checkpoint of its own."""
    path = out / CHECKPOINT
    before = path.stat().st_mtime_ns if path.exists() else None
    deadline = time.monotonic() + 60
    while not path.exists() or path.stat().st_mtime_ns == before:
        assert process.poll() is None, (out / "errors").read_text()
        assert time.monotonic() < deadline, "no checkpoint within a minute"
        time.sleep(0.001)
