"""A small network for each kind that conversion once failed on, or could not constrain."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class WritesIntoParts(nn.Module):
    """Writes through views, batch norm and dropout among them, as rolled windows and ghost features do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Dropout(0.1)
        self.head = nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(F.relu(self.norm(self.conv(x))))
        y = x.clone()
        y[:, :, 1:].copy_(x[:, :, :-1])
        y[:, 0].add_(1.0)
        y[:, :, -1].fill_(0.0)
        y[:, :, :, 0].zero_()
        return self.head(x + y)


class WritesIntoItsOwnPart(nn.Module):
    """Dropout in place of a part that nobody else looks at, as before MViT's head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.drop, self.head = nn.Conv2d(3, 6, 4, 4), nn.Dropout(0.1, inplace=True), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(F.gelu(self.stem(x)).flatten(2).transpose(1, 2)[:, 0]))


class SumsOfParts(nn.Module):
    """Res2Net's pattern: a map is split, and each part is added to what was made of the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(F.relu(self.stem(x)), 4, 1)
        done = [parts[0]]
        for part, conv in zip(parts[1:], self.convs, strict=True):
            done.append(F.relu(conv(part + done[-1])))
        return self.head(torch.cat(done, 1).mean((2, 3)))


class SplitAttention(nn.Module):
    """Selective kernels: two branches are added with weights over branches that sum to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 5, padding=2)
        self.attend, self.last, self.head = nn.Conv2d(8, 16, 1), nn.Conv2d(8, 8, 1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.stack([self.one(x), self.two(x)], 1)
        weights = self.attend(x.sum(1).mean((2, 3), keepdim=True)).unflatten(1, (2, 8)).softmax(1)
        return self.head(self.last((x * weights).sum(1)).mean((2, 3)))


class Region(nn.Module):
    """Computes in a region of its own, without autocast or gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        with torch.no_grad():
            scale = x.relu().mean((2, 3), keepdim=True) + torch.ones(1)
        with torch.autocast("cpu", enabled=False):
            y = x.float() * x.sigmoid()
        return y + scale


class WritesItsType(nn.Module):
    """Makes a constant in the type of its weights, which `double()` changes after the network has been seen."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.embed = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(1, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.arange(x.shape[-1], dtype=torch.float32, device=x.device).to(self.embed.weight.dtype)
        rows = rows + torch.zeros(x.shape[-1])
        return self.conv(x) + self.embed(rows.sin().expand(1, 1, x.shape[-1], x.shape[-1]))


class Recurrent(nn.Module):
    """A recurrent layer over the columns, which draws nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.lstm, self.head = nn.Conv2d(3, 6, 4, 4), nn.LSTM(6, 6, batch_first=True), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head((x + self.lstm(x)[0]).mean(1))


class GatedBlocks(nn.Module):
    """Gated linear units, as in gMLP and MambaOut: a layer's features are split into a map and its gate."""

    def __init__(self, width: int = 12, depth: int = 3) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, width, 4, 4), nn.Linear(width, 5)
        self.into = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        for into, out in zip(self.into, self.out, strict=True):
            u, v = F.gelu(into(F.layer_norm(x, x.shape[-1:]))).chunk(2, -1)
            x = x + out(u * torch.sigmoid(v))
        return self.head(x.mean(1))


class PooledAttention(nn.Module):
    """Attention that changes the number of tokens and features, as LeViT's downsampling does, and layers after it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.q, self.kv = nn.Conv2d(3, 6, 2, 2), nn.Linear(6, 6), nn.Linear(6, 18)
        self.norm, self.proj = nn.BatchNorm1d(18), nn.Linear(12, 9)
        self.mlp = nn.Sequential(nn.Linear(9, 18), nn.Hardswish(), nn.Linear(18, 9))
        self.head = nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        kv = self.kv(x)
        kv = self.norm(kv.flatten(0, 1)).reshape_as(kv)
        k, v = kv.split([6, 12], -1)
        x = self.proj((self.q(x[:, ::4]) @ k.transpose(1, 2)).softmax(-1) @ v)
        return self.head((x + self.mlp(x)).mean(1))


class TwoHeads(nn.Module):
    """Class scores from two places, averaged, one of them the largest over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = nn.Conv2d(3, 6, 4, 4), nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = F.gelu(self.stem(x)).flatten(2).transpose(1, 2)
        return (self.one(tokens.mean(1)) + self.two(tokens).max(1)[0]) / 2


