"""What layers with a constrained weight share: two assignments, and the projection."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack

from lightfast.functional import Constraint, check_feasible
from lightfast.groups import Groups, GroupSpec, resolve
from lightfast.nn import _native
from lightfast.nn._projection import project

__all__ = ["Constrained", "InOutGroups", "Kept", "applied_weight", "autocast_weight", "forgotten", "may_be_kept"]

InOutGroups: TypeAlias = GroupSpec | tuple[GroupSpec, GroupSpec]
"""One specification for input and output alike, or (input, output)."""


class Kept(NamedTuple):
    """Projections of a weight, by how they were made, and what tells whether it is still that weight.

    In-place changes raise a tensor's version. Another tensor behind the same parameter (`weight.data = ...`) does not,
    but lies elsewhere in memory, since `values` keeps the first one where it is.
    """

    weight: Tensor
    version: int
    values: Tensor
    projections: dict[Hashable, Tensor]

    def holds_for(self, weight: Tensor) -> bool:
        same = self.weight is weight and self.version == weight._version and self.values.dtype == weight.dtype
        return same and self.values.data_ptr() == weight.data_ptr()


class Constrained(nn.Module):
    """Mixin of the layers that keep a raw weight and project it in `forward` onto `(Σ_taps W) G_m = G_n`.

    In evaluation mode, where no gradient is wanted, the projected weight is kept until the raw one changes: by
    `load_state_dict`, `to`, or in place. Changes in place through `weight.data`, of which torch keeps no account, are
    seen after the next `train()` or `eval()`; make them under `torch.no_grad()` instead.
    """

    weight: Tensor
    in_groups: Groups
    out_groups: Groups
    constraint: Constraint
    _kept: Kept | None = None
    _keeps: bool = True

    def _constrain(
        self,
        offset_groups: InOutGroups,
        inputs: int,
        outputs: int,
        conv_groups: int = 1,
        constraint: Constraint = "sum",
    ) -> None:
        """Fix the assignments, once the sizes are known; raises if no weight can meet the constraint."""
        if constraint not in ("sum", "tap"):
            raise ValueError(f"the constraint holds for the sum of taps or for every tap, not for {constraint!r}")
        if isinstance(offset_groups, tuple):
            into, out = offset_groups
        else:
            # An assignment of the input says nothing of another number of output features but how many groups it has.
            into = offset_groups
            known = isinstance(offset_groups, Groups) and offset_groups.features != outputs
            out = offset_groups.count if isinstance(offset_groups, Groups) and known else offset_groups
        self.in_groups, self.out_groups = resolve(into, inputs), resolve(out, outputs)
        self.constraint = constraint
        check_feasible(self.in_groups, self.out_groups, conv_groups)

    def projected_weight(self) -> Tensor:
        """The weight that the layer applies: the raw one, projected orthogonally onto the constraint."""
        return self.projection(None, self._project)

    def projection(self, kind: Hashable, make: Callable[[Tensor], Tensor]) -> Tensor:
        """`make(weight)`, kept in evaluation mode under the name `kind` for as long as the weight stays what it is."""
        weight = self.weight
        if self.training:
            return make(weight)
        if weight.requires_grad and torch.is_grad_enabled():
            self.stop_keeping()
            return make(weight)
        if torch.compiler.is_compiling() or not self._keeps or not may_be_kept(weight):
            return make(weight)
        kept = self._kept
        if kept is None or not kept.holds_for(weight):
            kept = Kept(weight, weight._version, weight.detach(), {})
            self.__dict__["_kept"] = kept
        if kind not in kept.projections:
            # A tensor made in inference mode could not be used where a gradient of the input is wanted.
            with torch.inference_mode(False), torch.no_grad():
                kept.projections[kind] = make(weight)
        return kept.projections[kind]

    def stop_keeping(self) -> None:
        """Keep nothing before the mode is set again: somebody trains in evaluation mode.

        Fused optimizers and CUDA graphs do not raise a weight's version, so it would not be seen to change.
        """
        if not _native.exported():
            # Assignments, which compilers do too, each time.
            self._kept, self._keeps = None, False

    def _project(self, weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return project(weight, self.in_groups, self.out_groups, constraint=self.constraint, dtype=dtype)

    def train(self, mode: bool = True) -> Self:
        """Torch's, and what was projected is forgotten."""
        self.__dict__.update(_kept=None, _keeps=True)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.__dict__["_kept"] = None
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: everything but what can be projected again."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_kept", "_keeps")}

    def extra_repr(self) -> str:
        same = self.in_groups == self.out_groups or (self.in_groups.is_even and self.out_groups.is_even)
        shown = self.in_groups.count if same and self.in_groups.is_even else (self.in_groups, self.out_groups)
        return f"{super().extra_repr()}, offset_groups={shown}"


def applied_weight(layer: Any) -> Tensor:
    """The weight that a linear layer or convolution applies: a constrained one's is projected, torch's own is not."""
    return layer.projected_weight() if isinstance(layer, Constrained) else layer.weight


def autocast_weight(layer: Any) -> Tensor:
    """The weight that is applied next; on the CPU in the precision of autocast, projected and rounded in one pass."""
    weight = layer.weight
    rounded = weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.is_autocast_enabled("cpu")
    if not rounded or not isinstance(layer, Constrained):
        return applied_weight(layer)
    dtype = torch.get_autocast_dtype("cpu")
    return layer.projection(dtype, lambda raw: layer._project(raw, dtype))


def forgotten(layer: Any, weight: Tensor) -> AbstractContextManager[Any]:
    """Around the application of a layer's weight: autograd does not keep it for the backward pass, but projects again.

    Projected weights are as large as the weights, which a network with small batches would notice; on the CPU the
    second projection costs next to nothing.
    """
    raw, dtype = layer.weight, weight.dtype
    if weight is raw or not weight.requires_grad or not _native.suits_weight(raw, dtype):
        return nullcontext()
    place, version = weight.data_ptr(), raw._version

    def pack(kept: Tensor) -> Tensor | None:
        return None if kept.data_ptr() == place else kept

    def unpack(kept: Tensor | None) -> Tensor:
        if kept is not None:
            return kept
        if raw._version != version:
            raise RuntimeError("a weight that the backward pass needs was changed in place after the forward pass")
        with torch.no_grad():
            return layer._project(raw, dtype)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def may_be_kept(weight: Tensor) -> bool:
    """Whether what follows from a weight may outlive the call: it is a plain parameter, and nothing is under way.

    What functional transforms and traces make of a weight is theirs alone, and so is what is computed while a CUDA
    graph is captured.
    """
    if type(weight) is not nn.Parameter or weight.is_inference() or torch._C._get_tracing_state() is not None:
        return False
    if weight.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return torch._C._len_torch_dispatch_stack() == 0 and peek_interpreter_stack() is None
