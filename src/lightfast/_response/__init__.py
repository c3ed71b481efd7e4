"""The response calculus: how each operation of a network carries the offset response of its inputs to its output.

For a value `y` computed from `x`, `y(x + G Δ) = y(x) + R Δ`, where each image has its own `Δ`. A rule gives `R` of an
operation's output from that of its inputs, for all inputs and all offsets, or says why there is none.
"""

from lightfast._response.interpreter import Step, interpret
from lightfast._response.kinds import Description, Kind, describe, ignores_constants
from lightfast._response.rules import RULES, apply
from lightfast._response.value import Constant, Lost, NoResponse, Response, Space, Value

__all__ = [
    "RULES",
    "Constant",
    "Description",
    "Kind",
    "Lost",
    "NoResponse",
    "Response",
    "Space",
    "Step",
    "Value",
    "apply",
    "describe",
    "ignores_constants",
    "interpret",
]
