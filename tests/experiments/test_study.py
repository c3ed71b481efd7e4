"""What all studies do, shown by the smallest experiment: lines that are fitted to points."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lightfast._experiments import EXPERIMENTS, experiment
from lightfast._experiments import study as studies
from lightfast._experiments.engine import Recipe
from lightfast._experiments.plan import Plan
from lightfast._experiments.records import Run, run_folder
from lightfast._experiments.report import Chapter, Figure, Report
from lightfast._experiments.report.figures import curve_figure
from lightfast._experiments.report.tables import comparison
from lightfast._experiments.study import Study, Training, option

pytestmark = pytest.mark.usefixtures("one_thread")


class Line(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.network = nn.Linear(1, 1, bias=bias)

    def save(self, folder, name, half):
        (folder / f"{name}.txt").write_text("a line")


class Points:
    samples = 8

    def to(self, device):
        pass

    def batch(self, indices, generator):
        return indices[:, None] / self.samples

    def loss(self, model, x):
        return (model(x) - 2 * x - 1).square().mean(), {}


@dataclass
class Lines(Study):
    color: str = option("black", "Of the lines.")

    help = data_help = train_help = "Fit lines to points."
    kinds = {"original": SimpleNamespace(title="Through 0"), "free": SimpleNamespace(title="Any", color="log")}  # noqa: RUF012
    plans = {"demo": Plan("demo", "", Recipe(2, batch_size=4, lr=0.1)), "best": Plan("best", "", Recipe(90))}  # noqa: RUF012
    pipeline = Line
    measured = ("errors",)

    @classmethod
    def load(cls, data, options):
        return "points"

    def about_data(self):
        return {"data": self.data, "color": self.color}

    def make(self, run, folder):
        torch.manual_seed(run.seed)
        return Training(Line(run.kind == "free"), Points(), self.plan.recipe, about={"color": self.color})

    def measure(self, run, pipeline):
        with torch.no_grad():
            answers = pipeline.network(torch.tensor([[0.0], [1.0]]))
        return {"errors": (answers.flatten() - torch.tensor([1.0, 3.0])).abs().tolist(), "answers": answers}

    def line(self, record):
        return f"{record['errors'][0]:.1f}"

    def report(self, records):
        found = self.summaries(records)

        def draw(theme):
            return curve_figure(found, [0, 1], lambda measured: measured["errors"], ("Lines", "x", "error"), theme)

        table = comparison(found, ["Line", "at 0"], lambda s: [s.text("errors", 0)], "Errors.", seeds=True)
        return Report("Lines", "Fitted.", found, [Chapter("Errors", [Figure("errors", draw, "curves"), table])])


@pytest.fixture
def study(tmp_path):
    said = []
    study = Lines("points", Lines.plans["demo"], tmp_path / "out", list(Lines.kinds), 2, progress=False)
    return dataclasses.replace(study, say=said.append), said


def test_records_come_back_as_they_are_on_disk_and_are_reported(study):
    lines, said = study
    records = lines.run()
    assert [(record["network"], record["seed"]) for record in records] == [(k, s) for k in Lines.kinds for s in (0, 1)]
    assert [line for line in said if "training" in line][:2] == ["training original:0", "training free:0"]
    for (run, kept), record in zip(lines.finished().items(), records, strict=True):
        assert torch.equal(kept.pop("answers"), record["answers"])
        assert kept == {key: value for key, value in record.items() if key != "answers"}
        folder = run_folder(lines.out, run)
        assert (folder / "model.txt").exists() and not (folder / "checkpoint.safetensors").exists()
    table = lines.write_report(records)
    results = json.loads((lines.out / "results.json").read_text())
    errors = [record["errors"][0] for record in records[:2]]
    assert results["summary"]["original"]["mean"]["errors"][0] == pytest.approx(sum(errors) / 2, abs=1e-4)
    assert f"{sum(errors) / 2:.2f} ± {abs(errors[0] - errors[1]) / 2**0.5:.2f}" in table
    assert results["color"] == "black" and "answers" not in results["runs"][0]
    page = (lines.out / "report.html").read_text()
    assert "How it was made" in page and 'class="strong"><th scope="row">Any' in page
    said.clear()
    assert len(dataclasses.replace(lines, seeds=1).run()) == 4, "also those that were not asked for this time"
    assert said == [f"2 of 2 runs are in {lines.out} already"]


def test_other_settings_are_refused_unless_they_do_not_matter(study):
    lines, _ = study
    lines.run()
    dataclasses.replace(lines, plan=lines.plan.with_values({"log_every": 7})).run()
    with pytest.raises(ValueError, match=r"other settings \(color was black and is red; lr was 0.1 and is 0.2\)"):
        dataclasses.replace(lines, color="red", plan=lines.plan.with_values({"lr": 0.2})).run()


def test_one_process_of_several_writes_and_speaks(study, monkeypatch):
    lines, said = study
    monkeypatch.setattr(studies, "is_main", lambda: False)
    monkeypatch.setattr(studies, "train_many", lambda jobs, device, progress: None)
    assert len(lines.run()) == 4
    assert not said and not lines.out.exists()


def test_after_so_many_seconds_no_more_is_begun(study):
    lines, said = study
    assert dataclasses.replace(lines, seconds=-1.0).run() == []
    assert said == ["4 runs are left for another time: -1 s are over"]
    assert len(lines.run()) == 4


def test_only_some_runs_and_splits(study, monkeypatch):
    lines, _ = study
    monkeypatch.setattr(Lines, "splits", lambda self: ["left", "right"])
    chosen = dataclasses.replace(lines, only=Lines.parse_runs("free:3, original:1"))
    assert chosen.runs() == [Run(k, s, split) for k, s in (("free", 3), ("original", 1)) for split in ("left", "right")]
    assert list(map(str, chosen.runs()[:2])) == ["free.left.3", "free.right.3"]
    chosen.run()
    assert list(chosen.finished()) == sorted(chosen.runs(), key=lambda run: run.kind, reverse=True)


def test_one_is_trained_in_the_folder_itself_and_not_over_another(study):
    lines, _ = study
    assert "mine.safetensors" in lines.train_one("free", 5, "mine")
    record = json.loads((lines.out / "evaluation.json").read_text())
    assert (record["network"], record["seed"], record["steps"]) == ("free", 5, 2)
    assert (lines.out / "mine.txt").exists()
    with pytest.raises(ValueError, match="holds a trained line already"):
        lines.train_one("free", 5)


def test_a_damaged_record_is_named(study):
    lines, _ = study
    path = run_folder(lines.out, ("original", 0)) / "evaluation.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"evaluation\.json is not the record of a run"):
        lines.finished()


def test_a_new_experiment_is_a_class_and_a_line(tmp_path, run, monkeypatch):
    """With the options of all experiments and its own, and nothing else to write."""
    monkeypatch.setitem(EXPERIMENTS, "lines", "lines:Lines")
    monkeypatch.setitem(sys.modules, "lightfast._experiments.lines", SimpleNamespace(Lines=Lines))
    code, out, err = run(
        "reproduce", "lines", "--color", "red", "--networks", "free", "--set", "lr=0.2", "--out", tmp_path / "out",
        "--device", "cpu",
    )  # fmt: skip
    assert code == 0, err
    assert "| Any" in out and json.loads((tmp_path / "out" / "settings.json").read_text())["color"] == "red"
    code, out, err = run("train", "lines", "--network", "free", "--out", tmp_path / "one", "--device", "cpu")
    assert code == 0 and (tmp_path / "one" / "model.txt").exists(), err


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_keeps_the_contract(name):
    study = experiment(name)
    assert not study.__abstractmethods__ and study.help and study.data_help
    assert all(kind.title for kind in study.kinds.values()) and study.trained in study.kinds
    assert study.usual_recipe in study.plans and (study.needs_data or "demo" in study.plans)
    assert study.choose(study.usual) and all(set(names) <= set(study.kinds) for names in study.aliases.values())
