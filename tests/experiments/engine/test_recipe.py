import json

import pytest

from lightfast._experiments.engine import Recipe, learning_rate


def test_json_holds_it():
    recipe = Recipe(steps=10, milestones=(3, 5), betas=(0.8, 0.99), ema=0.999, clip=1.0, lr=0.1 + 0.2)
    assert json.loads(json.dumps(recipe.to_dict())) == recipe.to_dict()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"optimizer": "lion"}, "one of sgd, adamw, adam, not 'lion'"),
        ({"schedule": "linear"}, "schedule is one of"),
        ({"precision": "float16"}, "precision is one of"),
        ({"batch_size": 10, "accumulate": 3}, "equal micro-batches"),
        ({"warmup": 20}, "between 0 and the 10 steps"),
        ({"milestones": (5, 3)}, "milestones must grow"),
        ({"ema": 1.0}, "below 1"),
        ({"clip": 0.0}, "clip must be above 0"),
    ],
)
def test_values_that_cannot_be_meant(values, sentence):
    with pytest.raises(ValueError, match=sentence):
        Recipe(**{"steps": 10, **values})


def test_schedules():
    papers = Recipe(steps=64_000, milestones=(32_000, 48_000))
    rates = [learning_rate(papers, step) for step in (0, 31_999, 32_000, 47_999, 48_000, 63_999)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    cosine = Recipe(steps=110, lr=1.0, schedule="cosine", warmup=10)
    rates = [learning_rate(cosine, step) for step in (0, 4, 9, 10, 60, 109)]
    assert rates == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.5, 0.000247], abs=1e-6)
    assert learning_rate(Recipe(steps=10, lr=0.3, schedule="constant"), 9) == 0.3
