"""What compilers of torch have to be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def known_to_compilers(function: _Function) -> _Function:
    """Let compilers call a function while they compile and take its answer for a constant.

    It is `torch.compiler.assume_constant_result` by the mark that this leaves: the decorator itself would import the
    compiler, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
