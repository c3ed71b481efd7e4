"""Lightfast: offset equivariant networks, whose output follows offsets of the input exactly, by construction."""

from lightfast import color, constancy, fields, functional, light, metrics, models, nn
from lightfast._certify import Certificate, certify
from lightfast._convert import Conversion, convert
from lightfast._equivariance import assert_equivariant, equivariance_error
from lightfast._fuse import fuse
from lightfast._groups import Groups
from lightfast._photographs.balance import Balanced, balance
from lightfast._photographs.fill import Filled, fill
from lightfast._photographs.photo import Photo
from lightfast._pipelines.classifier import Classifier
from lightfast._pipelines.estimator import Estimator
from lightfast._pipelines.export import export
from lightfast._pipelines.inpainter import Inpainter, center_mask
from lightfast._pipelines.light_map import LightMap
from lightfast._pipelines.load import load, pretrained
from lightfast._project import attach_projection, project_
from lightfast._version import __version__ as __version__
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
    "LightMap",
    "Photo",
    "assert_equivariant",
    "attach_projection",
    "balance",
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
    "pretrained",
    "project_",
    "wrap",
]
