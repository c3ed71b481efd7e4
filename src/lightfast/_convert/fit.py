"""A converted network fitted to the features of the conventional one, on a few images without labels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import lightfast.nn as lf
from lightfast._convert.blocks import ZeroPaddedConv2d
from lightfast._groups import Groups
from lightfast.functional import center
from lightfast.nn._conv import pad

__all__ = ["fit_features"]

_ROWS = 20_000
"""How many places of how many images an equation is written for, at most."""

_RIDGE = 1e-3
"""Of the least squares, relative to the mean square of the inputs."""

_LOUDER = 4.0
"""How much larger a feature is made than what the constraint adds to it, where a norm follows that undoes it."""

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def fit_features(network: fx.GraphModule, model: nn.Module, images: Tensor) -> None:
    """Fit the constrained layers of a converted network to the model's features, layer by layer, in place.

    Each convolution and linear layer, in the order of the network, gets the weight on the constraint that comes nearest
    to what the layer of that name gives in the model, `min |W x + b - y|²` subject to `(Σ_taps W) G_m = G_n`, for the
    inputs `x` that it has after the layers before it were fitted. Statistics of batch norms are those of the images.

    Args:
        network: what the model was converted to.
        model: the conventional one, in evaluation mode.
        images: inputs of both, (N, ...).
    """
    wanted: dict[str, Any] = {}
    hooks = [
        module.register_forward_hook(lambda _m, _x, y, path=path: wanted.setdefault(path, y))
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    ]
    mode = model.training
    try:
        model.eval()(images)
    finally:
        model.train(mode)
        for hook in hooks:
            hook.remove()
    training = network.training
    _Fitting(network.eval(), wanted).run(images)
    network.train(training)


class _Fitting(fx.Interpreter):
    """Runs a network, and fits each layer before it is run."""

    def __init__(self, network: fx.GraphModule, wanted: dict[str, Tensor]) -> None:
        super().__init__(network)
        self.wanted, self.done = wanted, set[str]()

    def run_node(self, n: fx.Node) -> Any:
        path = str(n.target)
        if n.op != "call_module" or path in self.done:
            return super().run_node(n)
        self.done.add(path)
        layer: Any = self.module.get_submodule(path)  # pyright: ignore[reportAttributeAccessIssue]
        if path in self.wanted and type(layer) in (lf.Conv2d, ZeroPaddedConv2d, lf.Linear):
            x = self.fetch_args_kwargs_from_env(n)[0][0]
            normed = len(n.users) == 1 and self._is_norm(next(iter(n.users)))
            _fit(layer, x, self.wanted[path], normed)
        if isinstance(layer, _NORMS) and layer.running_mean is not None:
            return self._with_statistics(layer, lambda: super(_Fitting, self).run_node(n))
        return super().run_node(n)

    def _is_norm(self, user: fx.Node) -> bool:
        return user.op == "call_module" and isinstance(self.module.get_submodule(str(user.target)), _NORMS)  # pyright: ignore[reportAttributeAccessIssue]

    def _with_statistics(self, norm: Any, run: Any) -> Any:
        """Run a norm in training mode, which makes its statistics those of the batch."""
        momentum, norm.momentum = norm.momentum, 1.0
        try:
            norm.train()
            return run()
        finally:
            norm.eval()
            norm.momentum = momentum


def _fit(layer: Any, x: Tensor, wanted: Tensor, normed: bool) -> None:
    """Least squares for one layer; one that none are written for is left as it is."""
    outputs = wanted.shape[-1] if isinstance(layer, lf.Linear) else wanted.shape[1]
    copies, rest = divmod(layer.weight.shape[0], outputs)
    if rest or (not isinstance(layer, lf.Linear) and layer.groups != 1):
        return
    rows, targets = _equations(layer, x, wanted)
    if targets is None:
        return
    if copies > 1:
        # Scores, of which only differences count.
        targets = (targets - targets.mean(1, keepdim=True)).repeat(1, copies)
    groups: Groups = layer.in_groups
    taps = rows.shape[1] // groups.features
    # Columns are (feature, tap); the weights of a group's columns sum to 1 for outputs of that group, else to 0.
    member = groups.repeat(taps).matrix(dtype=rows.dtype).to(rows.device)
    share = member / member.sum(0)
    own = layer.out_groups.matrix(dtype=rows.dtype).to(rows.device)
    # What the constraint asks for, spread evenly, and what is left free.
    fixed, free = rows @ share, rows - rows @ share @ member.T
    if normed:
        # A norm follows: the size of a feature is nobody's, and a large one leaves little to what the constraint adds.
        added = (fixed @ own.T).std(0)
        targets = targets * (_LOUDER * added / targets.std(0).clamp(min=1e-6)).clamp(min=1)
    left = targets - fixed @ own.T
    mean_row, mean_left = free.mean(0), left.mean(0)
    free, left = free - mean_row, left - mean_left
    gram = free.T @ free
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean() + 1e-12)
    solved = torch.linalg.solve(gram, free.T @ left)
    solved = solved - member @ (share.T @ solved)
    layer.weight.copy_((share @ own.T + solved).T.reshape(layer.weight.shape))
    if layer.bias is not None:
        layer.bias.copy_(mean_left - mean_row @ solved)


def _equations(layer: Any, x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor | None]:
    """What a layer sees at some places, (places, features x taps), and what it should give there, in float64.

    Group means are taken away from what it sees: a weight on the constraint takes them as they are to the output.
    """
    if isinstance(layer, lf.Linear):
        rows = center(x, layer.in_groups, dim=-1 if x.dim() > 2 else 1) if x.dim() == 2 else x
        return rows.flatten(0, -2).double(), wanted.flatten(0, -2).double()
    if layer.padding_mode == "mean" or isinstance(layer.padding, str):
        return x, None
    x = center(x, layer.in_groups)
    amounts = layer._reversed_padding_repeated_twice
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = pad(x, amounts, mode) if any(amounts) else x
    positions = wanted.shape[2] * wanted.shape[3]
    each = max(1, min(positions, _ROWS // len(x)))
    places = torch.linspace(0, positions - 1, each, device=x.device).long()
    rows = [F.unfold(one, layer.kernel_size, layer.dilation, 0, layer.stride)[..., places] for one in x.split(16)]
    return torch.cat(rows).transpose(1, 2).flatten(0, 1).double(), wanted.flatten(2)[..., places].transpose(
        1, 2
    ).flatten(0, 1).double()
