"""The networks of libraries that are installed: how to build each, without pretrained weights, and what it takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

Build = Callable[[], tuple[nn.Module, Tensor]]
"""Makes a network, and an example of its input."""

_SMALL = (
    *("atto", "femto", "pico", "nano", "xxs", "xxtiny", "xs", "tiny", "t0", "t", "mini", "small", "lite"),
    *("s0", "b0", "s", "base", "b"),
)
"""What names call networks that are small for their family, the smallest first."""


_OTHER_INPUTS = ("Siglip2ForImageClassification", "VitMatteForImageMatting")
"""Networks whose pixel values are a list of patches and the places that they come from, or colors and a trimap."""

_SIZES = {"DepthProForDepthEstimation": 1536, "RfDetrForObjectDetection": 560}
"""Pixels of an image, where a network's settings name a size that it does not take."""

_TASKS = (
    *("IMAGE_CLASSIFICATION", "SEMANTIC_SEGMENTATION", "DEPTH_ESTIMATION", "IMAGE_TO_IMAGE", "IMAGE_MATTING"),
    *("OBJECT_DETECTION", "UNIVERSAL_SEGMENTATION", "MASKED_IMAGE_MODELING", "BACKBONE", "IMAGE"),
)
"""What networks of transformers do with an image and nothing else beside it; features alone come last."""


@dataclass(frozen=True)
class Network:
    """A network of a library.

    Args:
        family: networks of one kind: in timm and torchvision those of one file.
        build: makes it.
    """

    family: str
    build: Build


def networks(library: str) -> Mapping[str, Network]:
    """The networks of a library that is installed, by name.

    Args:
        library: one of `LIBRARIES`, or `package.module:name` of a mapping from names to functions that make a network
            and an example of its input.

    Raises:
        ValueError: for a library that is not known.
        ImportError: for one that is not installed.
    """
    if ":" in library:
        module, _, name = library.partition(":")
        builds: Mapping[str, Build] = getattr(import_module(module), name)
        return {name: Network(name, build) for name, build in builds.items()}
    if library not in LIBRARIES:
        raise ValueError(
            f"there is no list of the networks of {library!r}; there are {', '.join(LIBRARIES)}, or name a mapping of "
            "your own as package.module:name"
        )
    return LIBRARIES[library]()


def one_per_family(found: Mapping[str, Network]) -> list[str]:
    """The name of one network of each family, a small one as far as names tell.

    >>> build = lambda: (nn.Identity(), torch.zeros(1))
    >>> one_per_family({name: Network(name[:3], build) for name in ("vit_base", "vit_tiny", "vgg19", "vgg11")})
    ['vit_tiny', 'vgg11']
    """
    families: dict[str, list[str]] = {}
    for name, network in found.items():
        families.setdefault(network.family, []).append(name)
    return [min(names, key=_size_in_name) for names in families.values()]


def _size_in_name(name: str) -> tuple[bool, int, list[int], int, str]:
    words = re.split(r"[_\-]", name)
    ranks = [_SMALL.index(word) for word in words if word in _SMALL]
    numbers = [int(number) for number in re.findall(r"\d+", name)]
    # Networks that are there to be tested are not what people use.
    return "test" in words, min(ranks, default=len(_SMALL)), numbers, len(name), name


def _own() -> dict[str, Network]:
    from lightfast import models

    def builder(name: str) -> Build:
        return lambda: (models.create(name, offset_groups=None), torch.zeros(1, 3, 64, 64))

    return {name: Network(name, builder(name)) for name in ("resnet20", "resnet9", "cerberus", "cerberus-local")}


def _timm() -> dict[str, Network]:
    import timm  # pyright: ignore[reportMissingImports]

    def builder(name: str) -> Build:
        def build() -> tuple[nn.Module, Tensor]:
            model = timm.create_model(name, pretrained=False)
            return model, torch.zeros(1, *model.pretrained_cfg.get("input_size", (3, 224, 224)))

        return build

    modules = timm.list_modules()
    return {name: Network(module, builder(name)) for module in modules for name in timm.list_models(module=module)}


