"""The seam under lifted maps: a handful of operations, each in plain torch, in C and in Triton, and one choice.

| operation | what it is |
|---|---|
| `fit_weight` | a weight projected onto its constraint, in the form that the device wants |
| `convolve`, `linear`, `exact_linear` | of a lifted map, by such a weight |
| `norm_act`, `infer_folded` | batch norm, shortcut and activation |
| `conv_norm_act` | both in one |
| `center_act`, `center_relu_halve` | centering and activation, and 2x2 maxima |
| `center_subsample` | the shortcut without weights |
| `join_average` | the input of Cerberus |

`reference.py` has the formulas in torch, for every device; `native/` and `triton/` replace what they do faster, after
they have shown that they do the same (`trust.py`); `choose.py` says who works on which device. Idle channels, the forms
of weights and what is kept of them are known here and nowhere else.
"""

from lightfast._backends.center_act import center_act, center_relu_halve, center_subsample, join_average
from lightfast._backends.constraint import Constraint, Form
from lightfast._backends.convolve import (
    Convolved,
    applied_weight,
    convolve,
    exact_linear,
    from_pixel,
    linear,
    to_pixel,
    without_saving,
)
from lightfast._backends.norm_act import infer_folded, norm_act
from lightfast._backends.operands import Folded, Operands, Statistics
from lightfast._backends.plans import UnitPlans
from lightfast._backends.projection import fit_weight
from lightfast._backends.reference import about_mean_color
from lightfast._backends.tensors import exported, over
from lightfast._backends.units import conv_norm_act
from lightfast._backends.weights import WeightCache

__all__ = [
    "Constraint",
    "Convolved",
    "Folded",
    "Form",
    "Operands",
    "Statistics",
    "UnitPlans",
    "WeightCache",
    "about_mean_color",
    "applied_weight",
    "center_act",
    "center_relu_halve",
    "center_subsample",
    "conv_norm_act",
    "convolve",
    "exact_linear",
    "exported",
    "fit_weight",
    "from_pixel",
    "infer_folded",
    "join_average",
    "linear",
    "norm_act",
    "over",
    "to_pixel",
    "without_saving",
]
