import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from lightfast import Groups
from lightfast.functional import (
    add_offset,
    center,
    check_feasible,
    group_pool,
    project_coefficients,
    project_weight,
    tap_phases,
)

KINDS = ["mean", "max", "min", "linear"]


@st.composite
def assigned_maps(draw):
    """A map in float64, its assignment (even, or any where every group has a feature), and the features' axis."""
    count = draw(st.integers(1, 5))
    if draw(st.booleans()):
        groups = Groups.even(count * draw(st.integers(1, 4)), count)
    else:
        extra = draw(st.lists(st.integers(0, count - 1), max_size=8))
        groups = Groups(draw(st.permutations([*range(count), *extra])), count)
    positions = draw(st.lists(st.integers(1, 4), max_size=3))
    dim = draw(st.integers(1, len(positions) + 1))
    shape = [draw(st.integers(1, 3)), *positions]
    shape.insert(dim, groups.features)
    seed = draw(st.integers(0, 2**16))
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x, groups, dim


def spelled_out_pool(x, groups, kind, scope, dim, coefficients):
    """Group pooling feature by feature, as the formula says."""
    x = x.movedim(dim, 1)
    values = []
    for group in range(groups.count):
        chosen = [i for i, of in enumerate(groups.assignment) if of == group]
        part = x[:, chosen]
        if kind == "linear":
            weights = project_coefficients(coefficients, groups)[chosen]
            assert weights.sum() == pytest.approx(1)
            part = (part * weights.reshape(-1, *[1] * (part.dim() - 2))).sum(1, keepdim=True)
        axes = list(range(1, part.dim())) if scope == "image" else [1]
        reduce = {"mean": torch.mean, "linear": torch.mean, "max": torch.amax, "min": torch.amin}[kind]
        values.append(reduce(part, axes, keepdim=True))
    return torch.cat(values, 1).movedim(1, dim)


@pytest.mark.parametrize("scope", ["image", "pixel"])
@pytest.mark.parametrize("kind", KINDS)
@given(assigned=assigned_maps())
def test_group_pool_is_the_formula_and_has_response_identity(kind, scope, assigned):
    x, groups, dim = assigned
    coefficients = torch.randn(groups.features, dtype=torch.float64)
    pooled = group_pool(x, groups, kind, scope, dim, coefficients)
    torch.testing.assert_close(pooled, spelled_out_pool(x, groups, kind, scope, dim, coefficients))

    offset = 100 * torch.randn(x.shape[0], groups.count, dtype=torch.float64)
    moved = group_pool(add_offset(x, offset, groups, dim), groups, kind, scope, dim, coefficients)
    torch.testing.assert_close(moved, add_offset(pooled, offset, Groups.even(groups.count, groups.count), dim))


@pytest.mark.parametrize("scope", ["image", "pixel"])
@pytest.mark.parametrize("kind", ["mean", "max", "min"])
@given(assigned=assigned_maps())
def test_the_view_path_and_the_index_path_agree(kind, scope, assigned):
    x, groups, dim = assigned
    order = sorted(range(groups.features), key=lambda i: groups.assignment[i])
    straight = Groups([groups.assignment[i] for i in order], groups.count)
    through_views = center(x.index_select(dim, torch.tensor(order)), straight, kind, scope, dim)
    through_index = center(x, groups, kind, scope, dim).index_select(dim, torch.tensor(order))
    torch.testing.assert_close(through_views, through_index)


@given(assigned=assigned_maps())
def test_a_centered_map_does_not_move(assigned):
    x, groups, dim = assigned
    offset = 100 * torch.randn(x.shape[0], groups.count, dtype=torch.float64)
    torch.testing.assert_close(
        center(add_offset(x, offset, groups, dim), groups, dim=dim), center(x, groups, dim=dim), atol=1e-10, rtol=0
    )


@given(assigned=assigned_maps())
def test_offsets_may_be_given_in_any_pooled_shape(assigned):
    x, groups, dim = assigned
    offset = torch.randn(groups.count, dtype=torch.float64)
    one = add_offset(x, offset, groups, dim)
    assert torch.equal(one, add_offset(x, offset.expand(x.shape[0], -1), groups, dim))
    matrix = groups.matrix(dtype=torch.float64)
    spelled = (x.movedim(dim, -1) + matrix @ offset).movedim(-1, dim)
    torch.testing.assert_close(one, spelled)


