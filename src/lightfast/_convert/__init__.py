"""Converting conventional networks, layer by layer."""

from lightfast._convert.converter import convert
from lightfast._convert.report import Change, Conversion

__all__ = ["Change", "Conversion", "convert"]
