"""Plans take other values by name, and refuse what cannot be meant."""

from pathlib import Path

import pytest
import torch

from lightfast._experiments import EXPERIMENTS, experiment
from lightfast._experiments.illuminant import plans as illuminant
from lightfast._experiments.inpainting import plans as inpainting
from lightfast._experiments.plan import choose_plan
from lightfast._experiments.recognition.plans import PLANS
from lightfast._experiments.study import Study

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ALL = [PLANS["paper"], illuminant.PLANS["best"], inpainting.PLANS["slim"]]


@pytest.mark.parametrize("plan", ALL)
def test_values_reach_the_plan_and_its_parts(plan):
    field = next(name for name in ("jitter_steps", "views", "held_out") if hasattr(plan, name))
    flag = next(name for name in ("flip", "turn") if hasattr(plan.augmentation, name))
    changed = plan.with_values({field: 7, "lr": 1, flag: False, "ema": None})
    assert getattr(changed, field) == 7 and changed.recipe.lr == 1 and changed.recipe.ema is None
    assert getattr(changed.augmentation, flag) is False
    assert changed.with_values({"ema": 0.9}).recipe.ema == 0.9
    # Either of them alone would be wrong beside what the recipe has for the other.
    shorter = changed.with_values({"steps": 5, "warmup": 2, "milestones": (1, 3)})
    assert (shorter.recipe.steps, shorter.recipe.warmup) == (5, 2)


@pytest.mark.parametrize("plan", ALL)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": 1}, "has no 'learning_rate'; it has .*lr"),
        ({"name": "mine"}, "name cannot be set: it is the recipe's"),
        ({"seed": 3}, "seed cannot be set: .*--only"),
        ({"recipe": 3}, "recipe cannot be set"),
        ({"lr": "0,1"}, "lr is a number"),
        ({"lr": True}, "lr is a number"),
        ({"graph": "no"}, "graph is True or False"),
        ({"graph": 1}, "graph is True or False"),
        ({"schedule": 3}, "schedule is a text"),
    ],
)
def test_what_cannot_be_meant_is_refused(plan, values, message):
    with pytest.raises(ValueError, match=message):
        plan.with_values(values)


@pytest.mark.parametrize("plan", ALL)
def test_what_is_set_comes_last_and_reaches_every_recipe(plan):
    def chosen(device, *settings, **options):
        return choose_plan({"it": plan}, "it", device, options=options, settings=settings)

    assert chosen(GPU).recipe.graph and not chosen(CPU).recipe.graph
    assert not chosen(GPU, "graph=false").recipe.graph and not chosen(GPU, graph=False).recipe.graph
    assert not chosen(GPU, "channels_last=false").recipe.channels_last
    changed = chosen(GPU, "precision=float32")
    assert changed.recipe.precision == getattr(changed, "balance_recipe", changed.recipe).precision == "float32"
    assert chosen(CPU, "lr=1", "lr=2").recipe.lr == 2
    assert chosen(CPU, precision="bfloat16").recipe.precision == "bfloat16"
    for arguments, message in (
        ({"settings": ["graph=true"]}, "graph cannot be true here"),
        ({"settings": ["precision=float32"], "options": {"precision": "bfloat16"}}, "precision is given twice"),
        ({"settings": ["steps=1"], "steps": 2}, "steps is given twice"),
    ):
        with pytest.raises(ValueError, match=message):
            choose_plan({"it": plan}, "it", CPU, **arguments)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick_is_a_first_look_at_the_data_at_hand(name):
    study = experiment(name)
    data = study.recipes(Path("somewhere"))
    assert data["quick"].recipe.steps <= 4000
    usual = data[study.usual_recipe].recipe.steps
    # A single step stands for an experiment that trains nothing.
    assert data["quick"].recipe.steps < usual or study.usual_recipe == "quick" or usual == 1
    if not study.needs_data:
        assert study.recipes(None)["quick"] == study.plans["demo"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_name_at_all_is_refused_with_the_same_sentence(name):
    study = experiment(name)
    for text in ("", " , "):
        with pytest.raises(ValueError, match=f"no {study.noun} was named; there are {next(iter(study.kinds))}, "):
            study.choose(text)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_recipes_that_count_epochs_are_of_experiments_that_count_samples(name):
    study = experiment(name)
    for plan in study.plans.values():
        counted = isinstance(plan.epochs, int | float)
        assert counted or plan.epochs is None
        assert not counted or study.samples.__func__ is not Study.samples.__func__
