"""Whether a graph computes what its network computes: both run on random inputs, in evaluation mode."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from lightfast._convert.exporting import Shape, of_images, resized
from lightfast._tracing import quiet

_NUMBERS = (2, 3, 4)
"""Of images: few, since they take time, and several, since some networks take even numbers alone."""

_TOLERANCE = 1e-3
"""By how much results may differ, relative to the largest, since operations may have been put in another order."""

_TIES = 0.01
"""The part of a result in whole numbers that may differ, since a maximum of equals depends on rounding."""

_LARGE = 128

EXAMPLE = -1
"""The size of the example, among the sizes that a witness knows."""


def _odd(size: int) -> int:
    """Half as large, which takes a fourth of the time, or more where half would leave next to nothing."""
    return size // 2 | 1 if size >= _LARGE else size + max(size // 4, 2) | 1


def _even(size: int) -> int:
    """For networks that halve images several times: likewise, in multiples of 32."""
    return size // 64 * 32 if size >= _LARGE else 2 * size


class _Seen(NamedTuple):
    """What came out, and whether random numbers were drawn on the way."""

    result: Any
    drew: bool


class Witness:
    """What a network computes in evaluation mode.

    A parameter that is one number everywhere, such as the zeros that residual branches start from, would hide what it
    is multiplied with. It has random values here, both in the network and in graphs.

    Args:
        model: left as it is.
        args: an example of its inputs, whose shapes count.
        kwargs: likewise, by name.
        dim: the features' axis of the first input.
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dim: int) -> None:
        self._model, self._inputs = model, (args, kwargs)
        self._count = next(leaf.shape[0] for leaf in pytree.tree_leaves(self._inputs) if isinstance(leaf, Tensor))
        self._sizes = [resized(self._inputs, dim, to) for to in (_odd, _even)]
        self._values = {id(p): _varied(p) for p in model.parameters() if _is_constant(p)}
        self._seen: dict[tuple[int, int], _Seen | Exception] = {}
        self._at_random = True

    def takes(self, made_for: int | None, any_number: bool, any_size: bool) -> tuple[int, int]:
        """A number of images and a size that the network takes.

        Args:
            made_for: how many images a graph was made for. Another number is better.
            any_number: whether the graph is for any number of images, or for that of two images alone.
            any_size: whether the graph may be for any size. Another size than the example's is better then, whose
                numbers may be written into the graph.
        """
        numbers = sorted(_NUMBERS, key=lambda number: number == made_for) if any_number else [2]
        sizes, failure = (*range(len(self._sizes)), EXAMPLE) if any_size else (EXAMPLE,), None
        for at_random in (self._at_random, False):
            self._at_random = at_random
            for images in numbers:
                for size in sizes:
                    failure = self._of_model(images, size)
                    if isinstance(failure, _Seen):
                        return images, size
            self._seen.clear()
        assert isinstance(failure, Exception)
        raise ValueError(f"{type(self._model).__name__} does not run on inputs like the example: {_sentence(failure)}")

    def differs(self, network: fx.GraphModule, images: int, size: int, training: bool) -> str:
        """How what a graph computes differs: an empty string if not at all, or if the network takes no such inputs.

        Args:
            network: a graph of pure operations, seen in training or in evaluation.
            images: how many.
            size: of them, as :meth:`takes` said, or `EXAMPLE`.
            training: whether it was seen in training. Its norms and dropout then do what they do in evaluation.
        """
        expected = self._of_model(images, size)
        if not isinstance(expected, _Seen):
            return ""
        interpreter = (_InEvaluation if training else _AsItIs)(network, self._values)
        given = self._run(lambda *inputs: interpreter.run(*pytree.tree_leaves(inputs)), images, size)
        what = f"for {images} image{'s' * (images > 1)}{' of another size' * (size != EXAMPLE)}"
        if isinstance(given, Exception):
            return f"{what} it fails: {_sentence(given)}"
        found = _difference(expected.result, given.result, values=not (expected.drew and given.drew))
        return f"{what} it gives {found}" if found else ""

    def _of_model(self, images: int, size: int) -> _Seen | Exception:
        if (images, size) not in self._seen:
            with quiet():
                # Of its own buffers, since some networks write into them, or keep tensors between calls.
                parameters = {id(p): self._values.get(id(p), p) for p in self._model.parameters()}
                model = deepcopy(self._model, parameters).eval()  # pyright: ignore[reportArgumentType]
            self._seen[images, size] = self._run(lambda args, kwargs: model(*args, **kwargs), images, size)
        return self._seen[images, size]

    def _run(self, function: Any, images: int, size: int) -> _Seen | Exception:
        def shape(leaf: Tensor) -> Any:
            sizes = list(leaf.shape if size == EXAMPLE else self._sizes[size](leaf))
            return [*of_images(leaf, self._count, images)[:1], *sizes[1:]]

        devices = {leaf.device for leaf in pytree.tree_leaves(self._inputs) if isinstance(leaf, Tensor)}
        with quiet(), torch.no_grad(), torch.random.fork_rng([d.index for d in devices if d.type == "cuda"]):
            torch.manual_seed(0)
            inputs = pytree.tree_map(partial(_like, shape=shape, at_random=self._at_random), self._inputs)
            torch.manual_seed(1)
            before = torch.get_rng_state()
            try:
                result = function(*inputs)
            except Exception as error:
                return error
            return _Seen(result, not torch.equal(before, torch.get_rng_state()))


