import os
import signal
import subprocess
import sys

import pytest
from toy import ToyTask, toy_model

from lightfast._experiments.engine import FolderInUse, Recipe, holding, train

HOLD = """
import os, sys, time
from pathlib import Path
from lightfast._experiments.engine.lock import holding
with holding(Path(sys.argv[1])):
    if os.fork():
        print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the folder, and has a child."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_a_folder_in_use_is_refused_until_its_process_is_killed(holder, tmp_path):
    recipe = Recipe(steps=1, batch_size=4)
    with pytest.raises(FolderInUse, match=f"another training is writing to {tmp_path}: .*--out"):
        train(toy_model(), ToyTask(), recipe, tmp_path, progress=False)
    # Its child lives on, as the workers of a data loader may for a while.
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    train(toy_model(), ToyTask(), recipe, tmp_path, progress=False)
    assert not (tmp_path / ".lock").exists()


def test_who_holds_a_folder_may_train_in_it(tmp_path):
    with holding(tmp_path):
        train(toy_model(), ToyTask(), Recipe(steps=1, batch_size=4), tmp_path, progress=False)
        assert (tmp_path / ".lock").exists()
    assert not (tmp_path / ".lock").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="cannot be written to"), holding(tmp_path):
        pass
