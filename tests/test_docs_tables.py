"""Numbers in README and docs are those in results/, and the demo's are what the demo gives today."""

import importlib.util
import json
import subprocess
import sys

import pytest
import torch

from lightfast._experiments.engine import train
from lightfast._experiments.plan import choose_plan
from lightfast._experiments.recognition.experiment import Recognition
from lightfast._experiments.records import Run


def test_tables_are_up_to_date(repository):
    command = [sys.executable, str(repository / "docs" / "render.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_cell_is_found_by_its_row_and_column(repository):
    spec = importlib.util.spec_from_file_location("render", repository / "docs" / "render.py")
    render = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(render)
    table = "| A | S = 0 |\n|:--|--:|\n| one, two | 1.0 ± 0.1 |\n| three | 3 |\n"
    assert render.cell(table, "one, two", "S = 0") == "1.0 ± 0.1"
    with pytest.raises(ValueError, match="one row 'four'"):
        render.cell(table, "four", "S = 0")


class Enough(Exception):
    """The first line of the log is there."""


def test_the_table_of_the_demo_is_not_stale(repository, tmp_path):
    """Its recipe and its strategies are today's, and the first steps of a training give what its log says."""
    folder = repository / "results" / "recognition" / "drawn"
    again = "stale: run make demo, and copy what it writes, but for the models, to results/recognition/drawn"
    recorded = json.loads((folder / "settings.json").read_text())["plan"]["recipe"]
    device = torch.device("cpu")
    plan = choose_plan(Recognition.recipes(None), "demo", device)
    for name in ("steps", "batch_size", "lr", "log_every"):
        assert recorded[name] == getattr(plan.recipe, name), again
    table = (folder / "table.md").read_text()
    for name in Recognition.choose(Recognition.usual):
        assert f"| {Recognition.kinds[name].title} " in table, again

    def stop(step, numbers):
        raise Enough(step, numbers["loss"])

    study = Recognition(data=Recognition.load(None, {}), plan=plan, device=device, out=tmp_path)
    training = study.make(Run("equivariant", 0), tmp_path)
    with pytest.raises(Enough) as reached:
        train(training.pipeline.network, training.task, training.recipe, device=device, progress=False, on_log=stop)
    line = json.loads((folder / "runs" / "equivariant-0" / "log.jsonl").read_text().splitlines()[0])
    # Machines round differently, and a few steps let that grow; another network or other pictures differ by far more.
    assert reached.value.args == (line["step"], pytest.approx(line["loss"], rel=0.02)), again