def _torchvision() -> dict[str, Network]:
    from torchvision import models  # pyright: ignore[reportMissingImports]

    def builder(name: str, family: str, kind: str) -> Build:
        def build() -> tuple[nn.Module, Tensor]:
            create = models.get_model_builder(name)
            if kind == "detection":
                # What comes after the features of the backbone depends on values: boxes that are kept or not.
                return create(weights=None, weights_backbone=None).backbone, torch.zeros(1, 3, 320, 320)
            options = {"weights_backbone": None} if kind == "segmentation" else {}
            if kind == "video":
                size = 112 if family == "video.resnet" else 224
                return create(weights=None), torch.zeros(1, 3, 16, size, size)
            size = 299 if name == "inception_v3" else 224
            return create(weights=None, **options), torch.zeros(1, 3, size, size)

        return build

    found = {}
    for name in models.list_models():
        family = models.get_model_builder(name).__module__.removeprefix("torchvision.models.")
        kind = family.partition(".")[0]
        if kind not in ("quantization", "optical_flow"):
            found[name] = Network(family, builder(name, family, kind))
    return found


def _transformers() -> dict[str, Network]:
    from transformers.models.auto import modeling_auto as auto

    def builder(config: Any, model: Any) -> Build:
        def build() -> tuple[nn.Module, Tensor]:
            dense = any(kind in model.__name__ for kind in ("Segmentation", "Depth", "Matting"))
            settings = config(**_transformers_settings(model.__name__, config, dense))
            whole = dense or hasattr(settings, "depths") or model.__name__.endswith("Backbone")
            if hasattr(settings, "num_hidden_layers") and not whole:
                # All layers are alike, and two show whether they convert. Backbones answer with what others make.
                settings.num_hidden_layers = 2
            size = _SIZES.get(model.__name__) or _image_size(settings)
            height, width = size if isinstance(size, list | tuple) else (size, size)
            return model(settings), torch.zeros(1, getattr(settings, "num_channels", 3), height, width)

        return build

    found: dict[str, Network] = {}
    seen = set()
    for task in _TASKS:
        of_task = getattr(auto, f"MODEL_FOR_{task}_MAPPING").items()
        if task in ("BACKBONE", "IMAGE"):
            of_task = [(config, models) for config, models in of_task if config not in seen]
        for config, models in of_task:
            seen.add(config)
            for model in models if isinstance(models, list | tuple) else [models]:
                name = getattr(model, "__name__", "")
                images = getattr(model, "main_input_name", None) == "pixel_values" and not hasattr(config, "num_frames")
                if images and name not in _OTHER_INPUTS:
                    found[name] = Network(name, builder(config, model))
    return found


def _transformers_settings(name: str, config: Any, dense: bool) -> dict[str, Any]:
    """What a network of transformers needs to be told: settings that have no default, or one that takes weights."""
    from transformers import AutoConfig

    if name.startswith("Sapiens2For"):
        return {"head_config": {"upsample_out_channels": [96, 96], "conv_out_channels": [96]}}
    if name == "LwDetrForObjectDetection":
        return {"projector_scale_factors": [1.0]}
    default = config()
    if getattr(getattr(default, "backbone_config", None), "model_type", "") == "timm_backbone":
        first = {"DetrForSegmentation": 1, "DeformableDetrForObjectDetection": 2}.get(name, 4)
        stages = [f"stage{number}" for number in range(first, 5)]
        return {"backbone_config": AutoConfig.for_model("resnet", out_features=stages)}
    if dense and hasattr(default, "out_indices"):
        # What says something of each pixel looks at layers in between.
        return {"out_indices": [3, 5, 7, 11]}
    return {}