def _sentence(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]


def _is_constant(parameter: Tensor) -> bool:
    if not parameter.is_floating_point() or not parameter.numel() or parameter.is_meta:
        return False
    least, most = parameter.detach().aminmax()
    return bool(least == most)


def _varied(parameter: Tensor) -> Tensor:
    """Values from 0.5 to 1.5, with which networks still give finite numbers."""
    generator = torch.Generator().manual_seed(parameter.numel())
    values = torch.rand(parameter.shape, generator=generator).add(0.5).to(parameter.detach())
    return nn.Parameter(values, parameter.requires_grad)


def _like(leaf: Any, shape: Shape, at_random: bool) -> Any:
    """An input of another shape: random numbers, or the nearest of its own where these are indices or masks."""
    if not isinstance(leaf, Tensor):
        return leaf
    if leaf.is_floating_point() and at_random:
        return torch.randn(list(shape(leaf))).to(leaf.detach())
    for axis, size in enumerate(shape(leaf)):
        index = torch.arange(size, device=leaf.device) * leaf.shape[axis] // max(size, 1)
        leaf = leaf.detach().index_select(axis, index)
    return leaf.clone()


class _AsItIs(fx.Interpreter):
    """Runs a graph with other values of some parameters."""

    def __init__(self, network: fx.GraphModule, values: dict[int, Tensor]) -> None:
        super().__init__(network)
        self.values = values

    def fetch_attr(self, target: str) -> Any:
        held = super().fetch_attr(target)
        return self.values.get(id(held), held)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return deepcopy(self.fetch_attr(target)).eval()(*args, **kwargs)


class _InEvaluation(_AsItIs):
    """Runs a graph that was seen in training as its layers will be in evaluation."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(target, OpOverload):
            names = [argument.name for argument in target._schema.arguments]
            given = dict(zip(names, args, strict=False))
            # Norms without running statistics always take those of the batch.
            keeps = "running_mean" in names and given["running_mean"] is None
            switches = [] if keeps else [n for n in ("train", "training", "use_input_stats", "dropout_p") if n in names]
            for name in switches:
                if name in given or name in kwargs:
                    kwargs = {**kwargs, name: 0.0 if name == "dropout_p" else False}
                    given.pop(name, None)
            if switches:
                return target(**{**given, **kwargs})
        return super().call_function(target, args, kwargs)


def _difference(expected: Any, given: Any, values: bool) -> str:
    (ones, tree), (others, other_tree) = map(pytree.tree_flatten, (expected, given))
    if tree != other_tree:
        return f"{len(others)} outputs in another structure than the network's {len(ones)}"
    for one, other in zip(ones, others, strict=True):
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            if type(one) is not type(other) or one != other:
                return f"{other}, where the network gives {one}"
        elif (one.shape, one.dtype) != (other.shape, other.dtype):
            return (
                f"{other.dtype} of shape {tuple(other.shape)}, where the network gives {one.dtype} of shape "
                f"{tuple(one.shape)}"
            )
        elif values and not one.is_meta and not _are_close(one, other):
            return "other values than the network"
    return ""


def _are_close(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point() and not one.is_complex():
        return not one.numel() or float((one != other).double().mean()) <= _TIES
    finite = one[one.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    tolerance = max(_TOLERANCE, torch.finfo(one.dtype).eps ** 0.5) * scale
    return torch.allclose(one, other, rtol=0.0, atol=tolerance, equal_nan=True)
