"""The public names, pinned; each with a docstring."""

import importlib
import inspect
import subprocess
import sys

import pytest

import lightfast as lf

TOP = [
    "Certificate",
    "Classifier",
    "Conversion",
    "Estimator",
    "Groups",
    "Inpainter",
    "assert_equivariant",
    "attach_projection",
    "certify",
    "color",
    "constancy",
    "convert",
    "equivariance_error",
    "fields",
    "functional",
    "fuse",
    "light",
    "metrics",
    "models",
    "nn",
    "pretrained",
    "project_",
    "wrap",
]
LAYERS = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "Adapter",
    "AffineCombination",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvNormAct2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "ConvTransposeNormAct2d",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "ELU",
    "Flatten",
    "GELU",
    "GroupDropout",
    "GroupFill",
    "GroupNorm",
    "GroupPool",
    "Hardswish",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LeakyReLU",
    "Lift",
    "Lifted",
    "Linear",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Maxout",
    "MultiheadAttention",
    "PReLU",
    "PixelShuffle",
    "ReLU",
    "Residual",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SqueezeNormAct",
    "Tanh",
    "Upsample",
    "lower",
]


def test_the_top_level_names():
    assert sorted(lf.__all__) == sorted(TOP)


def test_the_layers():
    assert sorted(lf.nn.__all__) == sorted(LAYERS)


@pytest.mark.parametrize("module", ["", ".nn", ".functional", ".fields", ".color", ".light", ".metrics", ".models"])
def test_every_public_name_is_there_and_documented(module):
    namespace = importlib.import_module(f"lightfast{module}")
    assert namespace.__doc__
    for name in namespace.__all__:
        value = getattr(namespace, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__ and value.__doc__.strip(), f"{namespace.__name__}.{name} has no docstring"


def test_the_core_needs_torch_and_numpy_alone():
    program = (
        "import sys; import lightfast, lightfast.models; "
        "extras = {'typer', 'rich', 'safetensors', 'tensorboard', 'torchmetrics', 'PIL', 'matplotlib', "
        "'huggingface_hub', 'onnx', 'onnxscript', 'onnxruntime'}; "
        "print(sorted(extras & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
