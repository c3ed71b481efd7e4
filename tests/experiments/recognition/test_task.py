"""The task of recognition: batches, loss, strategies and plans."""

import dataclasses

import pytest
import torch
from PIL import Image

from lightfast._experiments.classification import STRATEGIES
from lightfast._experiments.data import LazyImages
from lightfast._experiments.data.generated import draw
from lightfast._experiments.engine import Draw, LazyTask
from lightfast._experiments.recognition.experiment import Recognition
from lightfast._experiments.recognition.plans import PLANS
from lightfast._experiments.recognition.task import Augmentation, LazyRecognitionTask, RecognitionTask
from lightfast._pipelines.preparation import Preparation
from lightfast.color import ChannelNorm


def make_task(color="srgb", **augmentation):
    images, labels = draw(32, size=12)
    prepare = Preparation(ChannelNorm([0.5] * 3, [0.25] * 3), color)
    return RecognitionTask(images, labels, prepare, Augmentation(**augmentation))


def batch_of(task, seed=0):
    return task.batch(torch.arange(16), torch.Generator().manual_seed(seed))


def test_without_augmentation_a_batch_is_the_prepared_images():
    task = make_task(flip=False)
    inputs, labels = batch_of(task)
    torch.testing.assert_close(inputs, (task.images[:16] / 255 - 0.5) / 0.25)
    assert torch.equal(labels, task.labels[:16])


@pytest.mark.parametrize(
    "augmentation",
    [{"crop": 3}, {"resize": True}, {"erasing": 1.0}, {"jitter": 0.5}, {"group_dropout": 0.5}, {"flip": True}],
    ids=str,
)
@pytest.mark.parametrize("color", ["srgb", "log"])
def test_augmentation_is_random_and_repeatable(augmentation, color):
    task = make_task(color, **{"flip": False, **augmentation})
    first, again, other = batch_of(task, 1)[0], batch_of(task, 1)[0], batch_of(task, 2)[0]
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == (16, 3, 12, 12) and first.dtype == torch.float32 and bool(first.isfinite().all())


def test_all_but_jitter_leave_the_light_alone():
    """Under log RGB a gain on all images changes nothing after augmentation."""
    everything = {"crop": 2, "resize": True, "erasing": 0.5, "group_dropout": 0.3}
    task = make_task("log", **everything)
    task.images = task.images.clamp(min=100)
    plain = batch_of(task)[0]
    linear = (task.images.float() / 255).pow(2.2) * torch.tensor([1.0, 0.6, 0.8])[:, None, None]
    lit = make_task("log", **everything)
    lit.images = linear.pow(1 / 2.2) * 255
    # The pure power is not quite the curve of sRGB, so the change of light is not quite an offset.
    assert (batch_of(lit)[0] - plain).abs().mean() < 0.02


def test_the_loss_counts_errors_in_per_cent():
    task = make_task(label_smoothing=0.1)
    scores = torch.zeros(4, 9)
    scores[range(4), [0, 1, 2, 3]] = 5.0
    model = torch.nn.Identity()
    loss, logged = task.loss(model, (scores, torch.tensor([0, 1, 2, 8])))
    assert logged["error"].item() == 25.0
    expected = torch.nn.functional.cross_entropy(scores, torch.tensor([0, 1, 2, 8]), label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)


def test_images_and_labels_must_match():
    with pytest.raises(ValueError, match="2 images, but 3 labels"):
        RecognitionTask(torch.zeros(2, 3, 8, 8), torch.zeros(3), make_task().prepare, Augmentation())


def test_lazy_images_make_the_same_kind_of_batch(tmp_path):
    images, labels = draw(6, size=16)
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    task = LazyRecognitionTask(LazyImages(paths, 12), labels, make_task().prepare, Augmentation(), workers=0)
    assert isinstance(task, LazyTask) and not isinstance(make_task(), LazyTask) and task.samples == 6
    (loaded,) = task.read_ahead([Draw(torch.tensor([4, 1]), 7)], torch.device("cpu"))
    inputs, given = task.batch(loaded, torch.Generator().manual_seed(0))
    assert inputs.shape == (2, 3, 12, 12) and given.tolist() == labels[[4, 1]].tolist()


def test_the_usual_strategies_are_the_eight_of_the_comparison():
    assert Recognition.choose("all") == list(Recognition.aliases["all"]) and len(Recognition.aliases["all"]) == 8
    assert Recognition.choose("original, preprocessing, original") == [
        "original",
        *Recognition.aliases["preprocessing"],
    ]
    assert all(strategy.color == "log" for strategy in STRATEGIES.values() if strategy.offset_groups)


@pytest.mark.parametrize(("names", "sentence"), [("orignal", "no strategy 'orignal'"), (" ", "no strategy was named")])
def test_wrong_strategies(names, sentence):
    with pytest.raises(ValueError, match=sentence):
        Recognition.choose(names)


def test_strategies_switch_their_augmentation_on():
    plan = PLANS["paper"]
    assert plan.augmentation_for(STRATEGIES["original"], 0.5) == plan.augmentation
    assert plan.augmentation_for(STRATEGIES["augmentation"], 0.5).jitter == 0.5
    assert plan.augmentation_for(STRATEGIES["group-dropout"], 0.5).group_dropout == plan.group_dropout


def test_the_papers_recipe_is_the_papers():
    recipe = PLANS["paper"].recipe
    assert (recipe.steps, recipe.batch_size, recipe.lr, recipe.momentum) == (64_000, 128, 0.1, 0.9)
    assert (recipe.milestones, recipe.gamma, recipe.weight_decay) == ((32_000, 48_000), 0.1, 1e-4)
    assert PLANS["paper"].augmentation == Augmentation(crop=4, flip=True)


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_plans_can_be_shortened(plan, steps):
    short = plan.with_steps(steps)
    assert short.recipe.steps == steps and short.recipe.warmup <= steps
    assert dataclasses.replace(short.recipe, steps=1, warmup=0, milestones=()) == dataclasses.replace(
        plan.recipe, steps=1, warmup=0, milestones=()
    )


def test_no_plan_but_its_jitter_changes_the_light():
    assert all(plan.augmentation.jitter == 0 and plan.augmentation.group_dropout == 0 for plan in PLANS.values())


def test_unknown_values_of_a_plan_are_named():
    with pytest.raises(ValueError, match="no 'learning_rate'; it has"):
        PLANS["quick"].with_values({"learning_rate": 1})
