"""The public API, pinned: the names of every public module, and how functions and classes at the top are called.

A change here is a change for users: it belongs into the changelog.
"""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import lightfast as lf

PUBLIC = {
    "lightfast": """
        Balanced Certificate Classifier Conversion Estimator Filled Groups Inpainter Photo
        assert_equivariant attach_projection balance balance_series center_mask certify color constancy convert
        equivariance_error export fields fill functional fuse light load metrics models nn page pretrained project_
        save wrap
    """,
    "lightfast.nn": """
        Adapter AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d
        AdaptiveMaxPool3d AffineCombination AvgPool1d AvgPool2d AvgPool3d BatchNorm1d BatchNorm2d BatchNorm3d Conv1d
        Conv2d Conv3d ConvNormAct2d ConvTranspose1d ConvTranspose2d ConvTranspose3d ConvTransposeNormAct2d Dropout
        Dropout1d Dropout2d Dropout3d ELU Flatten GELU GroupDropout GroupFill GroupNorm GroupPool Hardswish Identity
        InstanceNorm1d InstanceNorm2d InstanceNorm3d LayerNorm LeakyReLU Lift LiftedMap Linear MaxPool1d MaxPool2d
        MaxPool3d Maxout MultiheadAttention PReLU PixelShuffle ReLU Residual Sequential SiLU Sigmoid SqueezeNormAct
        Tanh Upsample lower
    """,
    "lightfast.functional": """
        ConstraintKind PoolKind Scope add_offset center group_pool project_weight
    """,
    "lightfast.fields": """
        Cosines FieldSpec Polynomial RemoveField Ridge add_field field_map field_mean log_level positions project_field
        remove_field
    """,
    "lightfast.color": """
        ChannelNorm FromLog EPSILON SRGB_TO_XYZ hsv_to_rgb light_of_temperature linear_to_log linear_to_srgb
        log_to_linear srgb_to_linear srgb_to_log temperature_of_light
    """,
    "lightfast.light": """
        LIGHT_KINDS LightKind VaryingLight blobs_light gradient_light halves_light log_gradient_light
        random_illuminants relight shadow_light spectral_gains varying_light von_kries
    """,
    "lightfast.metrics": """
        PSNR RecoveryError ReproductionError Summary psnr recovery_error reproduction_error summary
    """,
    "lightfast.models": """
        create names
    """,
    "lightfast.constancy": """
        CLASSICAL LightPrior NeutralTask QuasiUnsupervised balance_gains correct gray_edge gray_world max_rgb
        principal_color pull_together shades_of_gray white_patch
    """,
}

SIGNATURES = {
    "assert_equivariant": "(f, x, offset_groups=3, *, tolerance=None, **options)",
    "attach_projection": "(optimizer, model, offset_groups=3, *, assignments=None, constraint='sum')",
    "balance": (
        "(picture, estimator='illuminant', *, strength=1.0, linear=False, prior='auto', temperature=None, tint=None, "
        "pick=None, reference=None, mixed=False)"
    ),
    "balance_series": ("(pictures, estimator='illuminant', *, strength=1.0, linear=False, prior='auto', times=None)"),
    "center_mask": "(overlap=7)",
    "certify": (
        "(model, example_inputs, offset_groups=3, *, kwargs=None, dim=1, out_groups=None, tolerance=1e-09, field=0)"
    ),
    "convert": (
        "(model, example_inputs, offset_groups=3, *, kwargs=None, keep=(), widths='multiple', "
        "weights='project', output='auto', padding_mode='replicate', scope='image', dim=1, offset_inputs=(0,), "
        "lifted=False, images=None)"
    ),
    "equivariance_error": (
        "(f, x, offset_groups=3, *, offsets=1.0, out_groups=None, expect='equivariant', dim=1, out_dim=None, "
        "dtype=torch.float64, seed=0)"
    ),
    "export": "(pipeline, path, *, opset=None, dynamic=True, size=None)",
    "fill": (
        "(picture, mask, inpainter='context-encoder-slim', *, blend=True, texture=True, linear=False, progress=None)"
    ),
    "fuse": "(model)",
    "load": "(name, *, revision=None, token=None, cache_dir=None, force_download=False, local_files_only=False)",
    "page": "(port=None, *, model=None, open_browser=True)",
    "pretrained": "(name)",
    "project_": "(model, offset_groups=3, *, assignments=None, constraint='sum')",
    "save": "(model, folder, example=None)",
    "wrap": "(model, offset_groups=3, output='invariant', *, pool='mean', out_groups=None, dim=1, field=0)",
    "Classifier": (
        "(model, classes, norm=None, *, color=None, offset_groups=None, scope='image', constrained=True, "
        "balance=None, fill=False, field=0, size=None)"
    ),
    "Estimator": (
        "(network='cerberus', *, offset_groups=3, color='log', size=64, softness=0.01, members=1, views=1, "
        "options=None, calibration=None)"
    ),
    "Inpainter": (
        "(network='context-encoder', *, offset_groups=3, color='log', softness=0.02, floor=True, "
        "constrained=True, field=0, options=None)"
    ),
    "Groups": "(assignment, count=None)",
    "Photo": "(pixels, kind='PNG', linear=False, alpha=None, orientation=1, kept=<factory>, note='')",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there_documented_and_pinned(module):
    namespace = importlib.import_module(module)
    assert namespace.__doc__
    assert sorted(namespace.__all__) == sorted(PUBLIC[module].split())
    for name in namespace.__all__:
        value = getattr(namespace, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__ and value.__doc__.strip(), f"{module}.{name} has no docstring"


def test_every_other_module_is_private():
    package = Path(lf.__file__).parent
    modules = {path.stem for path in (*package.glob("*.py"), *(each.parent for each in package.glob("*/__init__.py")))}
    public = {name for name in modules if not name.startswith("_")}
    assert public == {module.partition(".")[2] for module in PUBLIC if "." in module} | {"cli"}


def test_types_are_shipped():
    assert (Path(lf.__file__).parent / "py.typed").exists()


def called_with(value):
    """The arguments of a function or constructor with their defaults, without types."""
    signature = inspect.signature(value.__init__ if inspect.isclass(value) else value)
    arguments = [each.replace(annotation=each.empty) for each in signature.parameters.values() if each.name != "self"]
    return str(signature.replace(parameters=arguments, return_annotation=signature.empty))


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    assert called_with(getattr(lf, name)) == SIGNATURES[name]


def test_every_function_at_the_top_has_its_signature_pinned():
    assert {name for name in lf.__all__ if inspect.isfunction(getattr(lf, name))} <= set(SIGNATURES)


def test_the_core_needs_torch_numpy_and_safetensors_alone():
    program = (
        "import sys; import lightfast, lightfast.models; lightfast.load('illuminant'); "
        "extras = {'typer', 'rich', 'tensorboard', 'torchmetrics', 'PIL', 'matplotlib', 'imagecodecs', "
        "'tifffile', 'rawpy', 'huggingface_hub', 'onnx', 'onnxscript', 'onnxruntime'}; "
        "print(sorted(extras & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
