"""How far an estimated illuminant is from the true one, and an image from another.

Each measure is a function here, and a class for accumulating over batches and processes:
:class:`RecoveryError`, :class:`ReproductionError`, :class:`PSNR`. The classes are torchmetrics metrics and
need `pip install lightfast[train]`; nothing else in this module does.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from lightfast._metric_classes import PSNR, RecoveryError, ReproductionError

__all__ = [
    "PSNR",
    "RecoveryError",
    "ReproductionError",
    "Summary",
    "psnr",
    "recovery_error",
    "reproduction_error",
    "summary",
]

_CLASSES = ("PSNR", "RecoveryError", "ReproductionError")


def recovery_error(estimate: Tensor, truth: Tensor, dim: int = 1) -> Tensor:
    """The angle between estimated illuminant Î and true I, in degrees: `arccos(Î · I / (|Î| |I|))`.

    The brightness of either does not matter. The angle is computed in a way that keeps its digits near 0,
    where arccos in float32 sees nothing below 0.02 degrees, and its gradient there is finite (0 at 0 itself).

    Args:
        estimate: (N, 3), or (N, 3, H, W) for light that varies; any number of channels along `dim`.
        truth: the same shape, or one that broadcasts to it.
        dim: where the channels lie.

    Returns:
        The errors without that dimension: (N,), or (N, H, W).

    >>> recovery_error(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[2.0, 0.0, 0.0]]))
    tensor([45.])
    """
    estimate, truth = _prepare(estimate, truth, dim)
    return _degrees_between(estimate, truth, dim)


def reproduction_error(
    estimate: Tensor, truth: Tensor, form: Literal["paper", "finlayson"] = "paper", dim: int = 1
) -> Tensor:
    """How colored a white surface stays after correction with the estimate, in degrees.

    The angle between a ratio of lights and (1, 1, 1), `arccos(Σ r_c / sqrt(3 Σ r_c²))` with `r = Î / I`
    channel by channel (`form="paper"`), or with `r = I / Î`, as Finlayson and Zakizadeh define it
    (`form="finlayson"`). The same gains on both lights change neither.

    Args:
        estimate: Î, (N, 3), or (N, 3, H, W) for light that varies; any number of channels along `dim`.
        truth: I, the same shape, or one that broadcasts to it.
        form: which ratio.
        dim: where the channels lie.

    Returns:
        The errors without that dimension: (N,), or (N, H, W).

    >>> estimate, truth = torch.tensor([[0.5, 1.0, 1.0]]), torch.tensor([[1.0, 1.0, 1.0]])
    >>> reproduction_error(estimate, truth)
    tensor([15.7932])
    >>> reproduction_error(estimate, truth, form="finlayson")
    tensor([19.4712])
    """
    if form not in ("paper", "finlayson"):
        raise ValueError(f'form must be "paper" or "finlayson", not {form!r}')
    estimate, truth = _prepare(estimate, truth, dim)
    above, below, name = (estimate, truth, "truth") if form == "paper" else (truth, estimate, "estimate")
    if bool((below == 0).any()):
        raise ValueError(
            f"the {name} has a channel that is 0, and the reproduction error divides by it: "
            "leave such lights out, or use recovery_error, which is defined for them"
        )
    ratio = above / below
    return _degrees_between(ratio, torch.ones_like(ratio), dim)


def psnr(a: Tensor, b: Tensor, data_range: float = 1.0) -> Tensor:
    """The peak signal-to-noise ratio of each image, in decibels: `10 log10(data_range² / mean((a - b)²))`.

    Args:
        a: images (N, ...).
        b: the images to compare them with, the same shape.
        data_range: the largest value that a pixel can have, less the smallest: 1 for [0, 1], 255 for 8-bit
            images.

    Returns:
        (N,); infinite where the two are equal.

    >>> psnr(torch.zeros(1, 3, 2, 2), torch.full((1, 3, 2, 2), 0.1))
    tensor([20.])
    """
    if a.shape != b.shape or a.ndim < 2:
        raise ValueError(
            f"expected two batches (N, C, H, W) of the same shape, but got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if not data_range > 0:
        raise ValueError(f"data_range must be above 0, but is {data_range}")
    squares = (_at_least_float32(a) - _at_least_float32(b)).square().flatten(1).mean(1)
    return 20 * math.log10(data_range) - 10 * squares.log10()


@dataclasses.dataclass(frozen=True, repr=False)
class Summary:
    """A set of errors in six numbers, as the literature on color constancy reports them.

    Attributes:
        mean: the mean.
        median: the median, Q2.
        trimean: `(Q1 + 2 Q2 + Q3) / 4`.
        best25: the mean of the smallest quarter.
        worst25: the mean of the largest quarter.
        p95: the 95th percentile.

    >>> summary([1.0, 2.0, 3.0, 4.0])
    Summary(mean=2.5, median=2.5, trimean=2.5, best25=1, worst25=4, p95=3.85)
    """

    mean: float
    median: float
    trimean: float
    best25: float
    worst25: float
    p95: float

    def as_dict(self) -> dict[str, float]:
        """The six numbers by name.

        >>> summary([1.0, 2.0, 3.0, 4.0]).as_dict()["worst25"]
        4.0
        """
        return dataclasses.asdict(self)

    def __repr__(self) -> str:
        return f"Summary({', '.join(f'{name}={number:.4g}' for name, number in self.as_dict().items())})"


def summary(errors: Tensor | np.ndarray | list[float]) -> Summary:
    """Mean, median, trimean, best and worst 25 %, and 95th percentile of errors of any shape.

    Quantiles are interpolated linearly; a quarter of n errors is `ceil(n / 4)` of them.

    >>> summary(torch.tensor([1.0, 3.0])).median
    2.0
    """
    if isinstance(errors, Tensor):
        errors = errors.detach().cpu().to(torch.float64).numpy()
    values = np.sort(np.asarray(errors, dtype=np.float64), axis=None)
    if not values.size:
        raise ValueError("no summary without errors: the tensor is empty")
    if missing := int(np.isnan(values).sum()):
        raise ValueError(f"{missing} of {values.size} errors are NaN: find their cause, or leave them out")
    first, median, third, p95 = np.quantile(values, [0.25, 0.5, 0.75, 0.95]).tolist()
    quarter = math.ceil(values.size / 4)
    return Summary(
        mean=float(values.mean()),
        median=median,
        trimean=(first + 2 * median + third) / 4,
        best25=float(values[:quarter].mean()),
        worst25=float(values[-quarter:].mean()),
        p95=p95,
    )


def _prepare(estimate: Tensor, truth: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Both in float32 or wider, and with a largest channel of 1, so that squares do not over- or underflow."""
    if (
        estimate.ndim != truth.ndim
        or not -estimate.ndim <= dim < estimate.ndim
        or estimate.shape[dim] != truth.shape[dim]
    ):
        raise ValueError(
            f"expected an estimate and a truth of the same shape with the channels along dimension {dim}, "
            f"as (N, 3), but got {tuple(estimate.shape)} and {tuple(truth.shape)}"
        )
    scaled = []
    for name, light in (("estimate", estimate), ("truth", truth)):
        light = _at_least_float32(light)
        largest = light.detach().abs().amax(dim, keepdim=True)
        if bool((largest == 0).any()):
            raise ValueError(f"the {name} has a light that is 0 in every channel, which makes no angle")
        scaled.append(light / largest)
    return scaled[0], scaled[1]


def _degrees_between(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """The angle between vectors along `dim`, in degrees: Kahan's `2 atan2(|a - b|, |a + b|)` of unit vectors."""
    a = a / torch.linalg.vector_norm(a, dim=dim, keepdim=True)
    b = b / torch.linalg.vector_norm(b, dim=dim, keepdim=True)
    apart = torch.linalg.vector_norm(a - b, dim=dim)
    together = torch.linalg.vector_norm(a + b, dim=dim)
    return torch.rad2deg(2 * torch.atan2(apart, together))


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from lightfast import _metric_classes
    except ModuleNotFoundError as error:
        if error.name != "torchmetrics":
            raise
        raise ImportError(
            f"lightfast.metrics.{name} needs torchmetrics: pip install 'lightfast[train]'; "
            "the functions of lightfast.metrics work without it"
        ) from error
    return getattr(_metric_classes, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLASSES})
