"""What is made of weights, kept for as long as they stay what they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack


class _Kept(NamedTuple):
    """Tensors made of a weight, by how they were made, and what tells whether it is still that weight.

    In-place changes raise a tensor's version. Another tensor behind the same parameter (`weight.data = ...`) does not,
    but lies elsewhere in memory, since `values` keeps the first one where it is.
    """

    weight: Tensor
    version: int
    values: Tensor
    made: dict[Hashable, Tensor]
    before: dict[Hashable, Tensor]

    def holds_for(self, weight: Tensor) -> bool:
        same = self.weight is weight and self.version == weight._version and self.values.dtype == weight.dtype
        return same and self.values.data_ptr() == weight.data_ptr()


class WeightCache:
    """What was made of a layer's weight. When the weight changes it is made anew.

    Args:
        in_graphs: whether a CUDA graph may read what is kept here. It does not see the weight change before somebody
            asks for the weight outside the graph, when it is made anew in the same place; otherwise the graph makes
            what it needs by itself.
    """

    def __init__(self, in_graphs: bool = False) -> None:
        self.in_graphs, self.on = in_graphs, True
        self._kept: _Kept | None = None

    def get(self, weight: Tensor, kind: Hashable, make: Callable[[Tensor], Tensor]) -> Tensor:
        """`make(weight)`, or what it gave before under the name `kind`, if the weight is still the same."""
        if torch.compiler.is_compiling() or not self.on:
            return make(weight)
        kept, allowed = self._kept, may_be_kept(weight)
        if not allowed and not self.in_graphs:
            return make(weight)
        holds = kept is not None and not weight.is_inference() and kept.holds_for(weight)
        if kept is not None and holds and kind in kept.made:
            return kept.made[kind]
        if not allowed:
            return make(weight)
        if kept is None or not holds:
            before: dict[Hashable, Tensor] = {}
            if self.in_graphs and kept is not None:
                values = kept.values
                if values.device == weight.device and values.dtype == weight.dtype:
                    before = kept.before | kept.made
            kept = _Kept(weight, weight._version, weight.detach(), {}, before)
            self._kept = kept
        # A tensor made in inference mode could not be used where a gradient of the input is wanted.
        with torch.inference_mode(False), torch.no_grad():
            made = make(weight)
            if made.data_ptr() == weight.data_ptr():
                return made
            if kind in kept.before:
                made = kept.before.pop(kind).copy_(made)
            kept.made[kind] = made
        return made

    def peek(self, weight: Tensor, kind: Hashable) -> Tensor | None:
        """What :meth:`get` would give, if it is there. For those who know that nothing is under way: no transform, no
        trace, no compiler.
        """
        kept = self._kept
        if kept is None or not self.on or not kept.holds_for(weight):
            return None
        return None if not self.in_graphs and is_captured(weight) else kept.made.get(kind)

    def forget(self) -> None:
        """Keep nothing of what there is."""
        self._kept = None

    def __deepcopy__(self, memo: object) -> WeightCache:
        """For copies: everything but what can be made again."""
        return WeightCache(self.in_graphs)

    def __reduce__(self) -> tuple[type[WeightCache], tuple[bool]]:
        return WeightCache, (self.in_graphs,)


def may_be_kept(weight: Tensor) -> bool:
    """Whether what follows from a weight may outlive the call: it is a plain parameter, and nothing is under way.

    What functional transforms and traces make of a weight is theirs alone, and so is what is computed while a CUDA
    graph is captured.
    """
    if type(weight) is not nn.Parameter or weight.is_inference() or torch._C._get_tracing_state() is not None:
        return False
    if is_captured(weight):
        return False
    return torch._C._len_torch_dispatch_stack() == 0 and peek_interpreter_stack() is None


def is_captured(x: Tensor) -> bool:
    """Whether what is done to `x` goes into a CUDA graph, which will do it again and again."""
    return x.is_cuda and not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing()
