"""Which feature belongs to which group.

An offset equivariant network splits the features of every map into `g` groups (three for color: red, green, blue). An
offset `Δ` has one number per group, and reaches the features through the assignment matrix `G` (m x g, one 1 per row).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor

_TensorKind = Literal["index", "matrix", "pinv"]


class Groups:
    """An assignment of `m` features to `g` groups: an immutable value, compared and hashed by content.

    Args:
        assignment: the group (0 to g - 1) of each feature, in the features' order.
        count: g; by default one more than the largest group that occurs.

    >>> Groups([0, 2, 1, 1])
    Groups([0, 2, 1, 1])
    >>> Groups.even(6, 3).matrix().int().tolist()
    [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]
    """

    __slots__ = ("_tensors", "assignment", "count", "is_even", "sizes")

    assignment: tuple[int, ...]
    count: int
    sizes: tuple[int, ...]
    is_even: bool
    """Whether the groups are equal contiguous runs, so that a view does the work of an index."""

    def __init__(self, assignment: Iterable[int], count: int | None = None) -> None:
        assignment = tuple(int(group) for group in assignment)
        if not assignment:
            raise ValueError("an assignment needs at least one feature")
        smallest, largest = min(assignment), max(assignment)
        count = largest + 1 if count is None else count
        if smallest < 0 or largest >= count:
            raise ValueError(f"groups are numbered 0 to {count - 1}, but the assignment holds {smallest} to {largest}")
        sizes = [0] * count
        for group in assignment:
            sizes[group] += 1
        self.assignment, self.count, self.sizes = assignment, count, tuple(sizes)
        self.is_even = len(set(sizes)) == 1 and all(a <= b for a, b in pairwise(assignment))
        self._tensors: dict[tuple[_TensorKind, torch.device, torch.dtype], Tensor] = {}

    @classmethod
    def even(cls, features: int, count: int) -> Groups:
        """`g` equal contiguous runs: feature `i` (from 1) belongs to group `ceil(g i / m)` (from 1).

        >>> Groups.even(6, 3).assignment
        (0, 0, 1, 1, 2, 2)
        """
        if count < 1:
            raise ValueError(f"there is at least one group, not {count}: 3 for red, green and blue")
        if features < count:
            gray = "; a gray image has no colors that light could change, and an RGB image has its channels there"
            raise ValueError(
                f"expected at least {count} features, one for each of {count} groups, but there "
                f"{'is' if features == 1 else 'are'} {features}{gray if (features, count) == (1, 3) else ''}"
            )
        if features % count:
            below, above = features // count * count, -(-features // count) * count
            raise ValueError(
                f"{features} features do not divide into {count} equal groups: use {below} or {above} features, or "
                f"uneven runs with Groups.runs({features}, {count})"
            )
        return cls.runs(features, count)

    @classmethod
    def runs(cls, features: int, count: int) -> Groups:
        """`g` contiguous runs whose sizes differ by at most one, by the formula of :meth:`even`.

        >>> Groups.runs(7, 3).sizes
        (2, 2, 3)
        """
        if count < 1 or features < count:
            raise ValueError(f"{features} features cannot fill {count} groups: each needs at least one")
        return cls((-(-count * i // features) - 1 for i in range(1, features + 1)), count)

    @classmethod
    def interleaved(cls, features: int, count: int) -> Groups:
        """Feature `i` (from 0) belongs to group `i mod g`, as when pixels of `g` channels are joined one after another.

        >>> Groups.interleaved(6, 3)
        Groups([0, 1, 2, 0, 1, 2])
        """
        if count < 1 or features < count:
            raise ValueError(f"{features} features cannot fill {count} groups: each needs at least one")
        return cls((i % count for i in range(features)), count)

    @classmethod
    def concat(cls, parts: Sequence[Groups]) -> Groups:
        """The assignment of features put one after another, as `torch.cat` of their maps; `a + b` for two.

        >>> Groups.even(3, 3) + Groups.even(3, 3)
        Groups([0, 1, 2, 0, 1, 2])
        """
        counts = {part.count for part in parts}
        if len(counts) != 1:
            raise ValueError(f"only assignments to the same number of groups can be joined, not to {sorted(counts)}")
        return cls(chain.from_iterable(part.assignment for part in parts), counts.pop())

    def __add__(self, other: Groups) -> Groups:
        return Groups.concat([self, other])

    def repeat(self, times: int) -> Groups:
        """Each feature `times` times in place, as flattening (N, C, H, W) to (N, C H W) does with `times = H W`.

        >>> Groups([0, 1, 0]).repeat(2)
        Groups([0, 0, 1, 1, 0, 0])
        """
        return Groups((group for group in self.assignment for _ in range(times)), self.count)

    def blocks(self, size: int) -> tuple[list[int] | None, Groups]:
        """Cut the features into blocks of `size` that each lie in one group.

        Returns the order in which to take the features (None: as they are) and the assignment of the blocks.

        >>> Groups.interleaved(4, 2).blocks(2)
        ([0, 2, 1, 3], Groups([0, 1]))
        """
        heads = self.assignment[::size]
        if self.assignment == tuple(group for group in heads for _ in range(size)):
            return None, Groups(heads, self.count)
        if any(number % size for number in self.sizes):
            raise ValueError(
                f"groups of {self.sizes} features cannot be cut into blocks of {size} that stay in a group"
            )
        order = sorted(range(self.features), key=lambda i: self.assignment[i])
        return order, Groups((self.assignment[i] for i in order[::size]), self.count)

    @property
    def features(self) -> int:
        """`m`, the number of features."""
        return len(self.assignment)

    def index(self, device: torch.device | str | None = None) -> Tensor:
        """The assignment as an integer tensor of shape (m,)."""
        return self._tensor("index", device, torch.int64)

    def matrix(self, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """`G` (m x g): `G[i, j] = 1` where feature `i` belongs to group `j`, else 0.

        >>> Groups([1, 0]).matrix().tolist()
        [[0.0, 1.0], [1.0, 0.0]]
        """
        return self._tensor("matrix", device, dtype)

    def pinv(self, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """`G⁺` (g x m), the pseudo-inverse of `G`: row `j` averages the features of group `j` (zeros for an empty one).

        >>> Groups([0, 1, 1]).pinv().tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
        """
        return self._tensor("pinv", device, dtype)

    def _tensor(self, kind: _TensorKind, device: torch.device | str | None, dtype: torch.dtype) -> Tensor:
        """One of the tensors above; kept for the next call, but never while a compiler or an exporter looks on."""
        device = torch.device(device) if device is not None else torch.device("cpu")
        if torch.compiler.is_compiling():
            return self._build(kind, device, dtype)
        key = (kind, device, dtype)
        if key not in self._tensors:
            built = self._build(kind, device, dtype)
            if type(built) is not Tensor:
                return built
            self._tensors[key] = built
        return self._tensors[key]

    def _build(self, kind: _TensorKind, device: torch.device, dtype: torch.dtype) -> Tensor:
        if kind == "index":
            return torch.tensor(self.assignment, dtype=dtype, device=device)
        index = torch.tensor(self.assignment, dtype=torch.int64, device=device)
        matrix = (index[:, None] == torch.arange(self.count, device=device)).to(dtype)
        return matrix if kind == "matrix" else (matrix / matrix.sum(0).clamp(min=1)).T

    def __len__(self) -> int:
        return self.features

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Groups) and (self.assignment, self.count) == (other.assignment, other.count)

    def __hash__(self) -> int:
        return hash((self.assignment, self.count))

    def __repr__(self) -> str:
        if self.is_even and self.features > self.count:
            return f"Groups.even({self.features}, {self.count})"
        if self.features > 12:
            head = ", ".join(map(str, self.assignment[:9]))
            return f"Groups([{head}, ...], {self.features} features in {self.count} groups)"
        missing = "" if self.sizes[-1] else f", count={self.count}"
        return f"Groups({list(self.assignment)}{missing})"

    def __reduce__(self) -> tuple[type[Groups], tuple[tuple[int, ...], int]]:
        return Groups, (self.assignment, self.count)

    def __deepcopy__(self, memo: dict[int, object]) -> Groups:
        return self


GroupSpec: TypeAlias = int | Groups
"""How a user names an assignment: a number of equal contiguous runs, or any `Groups`."""


def resolve(spec: GroupSpec, features: int) -> Groups:
    """The assignment of `features` features that `spec` means.

    >>> resolve(3, 6)
    Groups.even(6, 3)
    """
    if isinstance(spec, Groups):
        check_features(spec, features)
        return spec
    return Groups.even(features, spec)


def check_features(spec: GroupSpec, features: int) -> None:
    """Raise a sentence unless a map of `features` features can be assigned as `spec` says."""
    if isinstance(spec, Groups):
        if spec.features != features:
            raise ValueError(f"expected {spec.features} features, as {spec} assigns, but the map has {features}")
    elif spec < 1 or features % spec:
        Groups.even(features, spec)


def group_count(spec: GroupSpec) -> int:
    """`g`, the number of groups that `spec` names."""
    return spec.count if isinstance(spec, Groups) else spec


def is_even(spec: GroupSpec) -> bool:
    """Whether the groups are equal contiguous runs, so that a view does the work of an index."""
    return spec.is_even if isinstance(spec, Groups) else True
