"""Networks with layer norm and attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.convolutional import StochasticDepth


class LayerNorm2d(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        x = F.layer_norm(input.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class CNBlock(nn.Module):
    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.layer_scale = nn.Parameter(torch.full((width, 1, 1), 0.1))
        self.stochastic_depth = StochasticDepth(drop)

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(self.norm(self.dwconv(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return x + self.stochastic_depth(self.layer_scale * y)


class ConvNeXt(nn.Module):
    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 4, 4), LayerNorm2d(width))
        self.stage1 = nn.Sequential(CNBlock(width, 0.0), CNBlock(width, 0.1))
        self.downsample = nn.Sequential(LayerNorm2d(width), nn.Conv2d(width, 2 * width, 2, 2))
        self.stage2 = nn.Sequential(CNBlock(2 * width, 0.1))
        self.classifier = nn.Sequential(LayerNorm2d(2 * width), nn.Flatten(1), nn.Linear(2 * width, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.downsample(self.stage1(self.stem(x))))
        return self.classifier(F.adaptive_avg_pool2d(x, 1))


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.self_attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))

    def forward(self, input: Tensor) -> Tensor:
        x = self.ln_1(input)
        x, _ = self.self_attention(x, x, x, need_weights=False)
        x = self.dropout(x) + input
        return x + self.mlp(self.ln_2(x))


class ViT(nn.Module):
    def __init__(self, image: int = 16, patch: int = 4, width: int = 32, depth: int = 2, classes: int = 10) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.pos_embedding = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.Sequential(*(EncoderBlock(width, 4) for _ in range(depth)))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        x = self.conv_proj(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1)
        x = self.dropout(x + self.pos_embedding)
        return self.head(self.ln(self.layers(x))[:, 0])
