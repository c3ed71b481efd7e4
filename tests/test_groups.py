import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightfast import Groups
from lightfast._groups import resolve

assignments = st.integers(1, 6).flatmap(
    lambda count: st.lists(st.integers(0, count - 1), min_size=1, max_size=20).map(lambda a: Groups(a, count))
)


@pytest.mark.parametrize(("features", "count"), [(15, 3), (3, 3), (4, 1), (62, 31), (400, 200)])
def test_even_runs_follow_the_formula_of_the_paper(features, count):
    expected = [-(-count * i // features) for i in range(1, features + 1)]
    groups = Groups.even(features, count)
    assert [group + 1 for group in groups.assignment] == expected
    assert groups.is_even
    assert set(groups.sizes) == {features // count}


def test_even_says_what_to_do_when_features_do_not_divide():
    with pytest.raises(
        ValueError, match=r"16 features do not divide into 3 equal groups: use 15 or 18 .*runs\(16, 3\)"
    ):
        Groups.even(16, 3)
    with pytest.raises(ValueError, match="at least 3 features, one for each"):
        Groups.even(2, 3)


@given(st.integers(1, 50), st.integers(1, 50))
def test_runs_differ_by_at_most_one(features, count):
    if features < count:
        with pytest.raises(ValueError, match="cannot fill"):
            Groups.runs(features, count)
        return
    sizes = Groups.runs(features, count).sizes
    assert sum(sizes) == features
    assert max(sizes) - min(sizes) <= 1


@given(assignments)
def test_matrix_has_one_1_a_row_and_pinv_is_the_pseudo_inverse(groups):
    matrix = groups.matrix(dtype=torch.float64)
    assert (matrix.sum(1) == 1).all()
    assert matrix.sum(0).int().tolist() == list(groups.sizes)
    torch.testing.assert_close(groups.pinv(dtype=torch.float64), torch.linalg.pinv(matrix))
    assert groups.index().tolist() == list(groups.assignment)


@given(assignments, st.integers(1, 4))
def test_repeat_is_what_flattening_does(groups, times):
    features = torch.tensor(groups.assignment)[:, None].expand(-1, times)
    assert groups.repeat(times) == Groups(features.flatten().tolist(), groups.count)


@given(assignments)
def test_concatenation_is_that_of_the_maps(groups):
    both = groups + groups
    assert torch.equal(both.matrix(), torch.cat([groups.matrix(), groups.matrix()]))
    assert both == Groups.concat([groups, groups])


def test_concatenation_needs_the_same_groups():
    with pytest.raises(ValueError, match="same number of groups"):
        Groups.even(4, 2) + Groups.even(3, 3)


@given(assignments)
def test_a_value_copied_in_any_way_is_equal(groups):
    groups.matrix()
    for other in (copy.deepcopy(groups), copy.copy(groups), pickle.loads(pickle.dumps(groups))):
        assert other == groups
        assert hash(other) == hash(groups)
    assert groups != Groups(groups.assignment, groups.count + 1)
    assert groups != "groups"


def test_a_pickle_does_not_carry_tensors():
    groups = Groups.even(300, 3)
    before = len(pickle.dumps(groups))
    groups.matrix()
    assert len(pickle.dumps(groups)) == before


@pytest.mark.parametrize(
    ("groups", "shown"),
    [
        (Groups.even(15, 3), "Groups.even(15, 3)"),
        (Groups([0, 2, 1]), "Groups([0, 2, 1])"),
        (Groups([0, 1], count=3), "Groups([0, 1], count=3)"),
        (Groups.interleaved(60, 3), "Groups([0, 1, 2, 0, 1, 2, 0, 1, 2, ...], 60 features in 3 groups)"),
    ],
)
def test_repr_is_readable(groups, shown):
    assert repr(groups) == shown


def test_blocks_stay_in_a_group():
    order, out = Groups.interleaved(12, 3).blocks(2)
    assert order is not None
    pairs = torch.tensor(Groups.interleaved(12, 3).assignment)[order].reshape(-1, 2)
    assert (pairs[:, 0] == pairs[:, 1]).all()
    assert out == Groups(pairs[:, 0].tolist())
    assert Groups.even(12, 3).blocks(4) == (None, Groups.even(3, 3))
    with pytest.raises(ValueError, match="blocks of 2"):
        Groups([0, 1, 1]).blocks(2)


@pytest.mark.parametrize("bad", [[], [-1], [0, 3]])
def test_bad_assignments_are_refused(bad):
    with pytest.raises(ValueError, match=r"at least one feature|numbered 0 to"):
        Groups(bad, 3)


def test_resolve_refuses_another_number_of_features():
    with pytest.raises(ValueError, match="expected 3 features"):
        resolve(Groups([0, 1, 2]), 4)
