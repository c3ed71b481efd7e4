"""What is worked out once about maps of one kind, for as long as somebody has maps of that kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from lightfast._backends.operands import Folded
from lightfast._backends.weights import WeightCache

_Plan = TypeVar("_Plan")
_MOST = 4096


class Plans:
    """Plans by what they are for. There are few kinds of maps in a network; of more, the oldest are forgotten."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], _Plan]) -> _Plan:
        """The plan for a key, made if there is none."""
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MOST:
                self._plans.pop(next(iter(self._plans)))
            plan = self._plans[key] = make()
        return plan

    def __deepcopy__(self, memo: object) -> Plans:
        """A copy works its plans out by itself: they may hold what belongs to the original."""
        return type(self)()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class UnitPlans(Plans):
    """Those of one unit, and what it keeps of a weight that has no constraint to meet.

    Args:
        in_graphs: as for `WeightCache`.
    """

    def __init__(self, in_graphs: bool = False) -> None:
        super().__init__()
        self.weights = WeightCache(in_graphs)

    def __deepcopy__(self, memo: object) -> UnitPlans:
        return UnitPlans(self.weights.in_graphs)

    def __reduce__(self) -> tuple[Any, ...]:
        return UnitPlans, (self.weights.in_graphs,)


def parts_of(norm: Any) -> tuple[Any, bool]:
    """The four rows of a batch norm, or of what `lf.fuse` has left of one, and whether it is in training.

    They are read past the module's own search for attributes, which takes as long as a pass over a small map.
    """
    if isinstance(norm, Folded):
        return norm, False
    parameters, buffers = norm._parameters, norm._buffers
    affine = parameters.get("weight"), parameters.get("bias")
    return (*affine, buffers.get("running_mean"), buffers.get("running_var")), norm.training
