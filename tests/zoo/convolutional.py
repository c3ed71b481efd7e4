"""Convolutional networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, into: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or into != width:
            self.downsample = nn.Sequential(nn.Conv2d(into, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, into: int, width: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        out = width * self.expansion
        self.conv1 = nn.Conv2d(into, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or into != out:
            self.downsample = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck] = BasicBlock,
        layers: Sequence[int] = (1, 1),
        base: int = 16,
        classes: int = 10,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, base, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(base)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        into = base
        for index, count in enumerate(layers):
            blocks = []
            for number in range(count):
                width = base * 2**index
                blocks.append(block(into, width, 2 if index and not number else 1))
                into = width * block.expansion
            self.add_module(f"layer{index + 1}", nn.Sequential(*blocks))
        self.stages = len(layers)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(into, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for index in range(self.stages):
            x = self.get_submodule(f"layer{index + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class VGG(nn.Module):
    def __init__(self, plan: Sequence[int | str] = (8, "M", 16, 16, "M"), classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        into = 3
        for entry in plan:
            if isinstance(entry, str):
                layers.append(nn.MaxPool2d(2, 2))
            else:
                layers += [nn.Conv2d(into, entry, 3, padding=1), nn.ReLU(inplace=True)]
                into = entry
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(into * 4, 32),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(32, 32),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(32, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class DenseLayer(nn.Module):
    def __init__(self, into: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(into), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(into, 4 * growth, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        bottleneck = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        return F.dropout(self.conv2(self.relu2(self.norm2(bottleneck))), 0.1, self.training)


class DenseNet(nn.Module):
    def __init__(self, layers: int = 3, growth: int = 8, base: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, base, 3, padding=1, bias=False)
        self.layers = nn.ModuleList(DenseLayer(base + growth * i, growth) for i in range(layers))
        width = base + growth * layers
        self.norm = nn.BatchNorm2d(width)
        self.transition = nn.Sequential(nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2))
        self.classifier = nn.Linear(width // 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(features))
        x = self.transition(F.relu(self.norm(torch.cat(features, 1)), inplace=True))
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


class InvertedResidual(nn.Module):
    def __init__(self, into: int, out: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = into * expand
        self.shortcut = stride == 1 and into == out
        self.conv = nn.Sequential(
            nn.Conv2d(into, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU6(inplace=True),
            InvertedResidual(8, 16, 2, 2),
            InvertedResidual(16, 16, 1, 3),
            nn.Conv2d(16, 32, 1),
            nn.ReLU6(True),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(32, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean([2, 3]))


class SqueezeExcitation(nn.Module):
    def __init__(self, width: int, squeeze: int, gate: type[nn.Module]) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(width, squeeze, 1), nn.Conv2d(squeeze, width, 1)
        self.activation, self.scale_activation = nn.ReLU(), gate()

    def forward(self, x: Tensor) -> Tensor:
        return self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x))))) * x


class MBConv(nn.Module):
    def __init__(
        self, into: int, out: int, stride: int, act: type[nn.Module], gate: type[nn.Module], drop: float
    ) -> None:
        super().__init__()
        hidden = 3 * into
        self.shortcut = stride == 1 and into == out
        self.expand = nn.Sequential(nn.Conv2d(into, hidden, 1, bias=False), nn.BatchNorm2d(hidden), act())
        self.depthwise = nn.Sequential(
            nn.Conv2d(hidden, hidden, 5, stride, 2, groups=hidden, bias=False), nn.BatchNorm2d(hidden), act()
        )
        self.se = SqueezeExcitation(hidden, max(4, hidden // 4), gate)
        self.project = nn.Sequential(nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out))
        self.stochastic_depth = StochasticDepth(drop)

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.se(self.depthwise(self.expand(x))))
        return self.stochastic_depth(out) + x if self.shortcut else out


class StochasticDepth(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        noise = torch.empty([x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        return x * noise.bernoulli_(1 - self.p).div_(1 - self.p)


class MobileNetV3(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.Hardswish(),
            MBConv(8, 16, 2, nn.Hardswish, nn.Hardsigmoid, 0.0),
            MBConv(16, 16, 1, nn.ReLU, nn.Hardsigmoid, 0.0),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Linear(16, 32), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(32, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class EfficientNet(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.SiLU(),
            MBConv(8, 16, 2, nn.SiLU, nn.Sigmoid, 0.1),
            MBConv(16, 16, 1, nn.SiLU, nn.Sigmoid, 0.2),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


class DoubleConv(nn.Sequential):
    def __init__(self, into: int, out: int) -> None:
        super().__init__(
            nn.Conv2d(into, out, 3, padding=1),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, padding=1),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, base: int = 8, out: int = 3, transposed: bool = True) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = (
            DoubleConv(3, base),
            DoubleConv(base, 2 * base),
            DoubleConv(2 * base, 4 * base),
        )
        self.up2, self.up1 = (
            nn.ConvTranspose2d(width * 2, width, 2, 2)
            if transposed
            else nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(width * 2, width, 1))
            for width in (2 * base, base)
        )
        self.conv2, self.conv1 = DoubleConv(4 * base, 2 * base), DoubleConv(2 * base, base)
        self.head = nn.Conv2d(base, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.bottom(F.max_pool2d(two, 2))
        x = self.conv2(torch.cat([two, self.up2(x)], dim=1))
        x = self.conv1(torch.cat([one, self.up1(x)], dim=1))
        return self.head(x)
