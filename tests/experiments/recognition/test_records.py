"""The records in the repository: a study takes them up where they were left."""

import json
from types import SimpleNamespace

import pytest
import torch

from lightfast._experiments.plan import choose_plan
from lightfast._experiments.recognition.experiment import Recognition
from lightfast._experiments.recognition.plans import PLANS
from lightfast._experiments.recognition.report import recognition_report
from lightfast._experiments.records import Run, keep_settings
from lightfast._experiments.report.tables import Table


@pytest.fixture
def study(repository, monkeypatch):
    monkeypatch.setattr(Recognition, "__post_init__", lambda self: None)
    settings = ["checkpoint_every=4000", "log_every=1000", "group_dropout=0.1", "drop_at_most=1"]
    plan = choose_plan(PLANS, "paper", torch.device("cuda"), settings=settings)
    pictures = SimpleNamespace(name="CIFAR-10", train_labels=range(50_000), test_labels=range(10_000))
    out = repository / "results" / "recognition" / "cifar10-fields"
    return Recognition(pictures, plan, out, ["original", "wrapped-plane"], seeds=3, photographs=False)


def test_more_seeds_can_be_added(study):
    keep_settings(study.out, study.settings(), write=False)
    records = study.finished()
    left = [run for run in study.runs() if run not in records]
    assert left == [Run(kind, seed) for seed in (0, 2) for kind in ("original", "wrapped-plane")]
    with pytest.raises(ValueError, match=r"lr was 0\.1 and is 0\.2"):
        keep_settings(study.out, study.settings() | {"plan": PLANS["paper"].with_values({"lr": 0.2}).to_dict()}, False)


def test_tables_are_those_of_the_records(study):
    report = recognition_report(study, study.summaries(list(study.finished().values())))
    tables = [str(part) for chapter in report.chapters for part in chapter.parts if isinstance(part, Table)]
    kept = (study.out / "table.md").read_text()
    assert len(tables) == 4 and all(table in kept for table in tables)
    assert json.loads((study.out / "results.json").read_text())["summary"].keys() == {s.name for s in report.summaries}
