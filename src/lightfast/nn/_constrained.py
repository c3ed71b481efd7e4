"""What layers with a constrained weight share: two assignments, and the projection."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor, nn

from lightfast.functional import Constraint, check_feasible, project_weight
from lightfast.groups import Groups, GroupSpec, resolve

__all__ = ["Constrained", "InOutGroups", "applied_weight"]

InOutGroups: TypeAlias = GroupSpec | tuple[GroupSpec, GroupSpec]
"""One specification for input and output alike, or (input, output)."""


class Constrained(nn.Module):
    """Mixin of the layers that keep a raw weight and project it in `forward` onto `(Σ_taps W) G_m = G_n`."""

    weight: Tensor
    in_groups: Groups
    out_groups: Groups
    constraint: Constraint

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
        return project_weight(self.weight, self.in_groups, self.out_groups, constraint=self.constraint)

    def extra_repr(self) -> str:
        same = self.in_groups == self.out_groups or (self.in_groups.is_even and self.out_groups.is_even)
        shown = self.in_groups.count if same and self.in_groups.is_even else (self.in_groups, self.out_groups)
        return f"{super().extra_repr()}, offset_groups={shown}"


def applied_weight(layer: nn.Linear | nn.modules.conv._ConvNd) -> Tensor:
    """The weight that a linear layer or convolution applies: a constrained one's is projected, torch's own is not."""
    return layer.projected_weight() if isinstance(layer, Constrained) else layer.weight