class NormalizedScores(nn.Module):
    """Class scores that no head makes: the last layer is a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.Flatten(), nn.Linear(24, 6), nn.LayerNorm(6), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Sequence1d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv1d(5, 10, 3, padding=1), nn.BatchNorm1d(10), nn.Conv1d(10, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(x))))


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up, self.head = nn.Conv3d(2, 4, 3, 2, 1), nn.ConvTranspose3d(4, 4, 2, 2), nn.Conv3d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.up(F.relu(self.conv(x)))))


class Named(nn.Module):
    """Takes a dictionary and a second input that does not move, and gives a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.embed, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(4, 6), nn.Linear(6, 5)

    def forward(self, inputs: dict[str, Tensor], *, camera: Tensor) -> dict[str, Tensor]:
        features = F.relu(self.conv(inputs["image"])) + self.embed(camera)[:, :, None, None]
        return {"scores": self.head(features.mean((2, 3))), "features": features}


class PadsToSame(nn.Module):
    """Pads as far as the size of the image asks for, and by less than nothing, as PNASNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, 6, 3, 2), nn.Conv2d(6, 6, 5, 2), nn.Linear(6, 5)
        self.path = nn.Sequential(nn.ZeroPad2d((-1, 1, -1, 1)), nn.AvgPool2d(1, 2), nn.Conv2d(6, 6, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(self.padded(x, 3)))
        y = F.max_pool2d(self.padded(x, 3, float("-inf")), 3, 2) + self.two(self.padded(x, 5)) + self.path(x)
        return self.head(F.relu(y).mean((2, 3)))

    @staticmethod
    def padded(x: Tensor, kernel: int, value: float = 0.0) -> Tensor:
        height, width = (max((-(size // -2) - 1) * 2 + kernel - size, 0) for size in x.shape[-2:])
        return F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2), value=value)


class SumsInItsType(nn.Module):
    """Averages in a type that it names, which is that of its weights until `double()` changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(x)).mean((2, 3), dtype=torch.float32))


