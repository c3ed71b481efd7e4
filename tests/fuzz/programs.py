"""Operations that are put together at random, so that what is proved of them can be measured."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightfast._groups import Groups
from lightfast.fields import add_field, project_field, remove_field
from lightfast.functional import add_offset, center, group_pool

GROUPS = Groups([0, 1, 2, 0, 2, 2])
SHAPE = (2, 6, 4, 4)

Operation = Callable[..., Tensor]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _write(x: Tensor, y: Tensor) -> Tensor:
    out = x.clone()
    out[:, :2] = y[:, 2:4]
    return out


def _add_in_place(x: Tensor, y: Tensor) -> Tensor:
    out = x.clone()
    view = out[:, 1]
    view += y[:, 0]
    return out


def _swap(x: Tensor) -> Tensor:
    return x[torch.tensor([1, 0])]


# Constants of the operations, by shape. Made here, since a number drawn in a program is no constant of it.
W = {
    shape: noise(*shape)
    for shape in [(6,), (2, 2), (4, 4), (6, 6), (6, 1, 1), (6, 4, 4), (6, 3, 1, 1), (6, 6, 2, 2), (6, 6, 3, 3)]
}

# Every operation takes maps of SHAPE and gives one, so that programs can be put together at random.
ONE: dict[str, Operation] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "square": lambda x: x**2,
    "abs": torch.abs,
    "exp": lambda x: (0.1 * x).exp(),
    "round": torch.round,
    "to_int": lambda x: x.to(torch.int64).to(x.dtype),
    "to_float32": lambda x: x.to(torch.float32).to(x.dtype) * 1.0 if x.dtype == torch.float32 else x,
    "center": lambda x: center(x, GROUPS),
    "center_max": lambda x: center(x, GROUPS, "max"),
    "remove_plane": lambda x: remove_field(x, GROUPS, 1)[0],
    "remove_quadratic": lambda x: remove_field(x, GROUPS, 2)[0],
    "relu_without_plane": lambda x: add_field(
        remove_field(x, GROUPS, 1)[0].relu(), project_field(x, GROUPS, 1), GROUPS, 1
    ),
    "center_pixel": lambda x: center(x, GROUPS, scope="pixel"),
    "relu_centered": lambda x: F.relu(center(x, GROUPS)),
    "adapter": lambda x: add_offset(torch.sin(center(x, GROUPS)), group_pool(x, GROUPS), GROUPS),
    "own_mean": lambda x: x - x.mean((2, 3), keepdim=True),
    "batch_mean": lambda x: x - x.mean(0, keepdim=True),
    "feature_mean": lambda x: x - x.mean(1, keepdim=True),
    "swap_images": _swap,
    "flip_features": lambda x: x.flip(1),
    "flip_images": lambda x: x.flip(0),
    "permute_features": lambda x: x[:, torch.tensor([3, 4, 1, 0, 2, 5])],
    "transpose": lambda x: x.transpose(2, 3),
    "roll": lambda x: x.roll(1, 1),
    "roll_pixels": lambda x: x.roll((1, 2), (2, 3)),
    "reshape_interleave": lambda x: x.reshape(2, 2, 3, 4, 4).transpose(1, 2).reshape(SHAPE),
    "reshape_across_images": lambda x: x.reshape(6, 2, 4, 4).transpose(0, 1).reshape(SHAPE),
    "features_to_pixels": lambda x: x.permute(0, 2, 3, 1).reshape(SHAPE),
    "shuffle": lambda x: F.pixel_unshuffle(F.pixel_shuffle(x.repeat(1, 2, 1, 1), 2), 2)[:, :6],
    "channel_shuffle": lambda x: F.channel_shuffle(x, 3),
    "scale": lambda x: 0.5 * x,
    "scale_features": lambda x: x * W[6, 1, 1],
    "divide": lambda x: x / 3.0,
    "negate": lambda x: -x,
    "shift": lambda x: x + W[6, 4, 4],
    "reverse": lambda x: 1.0 - x,
    "conv": lambda x: F.conv2d(F.pad(x, [1, 1, 1, 1], mode="replicate"), W[6, 6, 3, 3]),
    "conv_groups": lambda x: F.conv2d(x, W[6, 3, 1, 1], groups=2),
    "conv_zero_padded": lambda x: F.conv2d(x, W[6, 6, 3, 3], padding=1),
    "conv_transposed": lambda x: F.conv_transpose2d(x, W[6, 6, 2, 2], stride=2)[:, :, ::2, 1::2],
    "conv_transposed_border": lambda x: F.conv_transpose2d(x, W[6, 6, 3, 3], padding=1),
    "linear_pixels": lambda x: F.linear(x, W[4, 4]),
    "matmul": lambda x: (W[6, 6] @ x.flatten(2)).reshape(SHAPE),
    "matmul_images": lambda x: (W[2, 2] @ x.flatten(1)).reshape(SHAPE),
    "einsum": lambda x: torch.einsum("nchw,dc->ndhw", x, W[6, 6]),
    "own_product": lambda x: torch.einsum("nchw,ndhw->ncd", x, x).mean((1, 2)).reshape(2, 1, 1, 1) + 0 * x,
    "max_pool": lambda x: F.max_pool2d(x, 3, 1, 1),
    "max_features": lambda x: x.amax(1, keepdim=True).expand(SHAPE),
    "max_pixels": lambda x: x.flatten(2).max(2).values[..., None, None].expand(SHAPE),
    "min_images": lambda x: x.amin(0, keepdim=True).expand(SHAPE),
    "sort_pixels": lambda x: x.sort(3).values,
    "sort_features": lambda x: x.sort(1).values,
    "topk": lambda x: x.topk(4, dim=2).values,
    # Along an axis that was expanded, the median of torch 2.13 reads memory that holds nothing.
    "median": lambda x: x.contiguous().median(3, keepdim=True).values.expand(SHAPE),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "avg_pool_zeros": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "avg_pool_ceil": lambda x: F.interpolate(F.avg_pool2d(x, 3, 2, ceil_mode=True), size=(4, 4)),
    "adaptive": lambda x: F.interpolate(F.adaptive_avg_pool2d(x, 3), size=(4, 4), mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, size=(4, 4), mode="bicubic", align_corners=True),
    "pad_replicate": lambda x: F.pad(x, [1, 0, 0, 1], mode="replicate")[:, :, 1:, :4],
    "pad_reflect": lambda x: F.pad(x, [1, 0, 0, 1], mode="reflect")[:, :, 1:, :4],
    "pad_circular": lambda x: F.pad(x, [1, 0, 0, 1], mode="circular")[:, :, 1:, :4],
    "pad_zeros": lambda x: F.pad(x, [1, 0, 0, 0])[..., :4],
    "pad_features": lambda x: F.pad(x, [0, 0, 0, 0, 1, 0])[:, :6],
    "softmax_features": lambda x: x.softmax(1),
    "softmax_pixels": lambda x: x.softmax(3),
    "log_softmax": lambda x: x.log_softmax(2),
    "logsumexp": lambda x: x.logsumexp((2, 3), keepdim=True).expand(SHAPE),
    "logsumexp_features": lambda x: x.logsumexp(1, keepdim=True).expand(SHAPE),
    "variance": lambda x: x.var((2, 3), keepdim=True).expand(SHAPE),
    "variance_features": lambda x: x.var(1, keepdim=True).expand(SHAPE),
    "layer_norm": lambda x: F.layer_norm(x, [4, 4]),
    "layer_norm_features": lambda x: F.layer_norm(x, [6, 4, 4]),
    "group_norm": lambda x: F.group_norm(x, 6),
    "group_norm_wide": lambda x: F.group_norm(x, 2),
    "instance_norm": F.instance_norm,
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "batch_norm_running": lambda x: F.batch_norm(
        x, torch.zeros(6, dtype=x.dtype), torch.ones(6, dtype=x.dtype) * 2, W[(6,)]
    ),
    "compare": lambda x: (x > x.mean((2, 3), keepdim=True)).to(x.dtype),
    "compare_zero": lambda x: (x > 0).to(x.dtype),
    "argmax_pixels": lambda x: x.flatten(2).argmax(2).to(x.dtype)[..., None, None].expand(SHAPE),
    "argmax_features": lambda x: x.argmax(1, keepdim=True).to(x.dtype).expand(SHAPE),
    "clamp": lambda x: x.clamp(-1, 1),
    "cumsum": lambda x: x.cumsum(1),
    "mask": lambda x: x.masked_fill(W[4, 4] > 0, 0.0),
    "tril": lambda x: x.tril(),
    "gather_by_value": lambda x: x.gather(3, center(x, GROUPS).argsort(3)),
    "gather_features_by_value": lambda x: x.gather(1, center(x, GROUPS).argsort(1)),
    "scatter_max": lambda x: torch.zeros_like(x).scatter_reduce(
        1, GROUPS.index().reshape(1, -1, 1, 1).expand(SHAPE), x, "amax", include_self=False
    ),
    "scatter_max_wrong": lambda x: torch.zeros_like(x).scatter_reduce(
        1, torch.tensor([0, 0, 1, 1, 2, 2]).reshape(1, -1, 1, 1).expand(SHAPE), x, "amax", include_self=False
    ),
    "unfold": lambda x: x.unfold(2, 2, 2).flatten(3).reshape(SHAPE),
    "one_image": lambda x: x[:1].expand(SHAPE),
}
TWO: dict[str, Operation] = {
    "add": torch.add,
    "sub": torch.sub,
    "affine": lambda x, y: 1.5 * x - 0.5 * y,
    "sub_alpha": lambda x, y: torch.sub(x, y, alpha=0.5),
    "mul": torch.mul,
    "gate": lambda x, y: x * torch.sigmoid(center(y, GROUPS)),
    "div": lambda x, y: x / (1 + y.abs()),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where_constant": lambda x, y: torch.where(W[6, 1, 1] > 0, x, y),
    "where_centered": lambda x, y: torch.where(center(x, GROUPS) > 0, x, y),
    "where_value": lambda x, y: torch.where(x > 0, x, y),
    "less": lambda x, y: (x < y).to(x.dtype),
    "cat": lambda x, y: torch.cat([x[:, :3], y[:, 3:]], 1),
    "cat_pixels": lambda x, y: torch.cat([x[..., :2], y[..., 2:]], 3),
    "stack": lambda x, y: torch.stack([x, y], 1).mean(1),
    "write": _write,
    "add_in_place": _add_in_place,
    "bmm": lambda x, y: torch.bmm(x.flatten(0, 1), y.flatten(0, 1)).reshape(SHAPE),
    "attention": lambda x, y: (
        F.scaled_dot_product_attention(*[v.flatten(2).transpose(1, 2) for v in (x, x, y)])
        .transpose(1, 2)
        .reshape(SHAPE)
    ),
    "attention_centered": lambda x, y: (
        torch.softmax(center(x, GROUPS).flatten(2).transpose(1, 2) @ center(y, GROUPS).flatten(2), -1)
        .mean(1)[:, :6, None, None]
        .expand(SHAPE)
        + x
    ),
}


class Program(nn.Module):
    """Operations one after another, each on values that there are already; returns them all."""

    def __init__(self, lines: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.lines = lines

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values = [x]
        for name, first, second in self.lines:
            a, b = values[first % len(values)], values[second % len(values)]
            values.append(ONE[name](a) if name in ONE else TWO[name](a, b))
        return tuple(value + 0 for value in values[1:])
