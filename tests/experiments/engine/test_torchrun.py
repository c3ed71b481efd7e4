"""The real command on two processes: killed, refused, resumed, and in the end what one process does."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path
from unittest import mock

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from lightfast._experiments.data.generated import CLASSES, draw
from lightfast._experiments.engine import CHECKPOINT
from lightfast._experiments.engine.checkpoint import read_header
from lightfast.cli import main

LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "lightfast.cli"]
STEPS = 16
# Without augmentation, which is drawn for each micro-batch, there is only rounding between one process and two.
# The rate is small, for steps in other directions let rounding grow.
COMMAND = f"""train recognition --device cpu --model resnet20 --size 16 --steps {STEPS} --set batch_size=8
    --set lr=0.002 --set flip=false --set resize=false --set checkpoint_every=2 --set log_every=4 --data""".split()

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Pictures that the project draws itself, one folder per class."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, (image, label) in enumerate(zip(*draw(64, size=16), strict=True)):
        (folder / CLASSES[label]).mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / CLASSES[label] / f"{number}.png")
    return folder


def start_two(data, out, *options):
    command = [*LAUNCHER, *COMMAND, str(data), "--out", str(out), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def run_one(data, out, *options):
    """The same command in this process: exit code, and what it said on stderr."""
    said = io.StringIO()
    with mock.patch("sys.argv", ["lightfast", *COMMAND, str(data), "--out", str(out), *options]), redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            return end.code, said.getvalue()
    return 0, said.getvalue()


def process_of_rank(launcher, rank):
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    (found,) = [pid for pid in children if f"RANK={rank}" in Path(f"/proc/{pid}/environ").read_text().split("\0")]
    return int(found)


@pytest.fixture(scope="module")
def story(data, tmp_path_factory):
    """What was said by a training on two processes of which one is killed, another in its folder, and the rest."""
    out = tmp_path_factory.mktemp("torchrun") / "two"
    killed = start_two(data, out)
    while not (out / CHECKPOINT).exists():
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.01)
    main_process, other = (process_of_rank(killed, rank) for rank in range(2))
    # Stopped, so that it is not done before another has even tried.
    os.kill(main_process, signal.SIGSTOP)
    refused = run_one(data, out, "--resume")
    os.kill(main_process, signal.SIGCONT)
    os.kill(other, signal.SIGKILL)
    begin = time.monotonic()
    said_killed = killed.communicate(timeout=60)[1]
    seconds, kept = time.monotonic() - begin, read_header(out / CHECKPOINT)
    resumed = start_two(data, out, "--resume")
    said_resumed = resumed.communicate(timeout=120)
    return {
        "out": out,
        "refused": refused,
        "killed": (killed.returncode, said_killed, seconds),
        "kept": kept,
        "resumed": (resumed.returncode, *said_resumed),
    }


def test_another_training_in_the_same_folder_is_refused(story):
    code, said = story["refused"]
    assert code == 2 and re.fullmatch(r"lightfast: another training is writing to .*two: .*--out\n", said)


def test_a_killed_process_ends_the_others_with_a_sentence(story):
    code, said, seconds = story["killed"]
    assert code != 0 and seconds < 15
    assert "lightfast: another process of this training has ended" in said and "--resume" in said
    assert "RuntimeError" not in said
    assert 0 < story["kept"]["step"] < STEPS


def test_two_processes_resume_and_do_what_one_does(story, data, tmp_path):
    code, said, errors = story["resumed"]
    assert code == 0, errors
    assert said.count("is done: error") == said.count("written:") == 1
    code, errors = run_one(data, tmp_path)
    assert code == 0, errors
    one, two = (load_file(folder / "model.safetensors") for folder in (tmp_path, story["out"]))
    assert one.keys() == two.keys()
    torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)
    logs = [(folder / "log.jsonl").read_text().splitlines() for folder in (tmp_path, story["out"])]
    losses = [[json.loads(line)["loss"] for line in log] for log in logs]
    assert len(losses[0]) == STEPS // 4 and losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert not list(story["out"].glob(".*")) and not (story["out"] / CHECKPOINT).exists()


def test_the_time_of_a_training_adds_up(story):
    record = json.loads((story["out"] / "evaluation.json").read_text())
    assert record["train_seconds"] > story["kept"]["seconds"] > 0
