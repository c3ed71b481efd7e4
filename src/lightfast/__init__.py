"""Lightfast: offset equivariant networks, whose output follows offsets of the input exactly, by construction."""

from lightfast import color, constancy, fields, functional, light, metrics, models, nn
from lightfast._certify import Certificate, certify
from lightfast._convert import Conversion, convert
from lightfast._equivariance import assert_equivariant, equivariance_error
from lightfast._fuse import fuse
from lightfast._groups import Groups
from lightfast._pipelines.estimator import Estimator
from lightfast._pipelines.inpainter import Inpainter
from lightfast._pipelines.pipeline import Classifier
from lightfast._pipelines.pretrained import pretrained
from lightfast._project import attach_projection, project_
from lightfast._wrap import wrap

__version__ = "0.1.0"

__all__ = [
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
