"""torch's optimizers with all of their state made before the first step: it can be saved, loaded and captured."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from lightfast._experiments.engine.recipe import Recipe


def make_optimizer(parameters: Sequence[nn.Parameter], recipe: Recipe, *, capturable: bool = False) -> Optimizer:
    """The recipe's optimizer of the parameters, with complete state and learning rate 0: set it before each step.

    Args:
        parameters: what it moves, all on one device.
        recipe: which optimizer, and its constants.
        capturable: for a CUDA graph: the learning rate is a tensor on the device, and a step reads nothing back.
    """
    if not parameters:
        raise ValueError("the model has no parameters that can be trained: at least one must require a gradient")
    lr = torch.zeros((), device=parameters[0].device) if capturable else 0.0
    # The fused kernels alone take the rate from the device; foreach SGD would read it back.
    common = {"lr": lr, "weight_decay": recipe.weight_decay, "fused": True if capturable else None}
    if recipe.optimizer == "sgd":
        optimizer = SGD(parameters, momentum=recipe.momentum, nesterov=recipe.nesterov, **common)
    else:
        adam = AdamW if recipe.optimizer == "adamw" else Adam
        optimizer = adam(parameters, betas=recipe.betas, capturable=capturable, **common)
    _make_state(optimizer, parameters)
    return optimizer


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """The rate of the next steps; where it is a tensor, in place, so that a graph sees it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """All of the optimizer's state by name, `PARAMETER.KEY`, with parameters numbered in its order."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        f"{number}.{key}": value
        for number, parameter in enumerate(parameters)
        for key, value in sorted(optimizer.state[parameter].items())
        if isinstance(value, Tensor)
    }


def _make_state(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> None:
    """One step with gradient and rate 0, which moves nothing, and the state that it leaves set to 0.

    From a zero state the first real step does what it does from none: torch's momentum starts as the gradient,
    which is `momentum * 0 + gradient`.
    """
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    with warnings.catch_warnings():
        # Adam made for a graph warns when it steps outside of one, as it does here.
        warnings.filterwarnings("ignore", message=".*capturable=True.*")
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for value in optimizer_tensors(optimizer).values():
        value.zero_()
