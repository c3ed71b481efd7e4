"""The layers under the contract: how each is built on an assignment, what torch layer it replaces, what it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import lightfast as lf
from lightfast import Groups

Build = Callable[[Groups], nn.Module]


@dataclass(frozen=True)
class Case:
    name: str
    build: Build
    """The layer, for features assigned like this."""
    torch_layer: Build | None
    """The torch layer with the same state, or None where torch has none."""
    positions: tuple[int, ...] = (5, 4)
    dim: int = 1
    out_groups: Callable[[Groups], Groups] = lambda groups: groups
    same_when_centered: bool = False
    """Whether the layer is torch's on a map without group means."""

    def input(self, groups: Groups, dtype: torch.dtype = torch.float64, images: int = 3) -> torch.Tensor:
        shape = [images, *self.positions]
        shape.insert(self.dim if self.dim >= 0 else len(shape) + 1 + self.dim, groups.features)
        return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def double(groups: Groups) -> Groups:
    """Twice the features of each group, in the same order."""
    return groups.repeat(2)


def _linear(name: str, ours, theirs, positions, **options) -> Case:
    kernel = () if ours is lf.nn.Linear else (options.pop("kernel", 3),)
    out = options.pop("out", double)

    def build(groups: Groups) -> nn.Module:
        return ours(groups.features, out(groups).features, *kernel, **options, offset_groups=(groups, out(groups)))

    def plain(groups: Groups) -> nn.Module:
        given = {key: value for key, value in options.items() if key not in ("padding_mode", "constraint")}
        if callable(given.get("groups")):
            given["groups"] = given["groups"](groups)
        return theirs(groups.features, out(groups).features, *kernel, **given)

    return Case(name, build, plain, positions, -1 if ours is lf.nn.Linear else 1, out)


def _adapted(name: str, ours, theirs, arguments=lambda groups: (), positions=(5, 4), **options) -> Case:
    torch_options = {key: value for key, value in options.items() if key not in ("scope", "pool", "dim")}
    return Case(
        name,
        lambda groups: ours(*arguments(groups), **options, offset_groups=groups),
        lambda groups: theirs(*arguments(groups), **torch_options),
        positions,
        options.get("dim", -1 if ours is lf.nn.LayerNorm else 1),
        same_when_centered=options.get("pool", "mean") == "mean" and options.get("scope", "image") == "image",
    )


def _features(groups: Groups) -> tuple[int]:
    return (groups.features,)


class _Attention(nn.Module):
    """Attention as a map of one tensor."""

    def __init__(self, attention: nn.Module, **options) -> None:
        super().__init__()
        self.attention, self.options = attention, options

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False, **self.options)[0]


LINEAR = [
    _linear("Linear", lf.nn.Linear, nn.Linear, (4,)),
    _linear("Linear without positions", lf.nn.Linear, nn.Linear, (), bias=False),
    _linear("Conv1d", lf.nn.Conv1d, nn.Conv1d, (7,), padding=1),
    _linear("Conv2d", lf.nn.Conv2d, nn.Conv2d, (5, 4), padding=1),
    _linear("Conv2d strided", lf.nn.Conv2d, nn.Conv2d, (7, 6), stride=2, dilation=2, padding=2),
    _linear("Conv2d same", lf.nn.Conv2d, nn.Conv2d, (5, 4), padding="same", kernel=4),
    _linear("Conv2d reflect", lf.nn.Conv2d, nn.Conv2d, (5, 4), padding=1, padding_mode="reflect"),
    _linear("Conv2d circular", lf.nn.Conv2d, nn.Conv2d, (5, 4), padding=1, padding_mode="circular"),
    _linear("Conv2d mean", lf.nn.Conv2d, nn.Conv2d, (5, 4), padding=1, padding_mode="mean"),
    _linear("Conv2d tap", lf.nn.Conv2d, nn.Conv2d, (5, 4), padding=1, constraint="tap"),
    _linear("Conv2d unpadded zeros", lf.nn.Conv2d, nn.Conv2d, (5, 4), padding_mode="zeros"),
    _linear("Conv3d", lf.nn.Conv3d, nn.Conv3d, (3, 4, 3), padding=1),
    Case(
        "Conv2d depthwise",
        lambda g: lf.nn.Conv2d(
            g.features, 2 * g.features, 3, padding=1, groups=g.features, offset_groups=(g, double(g))
        ),
        lambda g: nn.Conv2d(g.features, 2 * g.features, 3, padding=1, groups=g.features),
        out_groups=double,
    ),
    _linear("ConvTranspose1d", lf.nn.ConvTranspose1d, nn.ConvTranspose1d, (5,), kernel=4, stride=2, padding=1),
    _linear("ConvTranspose2d", lf.nn.ConvTranspose2d, nn.ConvTranspose2d, (5, 4), kernel=4, stride=2, padding=1),
    _linear(
        "ConvTranspose2d output padding",
        lf.nn.ConvTranspose2d,
        nn.ConvTranspose2d,
        (3, 4),
        stride=2,
        padding=1,
        output_padding=1,
    ),
    _linear(
        "ConvTranspose2d mean",
        lf.nn.ConvTranspose2d,
        nn.ConvTranspose2d,
        (4, 3),
        kernel=5,
        stride=3,
        padding_mode="mean",
    ),
    _linear(
        "ConvTranspose2d kernel = stride",
        lf.nn.ConvTranspose2d,
        nn.ConvTranspose2d,
        (1, 1),
        kernel=4,
        stride=4,
        padding_mode="zeros",
    ),
    _linear("ConvTranspose2d tap", lf.nn.ConvTranspose2d, nn.ConvTranspose2d, (3, 3), dilation=2, constraint="tap"),
    _linear("ConvTranspose3d", lf.nn.ConvTranspose3d, nn.ConvTranspose3d, (2, 3, 2), stride=2),
]

