"""The modules of the network that a conversion builds: layers with their weights, each at a path of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightfast.nn._constrained import Constrained


class Modules:
    """A tree of modules that grows, under `root`.

    Args:
        load: whether layers take over the model's weights, or keep their own fresh ones.
    """

    def __init__(self, load: bool) -> None:
        self.root, self.load = nn.Module(), load
        self._layers: dict[tuple[Any, ...], str] = {}
        self._owners: dict[str, nn.Module] = {}

    def layer(self, key: tuple[Any, ...], path: str, layer: nn.Module, tensors: dict[str, Tensor | None]) -> str:
        """Where a layer is: where the same one was put before, or a new place, with the model's weights loaded.

        A layer that is called with features laid out differently is there once for each, with the same parameters.
        """
        if key not in self._layers:
            first = self._owners.get(path)
            if first is None:
                self._load(layer, tensors)
            else:
                for name, parameter in first.named_parameters(recurse=False):
                    if getattr(layer, name, None) is not None and getattr(layer, name).shape == parameter.shape:
                        setattr(layer, name, parameter)
            if tensors:
                self._owners.setdefault(path, layer)
            self._layers[key] = self.place(path or "layer", layer)
        return self._layers[key]

    def place(self, path: str, module: nn.Module) -> str:
        """Put a module at a path, or beside it if that is taken."""
        free, number = path, 0
        while self._is_taken(free):
            number += 1
            free = f"{path}_{number}"
        owner, _, name = free.rpartition(".")
        self._holder(owner).add_module(name, module)
        return free

    def take_over(self, path: str, tensor: Tensor) -> None:
        """Put a copy of a parameter or buffer at its path."""
        owner, _, name = path.rpartition(".")
        module = self._holder(owner)
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(name, nn.Parameter(tensor.detach().clone(), tensor.requires_grad))
        else:
            module.register_buffer(name, tensor.detach().clone())

    def _load(self, module: nn.Module, tensors: dict[str, Tensor | None]) -> None:
        """Take over weights, projected onto the constraint where there is one."""
        if not self.load:
            return
        with torch.no_grad():
            for name, tensor in tensors.items():
                target = getattr(module, name, None)
                if tensor is not None and isinstance(target, Tensor):
                    target.copy_(tensor)
            if isinstance(module, Constrained):
                module.weight.copy_(module.projected_weight())

    def _holder(self, path: str) -> nn.Module:
        """The module at a path; empty ones are made on the way."""
        module = self.root
        for name in filter(None, path.split(".")):
            if name not in module._modules:
                module.add_module(name, nn.Module())
            child = module._modules[name]
            assert child is not None
            module = child
        return module

    def _is_taken(self, path: str) -> bool:
        """Whether something other than an empty holder of modules is at a path."""
        module = self.root
        for name in path.split("."):
            if hasattr(module, name) and name not in module._modules:
                return True
            child = module._modules.get(name)
            if child is None:
                return False
            module = child
        return True
