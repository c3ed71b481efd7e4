"""Fine-tuning: what each way starts from, how long it is, what the teacher says, and the study on drawn pictures."""

import json

import pytest
import torch
from torch import nn

from lightfast._experiments.engine import Recipe
from lightfast._experiments.recognition.finetuning import FineTuning, epoch_recipe, task_for
from lightfast._experiments.recognition.pictures import drawn_pictures
from lightfast._experiments.recognition.starting import WAYS, DistillationTask, start
from lightfast._experiments.recognition.task import Augmentation
from lightfast._pipelines.classifier import Classifier
from lightfast.color import ChannelNorm
from lightfast.light import relight
from lightfast.nn._constrained import Constrained

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pictures():
    return drawn_pictures(train=64, test=24)


@pytest.fixture(scope="module")
def plain(pictures):
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, len(pictures.classes)))
    return Classifier(nn.Sequential(*body, *head), pictures.classes, ChannelNorm([0.4] * 3, [0.2] * 3), size=16).eval()


@torch.no_grad()
@pytest.mark.parametrize("way", ["wrapped", "equivariant", "augmentation"])
def test_what_a_way_starts_from(plain, pictures, way):
    begun = start(plain, way, pictures.train_images).eval()
    images = pictures.test_images.float() / 255
    lit = relight(images, 0.5, generator=torch.Generator().manual_seed(0))
    moved = (begun(lit) - begun(images)).abs().max()
    if way == "augmentation":
        torch.testing.assert_close(begun(images), plain(images))
        assert moved > 1e-3
    else:
        # 8 bits of darkness are cut off in log RGB, which is not the light's doing.
        assert moved < 0.05 * begun(images).abs().max()
        assert (begun(images) - plain(images)).abs().max() < 2 * plain(images).abs().max()
    assert all(parameter.requires_grad for parameter in begun.network.parameters())
    constrained = [module for module in begun.network.modules() if isinstance(module, Constrained)]
    assert bool(constrained) == (way == "equivariant")


def test_a_wrapped_network_starts_with_the_weights_of_the_network(plain, pictures):
    begun = start(plain, "wrapped", pictures.train_images)
    ours = [parameter for name, parameter in begun.network.named_parameters()]
    assert all(torch.equal(a, b) for a, b in zip(ours, plain.network.parameters(), strict=True))
    assert all(a is not b for a, b in zip(ours, plain.network.parameters(), strict=True))


def test_only_conventional_classifiers_are_started_from(pictures):
    log = Classifier("resnet20", pictures.classes, color="log", size=16)
    with pytest.raises(ValueError, match="one on sRGB"):
        start(log, "wrapped", pictures.train_images)


@pytest.mark.parametrize(("images", "epochs", "steps"), [(50_000, 1, 391), (50_000, 10, 3910), (100, 3, 3), (5, 0, 1)])
def test_an_epoch_shows_every_image(images, epochs, steps):
    recipe = epoch_recipe(Recipe(7, milestones=(3,), schedule="cosine"), images, epochs)
    assert recipe.steps == steps and recipe.warmup <= steps and recipe.batch_size <= images


def test_a_teacher_that_agrees_adds_nothing(plain, pictures):
    """With the whole loss from the teacher, the network itself has none, and another has some."""
    task = DistillationTask(pictures.train_images, pictures.train_labels, plain, plain, Augmentation(crop=2), 1.0)
    batch = task.batch(torch.arange(8), torch.Generator().manual_seed(0))
    assert batch[0].shape == (8, 6, 16, 16)
    assert task.loss(plain.network, batch)[0].item() == pytest.approx(0, abs=1e-6)
    other = start(plain, "wrapped", pictures.train_images)
    task = task_for(other, pictures, Augmentation(), plain, 0.5)
    batch = task.batch(torch.arange(8), torch.Generator().manual_seed(0))
    loss, logged = task.loss(other.network, batch)
    loss.backward()
    assert loss > 0 and set(logged) == {"error"}


def test_the_original_is_measured_once_and_the_others_at_every_epoch(pictures, tmp_path):
    study = FineTuning(data=pictures, plan=FineTuning.plans["usual"], out=tmp_path, chosen=list(WAYS))
    runs = study.runs()
    assert len(runs) == len(set(runs)) == 1 + 4 * (len(WAYS) - 1)
    record = {"saturations": [0.0, 0.9, 1.0], "errors": [8.0, 9.0, 40.0], "mixed": 10.0, "seed": 0, "parameters": 7}
    records = [record | {"way": "wrapped", "epochs": epochs} for epochs in (0, 1)]
    (summary,) = study.summaries(records)
    assert summary.mean == {
        "white": [8.0, 8.0, None, None],
        "worst": [9.0, 9.0, None, None],
        "mixed": [10.0, 10.0, None, None],
    }
    assert study.line(records[0]) == "error 8.00 % in white light, 9.00 % at worst up to S = 0.9"


def test_settings_are_chosen_on_images_that_are_not_trained_on():
    held_out, all_of_them = (FineTuning.load(None, {"size": None, "held_out": out}) for out in (True, False))
    assert len(held_out.test_labels) == 102 and len(held_out.train_labels) == 1024 - 102
    assert len(all_of_them.train_labels) == 1024


@pytest.mark.slow
def test_the_study_from_the_command_line(tmp_path, run):
    code, out, err = run(
        "reproduce", "finetuning", "--strategies", "original,wrapped", "--steps", 2, "--set", "steps_per_epoch=1",
        "--set", "lengths=0,1", "--out", tmp_path / "out", "--device", "cpu",
    )  # fmt: skip
    assert code == 0, err
    assert "| Wrapped" in out
    runs = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert sorted((r["way"], r["epochs"], r["steps"]) for r in runs) == [
        ("original", 0, 0), ("wrapped", 0, 0), ("wrapped", 1, 1),
    ]  # fmt: skip
    assert (tmp_path / "out" / "plain" / "model.json").exists()


@pytest.mark.parametrize("lengths", [1, (), (0, "x"), (1.5,), (-1,)])
def test_lengths_are_numbers_of_epochs(lengths):
    with pytest.raises(ValueError, match="numbers of epochs"):
        FineTuning.plans["usual"].with_values({"lengths": lengths})
