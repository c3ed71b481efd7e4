"""Networks of anyone's, saved with their graph, so that they are loaded without the code that they were written in."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, fx, nn

from lightfast._pipelines.pipeline import Pipeline

__all__ = ["AnyNetwork", "Network", "save"]


class AnyNetwork(Pipeline):
    """A pipeline whose constructor takes any module as `model`, and keeps it as `network`.

    It is saved as a graph of known layers and operations, beside the configuration.
    """

    network: nn.Module
    _is_own: bool = True
    """Whether the network is a module that somebody gave, not one that a name makes."""
    _graph: Mapping[str, Any] | None = None
    """The network as it is written down, once it can be."""

    def _example(self) -> Tensor | None:
        """What the network takes, if its shape is known."""
        return None

    @classmethod
    def _parts(cls, described: Mapping[str, Any]) -> dict[str, Any]:
        if "network" not in described:
            return {}
        from lightfast._convert.describe import restore

        return {"model": restore(described["network"])}

    def portable(self) -> Self:
        if not self._is_own:
            return self
        # What converts and exports is imported when it is needed: most models are made by a name.
        from lightfast._convert.capture import capture
        from lightfast._convert.describe import describe

        network, example = self.network, self._example()
        first = next(network.parameters(), None)
        if first is not None and example is not None:
            example = example.to(first.dtype)
            if first.device != example.device:
                network = copy.deepcopy(network).to(example.device)
        saved = copy.copy(self)
        saved._modules = {**self._modules, "network": capture(network, example)}
        saved._graph = describe(saved.network)
        return saved

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        return described if self._graph is None else {**described, "network": self._graph}


class Network(AnyNetwork):
    """A network by itself, from whatever it takes: what :func:`save` writes, and :func:`lightfast.load` gives back.

    Args:
        model: any module of one tensor, (N, ...).
        shape: of what it takes, without the number of images: [3, H, W] for log RGB.

    Attributes:
        network: the module.
    """

    input_names = ("x",)

    def __init__(self, model: nn.Module, shape: Sequence[int]) -> None:
        super().__init__()
        self.network = model

    def forward(self, x: Tensor) -> Any:
        return self.network(x)

    @property
    def image_size(self) -> tuple[int, int] | None:
        shape = self.config["shape"]
        return (shape[1], shape[2]) if len(shape) == 3 else None

    def example_inputs(
        self, batch: int, size: tuple[int, int], saturation: float = 0.0, seed: int = 0
    ) -> tuple[Tensor, ...]:
        """Random inputs with an offset per channel, of which a change of light is one in log RGB."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(batch, self.config["shape"][0], *size, generator=generator)
        return (x + saturation * torch.randn(batch, x.shape[1], 1, 1, generator=generator),)

    def _example(self) -> Tensor:
        return torch.zeros(2, *self.config["shape"])


def save(model: nn.Module, folder: str | os.PathLike[str], example: Tensor | None = None) -> Path:
    """Write a network or a pipeline to a folder, from which :func:`lightfast.load` reads it without its code.

    Networks that :func:`lightfast.convert` made are graphs of known layers already; any other module is exported to
    one, and compared with it. `model.json` has the graph, `model.safetensors` the weights; nothing is pickled.

    Args:
        model: a pipeline, what `convert` or `wrap` returned, or any module of one tensor.
        folder: it is made if need be, and returned.
        example: an input, of which only the shape matters; not needed for a pipeline, nor for what `convert` returned.

    Raises:
        ValueError: something in it cannot be written down; the sentence says what.

    >>> import tempfile, lightfast as lf
    >>> net, x = lf.wrap(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())), torch.randn(2, 3, 8, 8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.equal(lf.load(save(net, folder, x))(x), net(x))
    True
    """
    if isinstance(model, Pipeline):
        return model.save(folder)
    shape = _shape(model) if example is None else tuple(example.shape[1:])
    if shape is None:
        raise ValueError("give an example of what the network takes, such as torch.zeros(1, 3, 32, 32)")
    network = Network(model, list(shape))
    report = getattr(model, "conversion", None)
    network.about = {} if report is None else {"conversion": str(report)}
    return network.save(folder)


def _shape(model: nn.Module) -> tuple[int, ...] | None:
    """Of what a converted network was converted for."""
    if not isinstance(model, fx.GraphModule):
        return None
    first = next(node for node in model.graph.nodes if node.op == "placeholder")
    recorded = first.meta.get("val")
    return tuple(recorded.shape[1:]) if isinstance(recorded, Tensor) else None
