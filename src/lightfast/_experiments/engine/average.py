"""Running values kept on the device: the moving average of a model, and sums of what is logged."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lightfast._experiments.engine.schedule import average_weight


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name, each once."""
    return {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


class ModelAverage:
    """Exponential moving average of a model's parameters and floating point buffers; others are copied.

    Args:
        model: whose average; it starts from the model as it is.
        decay: what the average keeps of itself at a step, in the long run.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        source = model_tensors(model)
        self.tensors = {name: tensor.clone() for name, tensor in source.items()}
        moving = [name for name, tensor in source.items() if tensor.is_floating_point()]
        self._moving = [self.tensors[name] for name in moving], [source[name] for name in moving]
        self._copied = [(self.tensors[name], source[name]) for name in source if name not in set(moving)]
        self._source = source
        # On the device, where a captured update finds each step's own weight.
        self._weight = torch.zeros((), device=next(iter(source.values())).device)

    def set_step(self, step: int) -> None:
        """Set the weight of the next update, after step number `step`."""
        self._weight.fill_(average_weight(self.decay, step))

    @torch.no_grad()
    def update(self) -> None:
        """`average += weight (model - average)`."""
        average, source = self._moving
        change = torch._foreach_sub(source, average)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_mul_(change, self._weight)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(average, change)  # pyright: ignore[reportPrivateImportUsage]
        for copy, original in self._copied:
            copy.copy_(original)

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Give the model the averaged values."""
        for name, tensor in self._source.items():
            tensor.copy_(self.tensors[name])


class Meter:
    """Sums of logged values by name, kept on the device until they are read, so that the host need not wait."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, values: Mapping[str, Tensor], weight: float) -> None:
        """Add the values, tensors without axes, times `weight`."""
        for name, value in values.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), device=value.device)
            self.sums[name].add_(value.detach().float(), alpha=weight)

    def stacked(self) -> Tensor:
        """The sums as one tensor (names,), so that reading them is a single wait."""
        return torch.stack(list(self.sums.values())) if self.sums else torch.zeros(0)

    def replace(self, sums: Tensor) -> None:
        """Go on from other sums, as :meth:`stacked` gives them."""
        for value, other in zip(self.sums.values(), sums, strict=True):
            value.copy_(other)

    def reset(self) -> None:
        """Back to zero, in place, so that a graph goes on adding to the same tensors."""
        for value in self.sums.values():
            value.zero_()
