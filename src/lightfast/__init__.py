"""Lightfast: offset equivariant networks, whose output follows offsets of the input exactly, by construction."""

from lightfast import color, constancy, fields, functional, light, metrics, models, nn
from lightfast.certify import Certificate, certify
from lightfast.convert import Conversion, convert
from lightfast.deploy import fuse
from lightfast.equivariance import assert_equivariant, equivariance_error
from lightfast.estimator import Estimator
from lightfast.groups import Groups
from lightfast.inpainter import Inpainter
from lightfast.pipelines import Classifier
from lightfast.pretrained import pretrained
from lightfast.project import attach_projection, project_
from lightfast.wrap import wrap

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
