"""A process in which Triton's kernels run on the CPU. Triton reads TRITON_INTERPRET when it is imported, hence that."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

__all__ = ["interpreter"]


@contextmanager
def interpreter() -> Iterator[Callable[..., Any]]:
    """Calls of functions there: `call(function, *arguments)` gives what they give, and raises what they raise."""
    variables = {"TRITON_INTERPRET": "1", "LIGHTFAST_NATIVE": "0", "OMP_NUM_THREADS": "1"}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, _prepare) as process:

        def call(function: Callable[..., Any], *arguments: Any) -> Any:
            # The process starts at the first call.
            with mock.patch.dict(os.environ, variables):
                work = process.submit(_seeded, function, arguments)
            return work.result(timeout=300)

        yield call


def _prepare() -> None:
    import torch

    torch.set_num_threads(1)
    _mend_index()


def _seeded(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    import torch

    torch.manual_seed(0)
    return function(*arguments)


def _mend_index() -> None:
    """Let Triton up to 3.6 count by its scalars, arrays of one number, of which numpy since 2.5 makes no `int`.

    It gives `tensor.__index__ = int(data)` to its language for as long as a kernel runs; later versions `squeeze` the
    data first. What is done here is the same.
    """
    try:
        int(np.zeros(1, dtype=np.int32))
        return
    except TypeError:
        pass
    from triton.runtime import interpreter as triton

    patch = triton._patch_lang_tensor

    def patched(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        give = scope[0].set_attr if scope else setattr
        give(tensor, "__index__", lambda self: self.handle.data.item())

    triton._patch_lang_tensor = patched
