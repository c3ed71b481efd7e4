"""The classes of `lightfast.metrics`: apart from it, since they need torchmetrics."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lightfast.metrics import psnr, recovery_error, reproduction_error, summary


class _PerImage(Metric):
    """Keeps one number per image, and gathers them from all processes."""

    is_differentiable = False
    full_state_update = False

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Each has a name of its own: a MetricCollection takes metrics whose states agree on the first batch for one
        # and the same, and under white light recovery and reproduction error do agree.
        self.state = f"{name}_of_images"
        self.add_state(self.state, default=[], dist_reduce_fx="cat")

    def _keep(self, values: Tensor) -> None:
        getattr(self, self.state).append(values.detach().flatten())

    def _kept(self) -> Tensor:
        return dim_zero_cat(getattr(self, self.state))


class _AngularError(_PerImage):
    higher_is_better = False

    def compute(self) -> dict[str, Tensor]:
        """The :class:`~lightfast.metrics.Summary` of all errors so far, as a dictionary of scalar tensors."""
        values = self._kept()
        return {
            name: torch.tensor(number, dtype=values.dtype, device=values.device)
            for name, number in summary(values).as_dict().items()
        }


class RecoveryError(_AngularError):
    """:func:`~lightfast.metrics.recovery_error` over batches and processes, in degrees.

    `compute()` gives a dictionary of mean, median, trimean, best25, worst25 and p95, each a scalar tensor.

    Args:
        dim: where the channels lie.
        kwargs: as torchmetrics' `Metric` takes them.

    >>> metric = RecoveryError()
    >>> metric.update(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]]))
    >>> metric.compute()["mean"]
    tensor(45.)
    """

    def __init__(self, dim: int = 1, **kwargs: Any) -> None:
        super().__init__("recovery_error", **kwargs)
        self.dim = dim

    def update(self, estimate: Tensor, truth: Tensor) -> None:
        """Add a batch of estimates and true illuminants, both (N, 3)."""
        self._keep(recovery_error(estimate, truth, self.dim))


class ReproductionError(_AngularError):
    """:func:`~lightfast.metrics.reproduction_error` over batches and processes, in degrees.

    `compute()` gives a dictionary of mean, median, trimean, best25, worst25 and p95, each a scalar tensor.

    Args:
        form: "paper" for Î / I, "finlayson" for I / Î.
        dim: where the channels lie.
        kwargs: as torchmetrics' `Metric` takes them.

    >>> metric = ReproductionError()
    >>> metric.update(torch.tensor([[0.5, 1.0, 1.0]]), torch.tensor([[1.0, 1.0, 1.0]]))
    >>> metric.compute()["mean"]
    tensor(15.7932)
    """

    def __init__(self, form: Literal["paper", "finlayson"] = "paper", dim: int = 1, **kwargs: Any) -> None:
        super().__init__(f"reproduction_error_{form}", **kwargs)
        self.form: Literal["paper", "finlayson"] = form
        self.dim = dim

    def update(self, estimate: Tensor, truth: Tensor) -> None:
        """Add a batch of estimates and true illuminants, both (N, 3)."""
        self._keep(reproduction_error(estimate, truth, self.form, self.dim))


class PSNR(_PerImage):
    """:func:`~lightfast.metrics.psnr` over batches and processes, in decibels.

    `compute()` gives the mean of the images' own ratios, a scalar tensor, not the ratio of the mean square
    over all pixels.

    Args:
        data_range: the largest value that a pixel can have, less the smallest.
        kwargs: as torchmetrics' `Metric` takes them.

    >>> metric = PSNR()
    >>> metric.update(torch.zeros(1, 3, 2, 2), torch.full((1, 3, 2, 2), 0.1))
    >>> metric.compute()
    tensor(20.)
    """

    higher_is_better = True

    def __init__(self, data_range: float = 1.0, **kwargs: Any) -> None:
        super().__init__("psnr", **kwargs)
        self.data_range = data_range

    def update(self, a: Tensor, b: Tensor) -> None:
        """Add a batch of images and what to compare them with, both (N, C, H, W)."""
        self._keep(psnr(a, b, self.data_range))

    def compute(self) -> Tensor:
        """The mean over all images so far, a scalar tensor."""
        return self._kept().mean()
