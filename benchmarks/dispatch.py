"""What a call costs before any work is done: an operator of torch's dispatcher, an autograd function, a direct call.

    OMP_NUM_THREADS=1 python benchmarks/dispatch.py --json results/speed/dispatch/results.json

An operation with the arguments of `norm_act` (ten, of which two get a gradient) that only makes room for its results is
called on a map so small that the work takes no time, without gradients, with them, and with the backward pass:

- `direct`: a Python function, which knows nothing of gradients.
- `autograd function`: a `torch.autograd.Function`.
- `operator of a library`: registered by `torch.library.Library`, with `register_autograd`.
- `custom operator`: registered by `torch.library.custom_op`, with `register_autograd`.

What was decided by these numbers: eager calls choose their backend in Python, and go through an autograd function if a
gradient is wanted; compilers, which cannot look into passes in C and kernels, are shown operators.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightfast._experiments.provenance import provenance
from lightfast._experiments.report.tables import markdown

SCHEMA = (
    "(Tensor u, Tensor? shortcut, Tensor? pre_bias, Tensor weight, Tensor bias, Tensor? mean, Tensor? var, "
    "float eps, int groups, float slope) -> (Tensor, Tensor)"
)
COLUMNS = ("no gradient", "forward", "forward and backward")
REPEATS = 7
LIBRARY = torch.library.Library("lightfast_dispatch", "DEF")
"""Its operators live as long as it does."""


def direct(u: Tensor, shortcut: Tensor | None, pre_bias: Tensor | None, weight: Tensor, *others: Any) -> Any:
    """The operation: room for a map and for a few numbers."""
    return torch.empty_like(u), u.new_empty(2, 3)


def gradients(dz: Tensor, u: Tensor, weight: Tensor) -> tuple[Tensor | None, ...]:
    """Of each argument."""
    du, dweight = torch.empty_like(u), torch.empty_like(weight)
    return du, None, None, dweight, None, None, None, None, None, None


class Function(torch.autograd.Function):
    """The operation with its gradient, for eager calls."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        """Compute, and keep what the gradient needs."""
        ctx.save_for_backward(arguments[0], arguments[3])
        ctx.set_materialize_grads(False)
        return direct(*arguments)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of each argument."""
        return gradients(grads[0], *ctx.saved_tensors)


def set_up(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep what the gradient of an operator needs."""
    ctx.save_for_backward(inputs[0], inputs[3])


def library_operator() -> Callable[..., Any]:
    """The operation as an operator of a library."""
    LIBRARY.define(f"norm_act{SCHEMA}")
    LIBRARY.impl("norm_act", direct, "CPU")
    name = "lightfast_dispatch::norm_act"
    torch.library.register_autograd(name, Function.backward, setup_context=set_up, lib=LIBRARY)
    return torch.ops.lightfast_dispatch.norm_act.default


def custom_operator() -> Callable[..., Any]:
    """The operation as a custom operator."""
    operator = torch.library.custom_op("lightfast_dispatch_custom::norm_act", direct, mutates_args=(), schema=SCHEMA)
    operator.register_autograd(Function.backward, setup_context=set_up)
    return operator


def microseconds(call: Callable[[], Any], times: int = 2000) -> float:
    """Of a call, at the quickest of several repeats."""
    for _ in range(times // 10):
        call()
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / times


def measure(operation: Callable[..., Any], differentiable: bool) -> dict[str, float]:
    """Microseconds of a call in each way in :data:`COLUMNS` that there is."""
    u, weight = torch.randn(2, 6, 4, 4), torch.randn(6)
    others = (weight, None, None, 1e-5, 3, 0.0)
    with torch.no_grad():
        found = {COLUMNS[0]: microseconds(functools.partial(operation, u, None, None, weight, *others))}
    if not differentiable:
        return found
    wanted, dz = [u.clone().requires_grad_(), weight.clone().requires_grad_()], torch.ones_like(u)
    forward = functools.partial(operation, wanted[0], None, None, wanted[1], *others)

    def both() -> None:
        torch.autograd.backward(forward()[0], dz, inputs=wanted)

    return {**found, COLUMNS[1]: microseconds(forward), COLUMNS[2]: microseconds(both)}


def main() -> None:
    """Measure all ways, print a table, and write the numbers down if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    ways = {
        "direct": (direct, False),
        "autograd function": (Function.apply, True),
        "operator of a library": (library_operator(), True),
        "custom operator": (custom_operator(), True),
    }
    found = {name: measure(operation, differentiable) for name, (operation, differentiable) in ways.items()}
    cells = [[name, *(f"{row[key]:.1f}" if key in row else "" for key in COLUMNS)] for name, row in found.items()]
    print(markdown([["Microseconds a call", *COLUMNS], *cells]))
    if given.json is not None:
        rounded = {name: {key: round(value, 2) for key, value in row.items()} for name, row in found.items()}
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({**provenance(), "microseconds": rounded}, indent=1) + "\n")


if __name__ == "__main__":
    main()