ADAPTED = [
    _adapted("BatchNorm1d", lf.nn.BatchNorm1d, nn.BatchNorm1d, _features, ()),
    _adapted("BatchNorm1d over positions", lf.nn.BatchNorm1d, nn.BatchNorm1d, _features, (5,)),
    _adapted("BatchNorm2d", lf.nn.BatchNorm2d, nn.BatchNorm2d, _features),
    _adapted("BatchNorm2d pixel", lf.nn.BatchNorm2d, nn.BatchNorm2d, _features, scope="pixel"),
    _adapted("BatchNorm2d max", lf.nn.BatchNorm2d, nn.BatchNorm2d, _features, pool="max"),
    _adapted("BatchNorm3d", lf.nn.BatchNorm3d, nn.BatchNorm3d, _features, (2, 3, 2)),
    _adapted("LayerNorm", lf.nn.LayerNorm, nn.LayerNorm, _features, (4,)),
    Case(
        "LayerNorm over positions",
        lambda g: lf.nn.LayerNorm((g.features, 5, 4), offset_groups=g),
        lambda g: nn.LayerNorm((g.features, 5, 4)),
        same_when_centered=True,
    ),
    _adapted("GroupNorm", lf.nn.GroupNorm, nn.GroupNorm, lambda g: (1, g.features)),
    _adapted("InstanceNorm1d", lf.nn.InstanceNorm1d, nn.InstanceNorm1d, _features, (6,), affine=True),
    _adapted(
        "InstanceNorm2d", lf.nn.InstanceNorm2d, nn.InstanceNorm2d, _features, affine=True, track_running_stats=True
    ),
    _adapted("InstanceNorm3d", lf.nn.InstanceNorm3d, nn.InstanceNorm3d, _features, (2, 3, 2)),
    _adapted("ReLU", lf.nn.ReLU, nn.ReLU),
    _adapted("ReLU inplace", lf.nn.ReLU, nn.ReLU, inplace=True),
    _adapted("ReLU pixel", lf.nn.ReLU, nn.ReLU, scope="pixel"),
    _adapted("ReLU min", lf.nn.ReLU, nn.ReLU, pool="min"),
    _adapted("ReLU of tokens", lf.nn.ReLU, nn.ReLU, positions=(4,), dim=-1),
    _adapted("LeakyReLU", lf.nn.LeakyReLU, nn.LeakyReLU, lambda g: (0.2,)),
    _adapted("PReLU", lf.nn.PReLU, nn.PReLU, _features),
    _adapted("ELU", lf.nn.ELU, nn.ELU),
    _adapted("GELU", lf.nn.GELU, nn.GELU, approximate="tanh"),
    _adapted("SiLU", lf.nn.SiLU, nn.SiLU),
    _adapted("Tanh", lf.nn.Tanh, nn.Tanh),
    _adapted("Sigmoid", lf.nn.Sigmoid, nn.Sigmoid),
    _adapted("Hardswish", lf.nn.Hardswish, nn.Hardswish),
    _adapted("Dropout", lf.nn.Dropout, nn.Dropout),
    _adapted("Dropout1d", lf.nn.Dropout1d, nn.Dropout1d, positions=(4,)),
    _adapted("Dropout2d", lf.nn.Dropout2d, nn.Dropout2d),
    _adapted("Dropout3d", lf.nn.Dropout3d, nn.Dropout3d, positions=(2, 3, 2)),
]