def _image_size(settings: Any) -> Any:
    for part in (settings, getattr(settings, "backbone_config", None)):
        size = getattr(part, "image_size", None)
        if size:
            return size
    return 224


def _monai() -> dict[str, Network]:
    from monai.networks import nets

    plane: dict[str, Any] = {"spatial_dims": 2, "in_channels": 3}
    image: dict[str, Any] = {**plane, "out_channels": 3}
    stages: dict[str, Any] = {"channels": (8, 16, 32), "strides": (2, 2)}
    patches: dict[str, Any] = {**plane, "channels": 8, "num_layers_d": 2}
    pooled: dict[str, Any] = {"channels": (8, 16, 32), "strides": (2, 2, 2)}
    quantized = {"num_res_layers": 1, "channels": (16, 16), "num_res_channels": (16, 16)}
    sampled = {"downsample_parameters": ((2, 4, 1, 1),) * 2, "upsample_parameters": ((2, 4, 1, 1, 0),) * 2}
    latent = {"num_res_blocks": (1, 1), "channels": (16, 16), "attention_levels": (False, False)}
    settings: dict[str, dict[str, Any]] = {
        "AttentionUnet": {**image, **stages},
        "AutoEncoder": {**image, **pooled},
        "AutoencoderKL": {**image, **latent, "norm_num_groups": 8},
        "BasicUNet": image,
        "BasicUnetPlusPlus": image,
        "Classifier": {"in_shape": (3, 64, 64), "classes": 10, **stages},
        "Critic": {"in_shape": (3, 64, 64), **stages},
        "DenseNet121": {**plane, "out_channels": 10},
        "Discriminator": {"in_shape": (3, 64, 64), **stages},
        "DynUNet": {**image, "kernel_size": (3, 3, 3), "strides": (1, 2, 2), "upsample_kernel_size": (2, 2)},
        "EfficientNetBN": {**plane, "model_name": "efficientnet-b0", "pretrained": False, "num_classes": 10},
        "FlexibleUNet": {**image, "backbone": "efficientnet-b0"},
        "HighResNet": image,
        "HoVerNet": {"in_channels": 3, "out_classes": 3},
        "MedNeXt": {**image, "init_filters": 8},
        "MultiScalePatchDiscriminator": {**patches, "num_d": 2, "minimum_size_im": 64},
        "PatchDiscriminator": patches,
        "Quicknat": {"num_classes": 3, "num_channels": 3, "num_filters": 16},
        "Regressor": {"in_shape": (3, 64, 64), "out_shape": (3,), **stages},
        "ResNet": {
            **{"block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [8, 16, 16, 32]},
            **{"spatial_dims": 2, "n_input_channels": 3, "num_classes": 10},
        },
        "SEResNet50": {**plane, "num_classes": 10},
        "SEResNext50": {**plane, "num_classes": 10},
        "SegResNet": image,
        "SegResNetDS": {**image, "init_filters": 8},
        "SegResNetVAE": {**image, "input_image_size": (64, 64)},
        "SwinUNETR": image,
        "UNETR": {**image, "img_size": 64},
        "UNet": {**image, **stages},
        "VarAutoEncoder": {"spatial_dims": 2, "in_shape": (3, 64, 64), "out_channels": 3, "latent_size": 8, **pooled},
        "ViT": {**plane, "img_size": 64, "patch_size": 16, "classification": True},
        "ViTAutoEnc": {**image, "img_size": (64, 64), "patch_size": (16, 16)},
        "VQVAE": {**image, **quantized, **sampled},
    }

    def builder(name: str, own: dict[str, Any]) -> Build:
        size = 256 if name == "HoVerNet" else 64
        return lambda: (getattr(nets, name)(**own), torch.zeros(1, 3, size, size))

    return {name: Network(name, builder(name, own)) for name, own in settings.items()}


LIBRARIES: dict[str, Callable[[], dict[str, Network]]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
    "monai": _monai,
    "lightfast": _own,
}