def test_masked_positions_do_not_count():
    x = torch.randn(2, 6, 5, dtype=torch.float64)
    mask = torch.tensor([True, True, False, True, False])[None, None]
    for kind in KINDS:
        weights = torch.rand(6, dtype=torch.float64)
        expected = group_pool(x[..., mask[0, 0]], 3, kind, coefficients=weights)
        torch.testing.assert_close(group_pool(x, 3, kind, coefficients=weights, mask=mask), expected)


@pytest.mark.parametrize("groups", [3, Groups.interleaved(6, 3)])
def test_statistics_are_float32_whatever_the_map(groups):
    x = torch.randn(2, 6, 4, 4).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        pooled = group_pool(x, groups)
        centered = center(x, groups)
    assert pooled.dtype == torch.float32
    assert centered.dtype == torch.bfloat16
    torch.testing.assert_close(pooled, group_pool(x.float(), groups))
    torch.testing.assert_close(centered, center(x.float(), groups).bfloat16())


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: group_pool(torch.zeros(6), 3), "images on axis 0"),
        (lambda: group_pool(torch.zeros(2, 7), 3), "7 features do not divide"),
        (lambda: group_pool(torch.zeros(2, 6), 3, "median"), "mean, max, min or linear"),
        (lambda: group_pool(torch.zeros(2, 6), 3, "linear"), "needs coefficients"),
        (lambda: add_offset(torch.zeros(2, 6), torch.zeros(2), 3), "expected an offset"),
        (lambda: group_pool(torch.zeros(2, 5), Groups.interleaved(6, 3)), "expected 6 features"),
    ],
)
def test_bad_maps_get_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


# The projection


def constraint_error(weight, in_groups, out_groups):
    """`(Σ_taps W) G_m - G_n` for a convolution without groups of its own."""
    summed = weight.flatten(2).sum(2) if weight.dim() > 2 else weight
    wanted = out_groups.matrix(dtype=weight.dtype)
    return (summed @ in_groups.matrix(dtype=weight.dtype) - wanted).abs().max()


@st.composite
def pairs_of_groups(draw):
    count = draw(st.integers(1, 4))
    some = st.lists(st.integers(0, count - 1), max_size=6)
    make = st.permutations(list(range(count))).flatmap(lambda base: some.map(lambda more: Groups(base + more, count)))
    even = st.integers(1, 3).map(lambda k: Groups.even(k * count, count))
    return draw(st.one_of(make, even)), draw(st.one_of(make, even))


@pytest.mark.parametrize("kernel", [(), (3,), (3, 2), (1, 2, 2)])
@given(groups=pairs_of_groups())
def test_projection_is_orthogonal_idempotent_and_meets_the_constraint(kernel, groups):
    into, out = groups
    weight = torch.randn(out.features, into.features, *kernel, dtype=torch.float64)
    projected = project_weight(weight, into, out)
    assert constraint_error(projected, into, out) < 1e-12
    assert (project_weight(projected, into, out) - projected).abs().max() < 1e-14
    # Orthogonal: the way to the projection is perpendicular to every difference of two feasible weights.
    other = project_weight(torch.randn_like(weight), into, out)
    assert ((weight - projected) * (other - projected)).sum().abs() < 1e-10


@pytest.mark.parametrize("kernel", [(3, 3), (2,)])
@given(groups=pairs_of_groups())
def test_every_tap_can_meet_its_share(kernel, groups):
    into, out = groups
    weight = torch.randn(out.features, into.features, *kernel, dtype=torch.float64)
    projected = project_weight(weight, into, out, constraint="tap").flatten(2)
    for tap in projected.unbind(2):
        assert constraint_error(tap * projected.shape[2], into, out) < 1e-12


