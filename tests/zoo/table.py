"""The networks that conversion is tried on, one row of the table in docs/convert.md each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from lightfast._convert import convert
from tests import zoo
from tests.zoo.convolutional import Bottleneck


@dataclass(frozen=True)
class Entry:
    """A network, how to build it small, and how to convert it."""

    name: str
    source: str
    build: Callable[[], nn.Module]
    size: int = 32
    options: dict[str, Any] = field(default_factory=dict)
    quick: bool = False


def _monai(name: str, *args: Any, **kwargs: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import monai.networks.nets as nets

        return getattr(nets, name)(*args, **kwargs)

    return build


def _transformers(name: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, name)(getattr(transformers, config)(**settings))

    return build


_TOKENS = {"hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32, "patch_size": 8}

NETWORKS = [
    Entry("ResNet, basic blocks", "torchvision style", zoo.ResNet, quick=True),
    Entry("ResNet, bottlenecks", "torchvision style", lambda: zoo.ResNet(Bottleneck)),
    Entry("VGG", "torchvision style", zoo.VGG),
    Entry("DenseNet", "torchvision style", zoo.DenseNet),
    Entry("MobileNetV2", "torchvision style", zoo.MobileNetV2),
    Entry("MobileNetV3", "torchvision style", zoo.MobileNetV3),
    Entry("EfficientNet", "torchvision style", zoo.EfficientNet, quick=True),
    Entry("ConvNeXt", "torchvision style", zoo.ConvNeXt),
    Entry("U-Net", "torchvision style", zoo.UNet, 16, quick=True),
    Entry("ViT", "torchvision style", zoo.ViT, 16, quick=True),
    Entry("UNet", "MONAI", _monai("UNet", 2, 3, 3, (8, 16, 32), (2, 2), num_res_units=1)),
    Entry("BasicUNet", "MONAI", _monai("BasicUNet", 2, 3, 3, (8, 8, 16, 16, 16, 8))),
    Entry("AttentionUnet", "MONAI", _monai("AttentionUnet", 2, 3, 3, (8, 16, 32), (2, 2))),
    Entry("SegResNet", "MONAI", _monai("SegResNet", 2, 8, 3, 3, blocks_down=(1, 1), blocks_up=(1,))),
    Entry("DynUNet", "MONAI", _monai("DynUNet", 2, 3, 3, (3, 3, 3), (1, 2, 2), (2, 2))),
    Entry("DenseNet", "MONAI", _monai("DenseNet", 2, 3, 10, init_features=12, growth_rate=6, block_config=(2, 2))),
    Entry(
        "ResNet",
        "MONAI",
        _monai("ResNet", "basic", [1] * 4, [8, 16, 16, 32], spatial_dims=2, n_input_channels=3, num_classes=10),
    ),
    Entry(
        "SEResNet50", "MONAI", _monai("SEResNet50", spatial_dims=2, in_channels=3, num_classes=10, layers=(1, 1, 1, 1))
    ),
    Entry(
        "EfficientNetBN",
        "MONAI",
        _monai("EfficientNetBN", "efficientnet-b0", False, spatial_dims=2, in_channels=3, num_classes=10),
    ),
    Entry("Regressor", "MONAI", _monai("Regressor", (3, 32, 32), (3,), (6, 12), (2, 2)), 32, {"output": "equivariant"}),
    Entry("VarAutoEncoder", "MONAI", _monai("VarAutoEncoder", 2, (3, 32, 32), 3, 6, (6, 12), (2, 2))),
    Entry(
        "ViTForImageClassification",
        "transformers",
        _transformers("ViTForImageClassification", "ViTConfig", num_hidden_layers=1, **_TOKENS),
    ),
    Entry("Dinov2Model", "transformers", _transformers("Dinov2Model", "Dinov2Config", num_hidden_layers=1, **_TOKENS)),
    Entry(
        "BeitForImageClassification",
        "transformers",
        _transformers("BeitForImageClassification", "BeitConfig", num_hidden_layers=1, **_TOKENS),
    ),
    Entry(
        "CLIPVisionModel",
        "transformers",
        _transformers("CLIPVisionModel", "CLIPVisionConfig", num_hidden_layers=1, **_TOKENS),
    ),
    Entry(
        "SwinForImageClassification",
        "transformers",
        _transformers(
            "SwinForImageClassification",
            "SwinConfig",
            image_size=32,
            patch_size=2,
            embed_dim=12,
            depths=[2, 1],
            num_heads=[2, 2],
            window_size=4,
        ),
    ),
    Entry(
        "SegformerForSemanticSegmentation",
        "transformers",
        _transformers(
            "SegformerForSemanticSegmentation",
            "SegformerConfig",
            num_encoder_blocks=2,
            hidden_sizes=[12, 24],
            depths=[1, 1],
            sr_ratios=[2, 1],
            patch_sizes=[7, 3],
            strides=[4, 2],
            num_attention_heads=[1, 2],
            mlp_ratios=[2, 2],
            decoder_hidden_size=24,
        ),
    ),
    Entry(
        "ResNetForImageClassification",
        "transformers",
        _transformers(
            "ResNetForImageClassification",
            "ResNetConfig",
            embedding_size=8,
            hidden_sizes=[8, 16],
            depths=[1, 1],
            layer_type="basic",
        ),
    ),
    Entry(
        "RegNetForImageClassification",
        "transformers",
        _transformers(
            "RegNetForImageClassification",
            "RegNetConfig",
            embedding_size=8,
            hidden_sizes=[12, 24],
            depths=[1, 1],
            groups_width=6,
        ),
    ),
    Entry(
        "ConvNextForImageClassification",
        "transformers",
        _transformers(
            "ConvNextForImageClassification", "ConvNextConfig", num_stages=2, hidden_sizes=[12, 24], depths=[1, 1]
        ),
    ),
    Entry(
        "MobileNetV2ForImageClassification",
        "transformers",
        _transformers("MobileNetV2ForImageClassification", "MobileNetV2Config", depth_multiplier=0.35),
    ),
    Entry(
        "PoolFormerForImageClassification",
        "transformers",
        _transformers(
            "PoolFormerForImageClassification", "PoolFormerConfig", depths=[1, 1, 1, 1], hidden_sizes=[12, 12, 24, 24]
        ),
    ),
    Entry(
        "ViTMAEForPreTraining",
        "transformers",
        _transformers(
            "ViTMAEForPreTraining",
            "ViTMAEConfig",
            num_hidden_layers=1,
            decoder_hidden_size=24,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=4,
            decoder_intermediate_size=48,
            **_TOKENS,
        ),
    ),
]

HEADER = "| network | from | converts | output | left plain, on centered maps |\n|---|---|---|---|---|"


def row(entry: Entry) -> tuple[str, nn.Module | None]:
    """The entry's line of the table, and its network if it converts."""
    torch.manual_seed(0)
    model = entry.build()
    try:
        net = convert(model, torch.zeros(2, 3, entry.size, entry.size), **entry.options)
    except ValueError as error:
        return f"| {entry.name} | {entry.source} | no: {str(error).splitlines()[0]} | | |", None
    report = net.conversion
    kinds = list(dict.fromkeys(output.response.kind for output in report.certificate.outputs))
    plain = sorted({change.before for change in report.kept})
    options = ", ".join(f"`{key}={value!r}`" for key, value in entry.options.items())
    return (
        f"| {entry.name} | {entry.source} | {f'yes, with {options}' if options else 'yes'} | {', '.join(kinds)} | "
        f"{', '.join(f'`{name}`' for name in plain)} |",
        net,
    )
