"""Plans take other values by name, and refuse what cannot be meant."""

import pytest

from lightfast._experiments.illuminant.plans import ILLUMINANT_PLANS
from lightfast._experiments.inpainting.plans import INPAINTING_PLANS
from lightfast._experiments.recognition.plans import PLANS

ALL = [PLANS["paper"], ILLUMINANT_PLANS["best"], INPAINTING_PLANS["slim"]]


@pytest.mark.parametrize("plan", ALL)
def test_values_reach_the_plan_and_its_parts(plan):
    field = next(name for name in ("jitter_steps", "views", "held_out") if hasattr(plan, name))
    flag = next(name for name in ("flip", "turn") if hasattr(plan.augmentation, name))
    changed = plan.with_values({field: 7, "lr": 1, flag: False, "ema": None})
    assert getattr(changed, field) == 7 and changed.recipe.lr == 1 and changed.recipe.ema is None
    assert getattr(changed.augmentation, flag) is False
    assert changed.with_values({"ema": 0.9}).recipe.ema == 0.9


@pytest.mark.parametrize("plan", ALL)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": 1}, "has no 'learning_rate'; it has .*lr"),
        ({"name": "mine"}, "has no 'name'"),
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
