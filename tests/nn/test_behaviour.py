"""What single layers do beyond the contract that all of them share."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import lightfast as lf
from lightfast import Groups, assert_equivariant
from lightfast.functional import add_offset, group_pool


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from(["replicate", "circular", "mean", "reflect"]),
    st.integers(1, 2),
)
def test_convolutions_of_any_shape(kernel, stride, dilation, padding, mode, conv_groups):
    groups = Groups.interleaved(6, 3)
    layer = lf.nn.Conv2d(
        6, 6, kernel, stride, padding, dilation, conv_groups, padding_mode=mode, offset_groups=(groups, groups)
    )
    assert_equivariant(layer, torch.randn(2, 6, 8, 7), groups, offsets=100.0)


@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(0, 1),
    st.sampled_from(["replicate", "mean"]),
    st.tuples(st.integers(2, 4), st.integers(2, 4)),
)
def test_transposed_convolutions_of_any_shape_are_exact_everywhere(kernel, stride, padding, dilation, more, mode, size):
    arguments = (6, 6, kernel, stride, padding, min(more, max(stride, dilation) - 1), 1, True, dilation, mode)
    try:
        layer = lf.nn.ConvTranspose2d(*arguments)
    except ValueError as refusal:
        assert "no tap reaches" in str(refusal)
        return
    x = torch.randn(2, 6, *size)
    try:
        theirs = nn.ConvTranspose2d(*arguments[:-1])(x)
    except RuntimeError:
        return
    if theirs.numel() == 0:
        return
    assert layer(x).shape == theirs.shape
    assert_equivariant(layer, x, offsets=100.0)


def test_output_size_is_honoured():
    layer = lf.nn.ConvTranspose2d(6, 6, 3, 2, 1)
    assert layer(torch.zeros(1, 6, 4, 4), output_size=[8, 8]).shape[-2:] == (8, 8)


def test_one_pixel_to_four_by_four_keeps_its_pattern():
    x = torch.randn(2, 6, 1, 1)
    free = lf.nn.ConvTranspose2d(6, 6, 4, 4, padding_mode="zeros")
    assert_equivariant(free, x, offsets=100.0)
    assert free(x).std((2, 3)).min() > 1e-3
    repeated = lf.nn.ConvTranspose2d(6, 6, 4)
    assert_equivariant(repeated, x, offsets=100.0)
    assert repeated(x).std((2, 3)).max() < 1e-5


def test_unbatched_maps_go_through_convolutions():
    x = torch.randn(6, 5, 5)
    for layer in (lf.nn.Conv2d(6, 3, 3, padding=1, padding_mode="mean"), lf.nn.ConvTranspose2d(6, 3, 3)):
        torch.testing.assert_close(layer(x), layer(x[None])[0])


def test_mean_padding_is_padding_with_the_group_mean():
    layer = lf.nn.Conv2d(6, 6, 3, padding=1, padding_mode="mean").double()
    x = torch.randn(2, 6, 4, 4, dtype=torch.float64)
    framed = torch.zeros(2, 6, 6, 6, dtype=torch.float64)
    framed = add_offset(framed, group_pool(x, 3), 3)
    framed[..., 1:-1, 1:-1] = x
    torch.testing.assert_close(layer(x), F.conv2d(framed, layer.projected_weight(), layer.bias))


def test_relu_is_the_adapter_of_relu():
    x = torch.randn(2, 6, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(lf.nn.ReLU()(x), lf.nn.Adapter(nn.ReLU())(x))


def test_dropout_drops_to_the_group_mean_and_not_to_zero():
    x = torch.randn(2, 6, 5, 5) + 50
    y = lf.nn.Dropout(0.5)(x)
    fallen = torch.isclose(y, group_pool(x, 3).repeat_interleave(2, 1).expand_as(y))
    assert 0.3 < fallen.float().mean() < 0.7
    assert y.min() > 40
    layer = lf.nn.Dropout(0.5).eval()
    assert layer(x) is x


def test_learned_pooling_learns_and_stays_constrained():
    pool = lf.nn.GroupPool("linear", offset_groups=Groups.interleaved(6, 3))
    optimizer = torch.optim.SGD(pool.parameters(), lr=0.1)
    x = torch.randn(8, 6, 4)
    before = pool.weight.detach().clone()
    for _ in range(5):
        optimizer.zero_grad()
        pool(x).square().mean().backward()
        optimizer.step()
    assert not torch.allclose(before, pool.weight)
    assert_equivariant(pool, x, Groups.interleaved(6, 3), out_groups=Groups.even(3, 3))


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_ignores_hidden_tokens(batch_first):
    layer = lf.nn.MultiheadAttention(6, 2, batch_first=batch_first).double()
    tokens = torch.randn(3, 5, 6, dtype=torch.float64)
    hidden = torch.zeros(3, 5, dtype=torch.bool)
    hidden[:, 3:] = True
    other = tokens.clone()
    other[:, 3:] = 1000
    order = (lambda t: t) if batch_first else (lambda t: t.transpose(0, 1))
    first = order(layer(order(tokens), key_padding_mask=hidden)[0])
    second = order(layer(order(other), key_padding_mask=hidden)[0])
    torch.testing.assert_close(first[:, :3], second[:, :3])


def test_attention_follows_offsets_when_the_batch_is_second():
    layer = lf.nn.MultiheadAttention(6, 2)
    assert_equivariant(lambda x: layer.double()(x.transpose(0, 1))[0].transpose(0, 1), torch.randn(3, 5, 6), dim=2)


def test_pooling_over_the_image_or_at_each_pixel():
    x = torch.randn(2, 6, 4, 4, dtype=torch.float64)
    varying = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    moved = add_offset(x, varying, 3)
    pixel, image = lf.nn.ReLU(scope="pixel"), lf.nn.ReLU()
    torch.testing.assert_close(pixel(moved), add_offset(pixel(x), varying, 3))
    assert (image(moved) - add_offset(image(x), varying, 3)).abs().max() > 0.1


def test_the_signature_shows_torchs_arguments_and_ours():
    import inspect

    parameters = list(inspect.signature(lf.nn.BatchNorm2d).parameters)
    assert parameters[:3] == ["num_features", "eps", "momentum"]
    assert parameters[-4:] == ["offset_groups", "pool", "scope", "dim"]