COMPOSED = [
    Case("Maxout", lambda g: lf.nn.Maxout(2, double(g)), None, out_groups=lambda g: double(g).blocks(2)[1]),
    Case(
        "Adapter",
        lambda g: lf.nn.Adapter(
            nn.Conv2d(g.features, double(g).features, 3, padding=1), g, "max", "min", out_groups=double(g)
        ),
        None,
        out_groups=double,
    ),
    Case(
        "Adapter with learned pools",
        lambda g: lf.nn.Adapter(nn.Tanh(), g, lf.nn.GroupPool("linear", offset_groups=g), "mean"),
        None,
    ),
    Case("Residual", lambda g: lf.nn.Residual(lf.nn.GELU(offset_groups=g), offset_groups=g), None),
    Case(
        "Residual with shortcut",
        lambda g: lf.nn.Residual(
            lf.nn.Conv2d(g.features, g.features, 3, 2, 1, offset_groups=g),
            lf.nn.MaxPool2d(2, ceil_mode=True),
            g,
            scope="pixel",
        ),
        None,
    ),
    Case(
        "AffineCombination",
        lambda g: lf.nn.AffineCombination([lf.nn.ReLU(offset_groups=g), nn.Identity()], [1.5, -0.5]),
        None,
    ),
    *[
        Case(
            f"GroupPool {kind} {scope}",
            lambda g, kind=kind, scope=scope: lf.nn.GroupPool(kind, scope, offset_groups=g),
            None,
            out_groups=lambda g: Groups.even(g.count, g.count),
        )
        for kind in ("mean", "max", "min", "linear")
        for scope in ("image", "pixel")
    ],
    Case("MaxPool2d", lambda g: lf.nn.MaxPool2d(3, 2, 1), lambda g: nn.MaxPool2d(3, 2, 1)),
    Case(
        "AvgPool1d",
        lambda g: lf.nn.AvgPool1d(2, ceil_mode=True),
        lambda g: nn.AvgPool1d(2, ceil_mode=True),
        (5,),
        same_when_centered=True,
    ),
    Case(
        "AvgPool2d",
        lambda g: lf.nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        lambda g: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        same_when_centered=True,
    ),
    Case("AvgPool3d", lambda g: lf.nn.AvgPool3d(2), lambda g: nn.AvgPool3d(2), (2, 3, 2), same_when_centered=True),
    Case("AdaptiveAvgPool2d", lambda g: lf.nn.AdaptiveAvgPool2d(2), lambda g: nn.AdaptiveAvgPool2d(2)),
    Case("AdaptiveMaxPool2d", lambda g: lf.nn.AdaptiveMaxPool2d(2), lambda g: nn.AdaptiveMaxPool2d(2)),
    Case("Upsample nearest", lambda g: lf.nn.Upsample(scale_factor=2), lambda g: nn.Upsample(scale_factor=2)),
    Case(
        "Upsample bilinear",
        lambda g: lf.nn.Upsample(scale_factor=2, mode="bilinear"),
        lambda g: nn.Upsample(scale_factor=2, mode="bilinear"),
    ),
    Case(
        "PixelShuffle",
        lambda g: nn.Sequential(
            lf.nn.Conv2d(g.features, 4 * g.features, 1, offset_groups=(g, Groups.concat([g] * 4))),
            lf.nn.PixelShuffle(2, Groups.concat([g] * 4)),
        ),
        None,
        out_groups=lambda g: Groups.concat([g] * 4).blocks(4)[1],
    ),
    Case(
        "MultiheadAttention",
        lambda g: _Attention(lf.nn.MultiheadAttention(g.features, g.features, batch_first=True, offset_groups=g)),
        lambda g: _Attention(nn.MultiheadAttention(g.features, g.features, batch_first=True)),
        (4,),
        dim=-1,
        same_when_centered=True,
    ),
]

CASES = LINEAR + ADAPTED + COMPOSED
