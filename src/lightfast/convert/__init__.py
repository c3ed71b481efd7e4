"""Converting conventional networks, layer by layer."""

from lightfast.convert._convert import convert
from lightfast.convert._report import Change, Conversion

__all__ = ["Change", "Conversion", "convert"]
