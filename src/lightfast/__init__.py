"""Lightfast: offset equivariant networks, whose output follows offsets of the input exactly, by construction."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lightfast._version import __version__ as __version__

if TYPE_CHECKING:
    from lightfast import color, constancy, fields, functional, light, metrics, models, nn
    from lightfast._certify import Certificate, certify
    from lightfast._convert import Conversion, convert
    from lightfast._equivariance import assert_equivariant, equivariance_error
    from lightfast._fuse import fuse
    from lightfast._groups import Groups
    from lightfast._page.app import page
    from lightfast._photographs.balance import Balanced, balance
    from lightfast._photographs.fill import Filled, fill
    from lightfast._photographs.photo import Photo
    from lightfast._photographs.series import balance_series
    from lightfast._pipelines.classifier import Classifier
    from lightfast._pipelines.estimator import Estimator
    from lightfast._pipelines.export import export
    from lightfast._pipelines.inpainter import Inpainter, center_mask
    from lightfast._pipelines.load import load, pretrained
    from lightfast._pipelines.network import save
    from lightfast._project import attach_projection, project_
    from lightfast._wrap import wrap

__all__ = [
    "Balanced",
    "Certificate",
    "Classifier",
    "Conversion",
    "Estimator",
    "Filled",
    "Groups",
    "Inpainter",
    "Photo",
    "assert_equivariant",
    "attach_projection",
    "balance",
    "balance_series",
    "center_mask",
    "certify",
    "color",
    "constancy",
    "convert",
    "equivariance_error",
    "export",
    "fields",
    "fill",
    "functional",
    "fuse",
    "light",
    "load",
    "metrics",
    "models",
    "nn",
    "page",
    "pretrained",
    "project_",
    "save",
    "wrap",
]

# Each name is imported when somebody asks for it: the command line answers `--help` without torch.
_HOMES = {
    "_certify": ("Certificate", "certify"),
    "_convert": ("Conversion", "convert"),
    "_equivariance": ("assert_equivariant", "equivariance_error"),
    "_fuse": ("fuse",),
    "_groups": ("Groups",),
    "_page.app": ("page",),
    "_photographs.balance": ("Balanced", "balance"),
    "_photographs.fill": ("Filled", "fill"),
    "_photographs.photo": ("Photo",),
    "_photographs.series": ("balance_series",),
    "_pipelines.classifier": ("Classifier",),
    "_pipelines.estimator": ("Estimator",),
    "_pipelines.export": ("export",),
    "_pipelines.inpainter": ("Inpainter", "center_mask"),
    "_pipelines.load": ("load", "pretrained"),
    "_pipelines.network": ("save",),
    "_project": ("attach_projection", "project_"),
    "_wrap": ("wrap",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _HOME_OF:
        return import_module(f"{__name__}.{name}")
    globals()[name] = found = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
