"""Dropping whole groups, and filling in those that a light left dark."""

import pytest
import torch

from lightfast._equivariance import equivariance_error
from lightfast._groups import Groups
from lightfast.nn._group_dropout import GroupDropout, GroupFill


def constant_groups(x):
    return x.amax((2, 3)) == x.amin((2, 3))


@pytest.mark.parametrize("p", [0.15, 0.5, 0.95])
def test_how_many_are_dropped(p):
    dropped = constant_groups(GroupDropout(p)(torch.randn(4000, 3, 2, 2)))
    assert dropped.sum(1).max() <= 2, "no image may lose all its groups"
    alone = torch.randn(4000, 3).new_tensor([p, 2 / 3]).min()
    if p < 0.5:
        torch.testing.assert_close(dropped.float().mean(), alone, atol=0.02, rtol=0)


def test_at_most_one():
    dropped = constant_groups(GroupDropout(0.9, at_most=1)(torch.randn(500, 3, 2, 2)))
    assert dropped.sum(1).max() == 1


def test_a_dropped_group_falls_to_its_mean_and_others_stay():
    x = torch.randn(200, 3, 4, 4)
    y = GroupDropout(0.4)(x)
    dropped = constant_groups(y)
    assert torch.equal(y[~dropped], x[~dropped])
    torch.testing.assert_close(y[dropped], x[dropped].mean((1, 2), keepdim=True).expand(-1, 4, 4), atol=1e-6, rtol=0)


def test_groups_of_several_features_fall_together():
    x = torch.randn(100, 6, 3, 3)
    y = GroupDropout(0.5, Groups([0, 1, 0, 2, 1, 2]))(x)
    dropped = constant_groups(y)
    assert torch.equal(dropped[:, 0], dropped[:, 2]) and torch.equal(dropped[:, 3], dropped[:, 5])
    assert dropped.any()


def test_evaluation_changes_nothing():
    x = torch.randn(10, 3, 4, 4)
    assert torch.equal(GroupDropout(0.9).eval()(x), x)


def test_the_generator_decides():
    x = torch.randn(50, 3, 4, 4)
    drop = GroupDropout(0.5)
    same = [drop(x, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(*same)
    assert not torch.equal(same[0], drop(x, torch.Generator().manual_seed(4)))


def test_dropping_is_equivariant():
    drop = GroupDropout(0.5)
    x = torch.randn(20, 3, 4, 4, dtype=torch.float64)

    def seeded(x):
        return drop(x, torch.Generator().manual_seed(0))

    offset = torch.randn(20, 3, 1, 1, dtype=torch.float64) * 10
    torch.testing.assert_close(seeded(x + offset), seeded(x) + offset)


@pytest.mark.parametrize(
    ("p", "at_most", "sentence"), [(1.0, None, "below 1"), (-0.1, None, "at least 0"), (0.5, 3, "at_most")]
)
def test_wrong_arguments(p, at_most, sentence):
    with pytest.raises(ValueError, match=sentence):
        GroupDropout(p, at_most=at_most)


def test_filling_leaves_whole_images_alone():
    x = torch.randn(5, 3, 4, 4)
    assert torch.equal(GroupFill()(x), x)


def test_filling_is_equivariant_with_a_dark_group():
    x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
    x[:, 1] = 7
    assert equivariance_error(GroupFill(), x) < 1e-12
    filled = GroupFill()(x)
    centered = x - x.mean((2, 3), keepdim=True)
    torch.testing.assert_close(filled[:, 1], 7 + (centered[:, 0] + centered[:, 2]) / 2)


def test_an_image_that_is_constant_everywhere_stays():
    x = torch.ones(1, 3, 4, 4)
    assert torch.equal(GroupFill()(x), x)
