"""The public names, pinned; each with a docstring."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

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
    "LiftedMap",
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

MODULES = {
    "functional": "ConstraintKind PoolKind Scope add_offset center group_pool project_weight",
    "fields": "Cosines FieldSpec Polynomial RemoveField add_field field_map field_mean positions project_field "
    "remove_field",
    "color": "EPSILON ChannelNorm hsv_to_rgb linear_to_log linear_to_srgb log_to_linear srgb_to_linear",
    "light": "LIGHT_KINDS LightKind VaryingLight blobs_light gradient_light halves_light log_gradient_light "
    "random_illuminants relight shadow_light varying_light von_kries",
    "metrics": "PSNR RecoveryError ReproductionError Summary psnr recovery_error reproduction_error summary",
    "constancy": "CLASSICAL NeutralTask QuasiUnsupervised correct gray_edge gray_world max_rgb principal_color "
    "shades_of_gray white_patch",
    "models": "create names",
}


def test_the_top_level_names():
    assert sorted(lf.__all__) == sorted(TOP)


def test_the_layers():
    assert sorted(lf.nn.__all__) == sorted(LAYERS)


@pytest.mark.parametrize("module", MODULES)
def test_the_names_of_the_other_public_modules(module):
    assert sorted(getattr(lf, module).__all__) == sorted(MODULES[module].split())


def test_every_other_module_is_private():
    here = Path(lf.__file__).parent
    public = [
        path.relative_to(here).with_suffix("").as_posix()
        for path in here.rglob("*.py")
        if not any(part.startswith("_") for part in path.relative_to(here).with_suffix("").parts)
    ]
    packages = {path.parent.name for path in here.glob("*/__init__.py") if not path.parent.name.startswith("_")}
    assert set(public) | packages == {"cli", "nn", *MODULES}


def test_types_are_shipped():
    assert (Path(lf.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("module", ["", ".nn", *(f".{name}" for name in MODULES)])
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
        "extras = {'typer', 'rich', 'accelerate', 'safetensors', 'tensorboard', 'torchmetrics', 'PIL', 'matplotlib', "
        "'huggingface_hub', 'onnx', 'onnxscript', 'onnxruntime'}; "
        "print(sorted(extras & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
