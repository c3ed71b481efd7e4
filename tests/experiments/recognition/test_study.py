"""The comparison from training to records, in a folder that can be left and come back to."""

import dataclasses
import json

import pytest
import torch
from PIL import Image

from lightfast._experiments.data import LazyImages
from lightfast._experiments.engine import Recipe
from lightfast._experiments.recognition.evaluation import evaluate
from lightfast._experiments.recognition.experiment import Recognition
from lightfast._experiments.recognition.pictures import drawn_pictures
from lightfast._experiments.recognition.plans import PLANS
from lightfast._experiments.records import run_folder
from lightfast._pipelines.classifier import Classifier
from lightfast.light import LIGHT_KINDS

PICTURES = drawn_pictures(train=64, test=24, size=8)
PLAN = dataclasses.replace(
    PLANS["demo"].with_steps(2).with_values({"batch_size": 8}),
    balance_recipe=Recipe(1, batch_size=4, optimizer="adamw", lr=1e-3),
    jitter=None,
    jitter_choices=(0.2, 0.8),
    jitter_steps=1,
)


def study(out, strategies, **options):
    values = {"data": PICTURES, "plan": PLAN, "say": lambda text: None, **options}
    return Recognition(out=out, chosen=strategies, progress=False, **values)


def finished_runs(out):
    return list(study(out, []).finished().values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One comparison of strategies that share no more than the pictures."""
    out = tmp_path_factory.mktemp("study")
    names = ["original", "augmentation", "quasi-unsupervised", "equivariant", "wrapped-plane", "group-fill"]
    said = []
    study(out, names, say=said.append).run()
    return out, names, said


def test_every_strategy_has_a_record_and_a_model(folder):
    out, names, said = folder
    records = finished_runs(out)
    assert [record["strategy"] for record in records] == names
    for record in records:
        assert len(record["errors"]) == 11 and 0 <= record["mixed"] <= 100
        assert set(record["varying"]) == set(LIGHT_KINDS)
        assert {"command", "commit", "versions", "machine", "date"} <= record["provenance"].keys()
        files = {path.name for path in run_folder(out, (record["strategy"], 0)).iterdir()}
        assert {"model.safetensors", "model.json", "evaluation.json", "log.jsonl"} <= files
        assert "checkpoint.safetensors" not in files
    assert any("is done: error" in line for line in said)


def test_the_saved_model_has_the_recorded_errors(folder):
    out, _, _ = folder
    for record in finished_runs(out):
        classifier = Classifier.load(run_folder(out, (record["strategy"], 0)))
        again = evaluate(classifier, PICTURES.test_images, PICTURES.test_labels, batch_size=24)
        assert list(again.errors) == pytest.approx(record["errors"], abs=4.2), "one image of 24 may fall on an edge"


def test_the_jitter_was_chosen_on_held_out_images(folder):
    out, _, _ = folder
    choice = json.loads((out / "jitter.json").read_text())
    best = min(choice["tried"], key=lambda tried: tried["mean_error"])
    assert choice["chosen"] == best["strength"] and [tried["strength"] for tried in choice["tried"]] == [0.2, 0.8]


def test_what_is_finished_is_not_done_again(folder):
    out, names, _ = folder
    path = run_folder(out, ("original", 0)) / "evaluation.json"
    before, said = path.stat().st_mtime_ns, []
    study(out, names, say=said.append).run()
    assert path.stat().st_mtime_ns == before
    assert said == [f"6 of 6 runs are in {out} already"]


def test_other_settings_in_the_same_folder_are_refused(folder):
    out, names, _ = folder
    with pytest.raises(ValueError, match=r"other settings \(lr was 0.2 and is 0.3\)"):
        study(out, names, plan=PLAN.with_values({"lr": 0.3})).run()


def test_a_damaged_record_is_named(tmp_path):
    path = run_folder(tmp_path, ("original", 0)) / "evaluation.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"evaluation\.json is not the record of a run"):
        finished_runs(tmp_path)


def test_only_some_pairs(tmp_path):
    study(tmp_path, ["original"], only=Recognition.parse_runs("wrapped:3")).run()
    assert [(record["strategy"], record["seed"]) for record in finished_runs(tmp_path)] == [("wrapped", 3)]


@pytest.mark.parametrize("text", ["original", "original:x", "orignal:0", "equivariant:-1"])
def test_wrong_pairs(text):
    with pytest.raises(ValueError, match="is not STRATEGY:SEED"):
        Recognition.parse_runs(text)


def test_the_seed_decides_the_weights(tmp_path):
    for name in ("a", "b"):
        study(tmp_path / name, ["wrapped"]).run()
    first, second = (Classifier.load(run_folder(tmp_path / name, ("wrapped", 0))) for name in ("a", "b"))
    for one, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_pictures_that_are_read_lazily(tmp_path):
    """As ImageNet is: decoded by worker processes in training, for statistics, for color balance and in evaluation."""
    for folder, images in (("train", PICTURES.train_images[:16]), ("test", PICTURES.test_images[:8])):
        (tmp_path / folder).mkdir()
        for number, image in enumerate(images):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / folder / f"{number:02}.png")
    lazy = dataclasses.replace(
        PICTURES,
        train_images=LazyImages(sorted((tmp_path / "train").iterdir()), 8),
        train_labels=PICTURES.train_labels[:16],
        test_images=LazyImages(sorted((tmp_path / "test").iterdir()), 8),
        test_labels=PICTURES.test_labels[:8],
    )
    names = ["original", "quasi-unsupervised", "equivariant"]
    records = study(tmp_path / "out", names, data=lazy).run()
    assert [record["strategy"] for record in records] == names
    in_memory = evaluate(
        Classifier.load(run_folder(tmp_path / "out", ("original", 0))), PICTURES.test_images[:8], lazy.test_labels
    )
    assert list(in_memory.errors) == records[0]["errors"]


def test_lazy_pictures_cannot_be_held_out(tmp_path):
    lazy = dataclasses.replace(PICTURES, train_images=LazyImages([], 8))
    with pytest.raises(ValueError, match="cannot be held out"):
        lazy.held_out()