@pytest.mark.parametrize("conv_groups", [1, 2, 3, 6])
def test_grouped_and_depthwise_convolutions_meet_the_constraint(conv_groups):
    into = Groups.interleaved(12, 2) if conv_groups < 6 else Groups.even(12, 2)
    out = into
    weight = torch.randn(12, 12 // conv_groups, 3, dtype=torch.float64)
    projected = project_weight(weight, into, out, conv_groups=conv_groups)
    offset = torch.tensor([3.0, -7.0], dtype=torch.float64)
    x = torch.randn(2, 12, 9, dtype=torch.float64)
    moved = F.conv1d(add_offset(x, offset, into), projected, groups=conv_groups)
    torch.testing.assert_close(moved, add_offset(F.conv1d(x, projected, groups=conv_groups), offset, out))
    assert (project_weight(projected, into, out, conv_groups=conv_groups) - projected).abs().max() < 1e-14


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(4, 2, 1), (3, 2, 1), (3, 1, 1), (5, 3, 2), (2, 2, 1), (3, 2, 3)]
)
def test_each_phase_of_a_transposed_convolution_meets_the_constraint(kernel, stride, dilation):
    groups = Groups.interleaved(6, 3)
    weight = torch.randn(6, 6, kernel, kernel, dtype=torch.float64)
    options = {"transposed": True, "stride": (stride, stride), "dilation": (dilation, dilation)}
    projected = project_weight(weight, groups, groups, **options)
    assert (project_weight(projected, groups, groups, **options) - projected).abs().max() < 1e-14
    # Away from the border, where no tap is missing, a constant map stays constant.
    offset = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    x = add_offset(torch.zeros(1, 6, 12, 12, dtype=torch.float64), offset, groups)
    y = F.conv_transpose2d(x, projected, stride=stride, dilation=dilation)
    margin = dilation * kernel
    inside = y[..., margin:-margin, margin:-margin]
    torch.testing.assert_close(inside, add_offset(torch.zeros_like(inside), offset, groups))


def test_phases_without_taps_are_refused():
    with pytest.raises(ValueError, match=r"no tap reaches.*kernel of at least 3"):
        tap_phases((2,), 3, 1, "sum")
    with pytest.raises(ValueError, match="shares no factor"):
        tap_phases((4,), 2, 2, "sum")


def test_an_output_group_without_inputs_is_refused():
    with pytest.raises(ValueError, match="output feature 1 belongs to group 1, which has no input feature"):
        check_feasible(Groups([0, 0], 2), Groups([0, 1], 2))
    with pytest.raises(ValueError, match="among the 1 that its block"):
        check_feasible(Groups([0, 1], 2), Groups([1, 0], 2), conv_groups=2)
    with pytest.raises(ValueError, match="same number of groups"):
        project_weight(torch.zeros(4, 4), 2, 4)


def test_projection_keeps_precision_and_memory():
    weight = torch.randn(6, 6, 3, 3).bfloat16()
    assert project_weight(weight, 3, 3).dtype == torch.bfloat16
    last = torch.randn(6, 6, 3, 3).to(memory_format=torch.channels_last)
    torch.testing.assert_close(project_weight(last, 3, 3), project_weight(last.contiguous(), 3, 3))


@pytest.mark.parametrize(("kernel", "order"), [((3, 3), 1), ((3, 5), 2), ((2, 2), 1), ((4,), 1), ((1, 1), 2), ((), 1)])
@pytest.mark.parametrize("conv_groups", [1, 3])
def test_taps_get_the_nearest_weights_whose_moments_vanish(
    kernel: tuple[int, ...], order: int, conv_groups: int
) -> None:
    weight = torch.randn(6, 9 // conv_groups, *kernel, dtype=torch.float64)
    projected = project_weight(weight, 3, 3, conv_groups=conv_groups, moments=order)
    again = project_weight(projected, 3, 3, conv_groups=conv_groups, moments=order)
    assert torch.allclose(projected, again, atol=1e-12)
    # What a convolution makes of a polynomial in one group: the same polynomial, in that group's outputs.
    full = torch.zeros(6, 9, *kernel, dtype=torch.float64)
    for block in range(conv_groups):
        rows, columns = (slice(block * n // conv_groups, (block + 1) * n // conv_groups) for n in (6, 9))
        full[rows, columns] = projected[rows]
    for power in range(order + 1):
        for axis, size in enumerate(kernel):
            places = (torch.arange(size) - (size - 1) / 2).double().reshape(-1, *[1] * (len(kernel) - 1 - axis))
            taps = (full * places**power).flatten(2).sum(2) @ Groups.even(9, 3).matrix().double()
            wanted = Groups.even(6, 3).matrix().double() if power == 0 else torch.zeros(6, 3, dtype=torch.float64)
            assert torch.allclose(taps, wanted, atol=1e-10)


def test_moments_that_no_taps_have_are_refused() -> None:
    with pytest.raises(ValueError, match="2 x 2 has too few taps for moments of order 2"):
        project_weight(torch.randn(3, 3, 2, 2), 3, 3, moments=2)
    with pytest.raises(ValueError, match="transposed"):
        project_weight(torch.randn(3, 3, 2, 2), 3, 3, transposed=True, stride=2, moments=1)
