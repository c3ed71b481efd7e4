"""What layers with a constrained weight share: two assignments, and the projection."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor, nn

from lightfast._backends import Constraint, Form, WeightCache, exported, fit_weight
from lightfast._groups import Groups, GroupSpec, resolve
from lightfast.functional import ConstraintKind, check_feasible

InOutGroups: TypeAlias = GroupSpec | tuple[GroupSpec, GroupSpec]
"""One specification for input and output alike, or (input, output)."""


class Constrained(nn.Module):
    """Mixin of the layers that keep a raw weight and project it in `forward` onto `(Σ_taps W) G_m = G_n`.

    In evaluation mode, where no gradient is wanted, the projected weight is kept until the raw one changes: by
    `load_state_dict`, `to`, or in place. Changes in place through `weight.data`, of which torch keeps no account, are
    seen after the next `train()` or `eval()`; make them under `torch.no_grad()` instead.
    """

    weight: Tensor
    in_groups: Groups
    out_groups: Groups
    constraint: ConstraintKind
    weight_constraint: Constraint
    """What the weight is projected onto."""

    def _constrain(
        self,
        offset_groups: InOutGroups,
        inputs: int,
        outputs: int,
        conv_groups: int = 1,
        constraint: ConstraintKind = "sum",
        **geometry: Any,
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
        self.weight_constraint = Constraint(self.in_groups, self.out_groups, conv_groups, constraint, **geometry)
        self._kept = WeightCache()

    def projected_weight(self) -> Tensor:
        """The weight that the layer applies: the raw one, projected orthogonally onto the constraint."""
        form = Form.of(self.weight)
        return self.projection(form, lambda raw: fit_weight(raw, self.weight_constraint, form))

    def projection(self, kind: Hashable, make: Callable[[Tensor], Tensor]) -> Tensor:
        """`make(weight)`, kept in evaluation mode under the name `kind` for as long as the weight stays what it is."""
        if self.training:
            return make(self.weight)
        if self.weight.requires_grad and torch.is_grad_enabled():
            self.stop_keeping()
            return make(self.weight)
        return self._kept.get(self.weight, kind, make)

    def stop_keeping(self) -> None:
        """Keep nothing before the mode is set again: somebody trains in evaluation mode.

        Fused optimizers and CUDA graphs do not raise a weight's version, so it would not be seen to change.
        """
        if not exported():
            # An assignment, which compilers do too, each time.
            self._kept.on = False

    def train(self, mode: bool = True) -> Self:
        """Torch's, and what was projected is forgotten."""
        self._kept = WeightCache()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._kept.forget()
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        same = self.in_groups == self.out_groups or (self.in_groups.is_even and self.out_groups.is_even)
        shown = self.in_groups.count if same and self.in_groups.is_even else (self.in_groups, self.out_groups)
        return f"{super().extra_repr()}, offset_groups={shown}"
