"""Converting conventional networks, layer by layer."""

from lightfast._convert._convert import convert
from lightfast._convert._report import Change, Conversion

__all__ = ["Change", "Conversion", "convert"]
