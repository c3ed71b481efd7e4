"""Bad input gets a sentence that says what to do."""

import pytest
import torch
from torch import nn

import lightfast as lf
from lightfast import Groups


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: lf.nn.Conv2d(3, 16, 3), "16 features do not divide into 3 equal groups: use 15 or 18"),
        (lambda: lf.nn.Linear(4, 3), "4 features do not divide"),
        (lambda: lf.nn.BatchNorm2d(16), "16 features do not divide"),
        (lambda: lf.nn.LayerNorm(16), "16 features do not divide"),
        (lambda: lf.nn.MultiheadAttention(16, 4), "16 features do not divide"),
        (lambda: lf.nn.Conv2d(3, 6, 3, padding=1, padding_mode="zeros"), "pad an equivariant map with zeros"),
        (lambda: lf.nn.Conv2d(3, 6, 3, padding_mode="mirror"), "padding_mode is one of"),
        (lambda: lf.nn.Conv2d(3, 6, 3, constraint="each"), "sum of taps or for every tap"),
        (lambda: lf.nn.ConvTranspose2d(6, 6, 4, 2, 1, padding_mode="zeros"), "go on with zeros beyond its border"),
        (lambda: lf.nn.ConvTranspose2d(6, 6, 2, 3), "no tap reaches"),
        (lambda: lf.nn.ConvTranspose2d(6, 6, 2, padding_mode="reflect"), "one of"),
        (lambda: lf.nn.Conv2d(6, 6, 3, groups=6, offset_groups=(Groups.even(6, 3), Groups.interleaved(6, 3))), "among"),
        (lambda: lf.nn.Linear(2, 3, offset_groups=(Groups([0, 1], 3), 3)), "belongs to group 2, which has no input"),
        (lambda: lf.nn.AvgPool2d(3, padding=1), "count_include_pad=False"),
        (lambda: lf.nn.AvgPool1d(3, padding=1), "count_include_pad=False"),
        (lambda: lf.nn.AvgPool3d(2, divisor_override=3), "no average"),
        (lambda: lf.nn.AffineCombination([nn.Identity(), nn.Identity()], [1, 1]), "sum to 1, and .* sum to 2"),
        (lambda: lf.nn.AffineCombination([nn.Identity()], [0.5, 0.5]), "as many coefficients"),
        (lambda: lf.nn.ReLU(pool="median"), "mean, max, min or linear"),
        (lambda: lf.nn.ReLU(scope="batch"), "image or pixel"),
        (lambda: lf.nn.GroupPool("linear"), "num_features="),
        (lambda: lf.nn.Adapter(nn.Identity(), 3, out_groups=2), "same groups"),
    ],
)
def test_it_cannot_be_built(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


@pytest.mark.parametrize(
    ("layer", "x", "sentence"),
    [
        (lf.nn.Conv2d(6, 6, 3), torch.zeros(1, 9, 5, 5), "expected 6 features"),
        (lf.nn.Linear(6, 6), torch.zeros(1, 9), "expected 6 features"),
        (lf.nn.ReLU(), torch.zeros(1, 4), "4 features do not divide"),
        (lf.nn.ReLU(offset_groups=Groups([0, 1])), torch.zeros(1, 4), "expected 2 features"),
        (lf.nn.ReLU(), torch.zeros(3), "images on axis 0"),
        (lf.nn.PixelShuffle(2), torch.zeros(1, 6, 2, 2), "blocks of 4"),
        (lf.nn.Maxout(4), torch.zeros(1, 6), "blocks of 4"),
    ],
)
def test_it_cannot_take_the_map(layer, x, sentence):
    with pytest.raises(ValueError, match=sentence):
        layer(x)


def test_attention_is_self_attention():
    layer = lf.nn.MultiheadAttention(6, 3, batch_first=True)
    with pytest.raises(ValueError, match="self-attention"):
        layer(torch.zeros(1, 2, 6), torch.zeros(1, 3, 6))


def test_a_combination_that_does_not_sum_to_1_is_not_equivariant():
    x = torch.randn(2, 6)
    assert (
        lf.equivariance_error(lambda x: 0.5 * x + 0.5 * x.flip(0), x, offsets=torch.ones(3, dtype=torch.float64))
        < 1e-12
    )
    assert lf.equivariance_error(lambda x: x + x, x) > 0.1