class SeparateValues(nn.Module):
    """Attention with a layer each for queries, keys and values; its weights are gated and normalized again.

    Args:
        function: whether torch's own function does it.
    """

    def __init__(self, function: bool = False) -> None:
        super().__init__()
        self.function, self.stem = function, nn.Conv2d(3, 12, 2, 2)
        self.query, self.key, self.value, self.out = (nn.Linear(12, 12) for _ in range(4))
        self.dropout, self.gate, self.head = nn.Dropout(0.1), nn.Parameter(torch.zeros(2, 1, 1)), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        q, k, v = (layer(x).unflatten(2, (2, 6)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        if self.function:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)
        else:
            weights = self.gate.sigmoid() * (q @ k.transpose(2, 3)).softmax(-1) + 1e-3
            y = self.dropout(weights / weights.sum(-1, keepdim=True)) @ v
        return self.head((x + self.out(y.transpose(1, 2).flatten(2))).mean(1))


class JointKeysAndValues(nn.Module):
    """Queries from one layer, keys and values from another, as in the pyramid vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.query, self.both = nn.Conv2d(3, 8, 2, 2), nn.Linear(8, 8), nn.Linear(8, 16)
        self.out, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        n, tokens, _ = x.shape
        q = self.query(x).reshape(n, tokens, 2, 4).permute(0, 2, 1, 3)
        k, v = self.both(x).reshape(n, -1, 2, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, 8)
        return self.head((x + self.out(y)).mean(1))


class PooledValues(nn.Module):
    """Queries, keys and values from one layer, each pooled by a convolution over the image, as in MViT."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.qkv, self.out, self.head = (
            nn.Conv2d(3, 12, 2, 2),
            nn.Linear(12, 36),
            nn.Linear(12, 12),
            nn.Linear(12, 5),
        )
        self.pool_q, self.pool_k, self.pool_v = (nn.Conv2d(6, 6, 3, padding=1, groups=6) for _ in range(3))
        self.norm = nn.LayerNorm(6)

    def pooled(self, tokens: Tensor, layer: nn.Module) -> Tensor:
        y = layer(tokens.reshape(-1, 4, 4, 6).permute(0, 3, 1, 2))
        return y.reshape(-1, 2, 6, 16).transpose(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(x).reshape(-1, 16, 3, 2, 6).permute(2, 0, 3, 1, 4).unbind(0)
        q, k, v = self.pooled(q, self.pool_q), self.pooled(k, self.pool_k), self.norm(self.pooled(v, self.pool_v))
        y = (q @ k.transpose(2, 3)).softmax(-1) @ v
        return self.head((x + self.out(y.transpose(1, 2).reshape(-1, 16, 12))).mean(1))


class TokenMixing(nn.Module):
    """Layers along positions, as in MLP-Mixer: linear ones, or convolutions with tokens for channels."""

    def __init__(self, convolution: bool = False) -> None:
        super().__init__()
        self.convolution, self.stem, self.head = convolution, nn.Conv2d(3, 12, 2, 2), nn.Linear(12, 5)
        self.mix = (
            nn.Sequential(nn.Conv1d(16, 20, 1), nn.GELU(), nn.Conv1d(20, 16, 1))
            if convolution
            else nn.Sequential(nn.Linear(16, 20), nn.GELU(), nn.Linear(20, 16))
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = x + (self.mix(x) if self.convolution else self.mix(x.transpose(1, 2)).transpose(1, 2))
        return self.head(x.mean(1))


class Pyramid(nn.Module):
    """The features that detectors work on: maps of one width at several sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(6, 12, 3, 2, 1)
        self.inner = nn.ModuleList([nn.Conv2d(6, 9, 1), nn.Conv2d(12, 9, 1)])
        self.layers = nn.ModuleList(nn.Conv2d(9, 9, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        one = F.relu(self.one(x))
        top = self.inner[1](F.relu(self.two(one)))
        low = self.inner[0](one) + F.interpolate(top, size=one.shape[-2:], mode="nearest")
        return {"0": self.layers[0](low), "1": self.layers[1](top), "pool": F.max_pool2d(top, 1, 2, 0)}


class TwoPictures(nn.Module):
    """Compares two pictures under one light, and does not look at the third, which is a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.join, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(12, 6, 1), nn.Conv2d(6, 3, 1)

    def forward(self, one: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        features = torch.cat([self.stem(one), F.relu(self.stem(other))], 1)
        return self.head(F.relu(self.join(features)) * mask)


class SlowToFollow(nn.Module):
    """Takes long once sizes are symbols, as torch does where it has to reason about many of them."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.conv, self.head = seconds, nn.Conv2d(3, 6, 1), nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        end = time.process_time() + (self.seconds if isinstance(x.shape[2], torch.SymInt) else 0)
        while time.process_time() < end:
            pass
        y = self.conv(x).reshape(x.shape[0], 6, x.shape[2] * x.shape[3]).relu()
        return self.head(y.reshape(x.shape[0], 6, x.shape[2], x.shape[3]))


class KeepsTensors(nn.Module):
    """Keeps a tensor from the first call on, as ConViT does its relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rows = nn.Conv2d(3, 6, 3, padding=1), None

    def forward(self, x: Tensor) -> Tensor:
        if self.rows is None or self.rows.shape[0] != x.shape[-1]:
            self.rows = torch.zeros(x.shape[-1])
            self.rows[1:] = torch.arange(1, x.shape[-1]).sin()
        return self.conv(x) + self.rows.reshape(1, 1, 1, -1)


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.squeeze, self.excite = nn.Conv2d(3, 12, 3), nn.Conv2d(12, 6, 1), nn.Conv2d(6, 12, 1)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        gate = self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))).sigmoid()
        return self.head((x * gate).mean((2, 3)))


class StandardizedConv(nn.Conv2d):
    """A convolution whose weight is standardized, as in Big Transfer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 1)

    def forward(self, input: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True, momentum=0.0).reshape_as(self.weight)
        return F.conv2d(input, weight, self.bias)


class WritesDepthOut(nn.Module):
    """Stochastic depth in the forward of a block with layers, as in MONAI's EfficientNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.block(x)
        if self.training:
            drawn = torch.rand([x.shape[0], 1, 1, 1], dtype=x.dtype, device=x.device)
            drawn += 0.75
            y = y / 0.75 * torch.floor(drawn)
        return self.head((x + y).mean((2, 3)))


class Does(nn.Module):
    """A convolution, and what a function does to its map."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 6, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.conv(x))
