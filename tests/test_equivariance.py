import pytest
import torch

import lightfast as lf
from lightfast import Groups, assert_equivariant, equivariance_error


def test_the_number_is_what_the_formula_says():
    x = torch.zeros(1, 3, dtype=torch.float64)
    offset = torch.tensor([2.0, 4.0, 8.0])
    # 2x moves by 2Δ where Δ is wanted, so it is off by Δ, at most 8, relative to 8.
    assert equivariance_error(lambda x: 2 * x, x, offsets=offset) == pytest.approx(1.0)
    assert equivariance_error(lambda x: x, x, offsets=offset) == 0
    assert equivariance_error(lambda x: x, x, offsets=offset, expect="invariant") == pytest.approx(1.0)
    assert equivariance_error(lambda x: x - x, x, offsets=offset, expect="invariant") == 0


def test_each_image_has_its_own_offset():
    """Batch statistics of an uncentered map follow one common offset, but not one per image."""
    x = torch.randn(4, 6, 5, 5)
    common = torch.ones(3)
    assert equivariance_error(lambda x: x - x.mean(0), x, offsets=common, expect="invariant") < 1e-12
    assert equivariance_error(lambda x: x - x.mean(0), x, expect="invariant") > 0.1


def test_a_module_is_left_as_it_was():
    layer = lf.nn.BatchNorm2d(6)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    equivariance_error(layer, torch.randn(4, 6, 5, 5))
    assert all(torch.equal(before[key], value) for key, value in layer.state_dict().items())
    assert layer.weight.dtype == torch.float32
    assert layer.training


def test_random_layers_draw_the_same_numbers():
    x = torch.randn(4, 6, 5)
    state = torch.get_rng_state()
    assert equivariance_error(lf.nn.Dropout(0.5), x) < 1e-12
    assert torch.equal(torch.get_rng_state(), state)


def test_assignments_and_axes_of_input_and_output():
    into, out = Groups.interleaved(6, 3), Groups([2, 1, 0])
    layer = lf.nn.Linear(6, 3, offset_groups=(into, out))
    assert_equivariant(layer, torch.randn(2, 4, 6), into, out_groups=out, dim=2)
    with pytest.raises(AssertionError, match=r"Linear is not equivariant: error .*, tolerance 1e-10"):
        assert_equivariant(layer, torch.randn(2, 4, 6), into, out_groups=Groups([0, 1, 2]), dim=2)


def test_not_a_number_is_an_error_without_end():
    assert equivariance_error(lambda x: x / 0, torch.zeros(1, 3)) == float("inf")


def test_tolerance_goes_with_the_precision():
    layer = lf.nn.Conv2d(6, 6, 3, padding=1)
    x = torch.randn(2, 6, 5, 5)
    assert_equivariant(layer, x, offsets=100.0)
    assert_equivariant(layer, x, offsets=100.0, dtype=None)
    assert equivariance_error(layer, x, offsets=100.0, dtype=None) > 1e-10
