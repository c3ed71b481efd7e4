"""Exporting a network once, for any batch, and for any positions where sizes are written into it."""

from __future__ import annotations

import inspect
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import is_concrete_int
from torch.fx.node import map_aggregate
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from lightfast._tracing import export, quiet, two_images

Module = TypeVar("Module", bound=nn.Module)

_ATTENTION = ("scaled_dot_product_attention", "multi_head_attention_forward", "matmul", "bmm", "baddbmm", "einsum")

_PATIENCE, _SECONDS = 20.0, 1.0
"""How long exporting for any positions may take: so many times as running without values, and some seconds."""

_MANY = 1009
"""A number of images that no other size of a network is a multiple of, so that sizes made of it are recognized."""

_ENDLESS = 2**31
"""What no bound on a size reaches."""

FIXED_BATCH = "the result takes only batches of two images, since the network fixes sizes of its own"
FIXED_SIZE = "the result is for images of the example's size only, since it has numbers that are made of that size"
SEVERAL_IMAGES = "the result is for two images or more, since the network does something else with one alone"


class Exported(NamedTuple):
    """A network as a program.

    Args:
        program: of ATen operations.
        batch: the number of images that it was exported for, which :func:`name_batch` takes out of it; None where sizes
            are symbols, or of two images alone.
        fixed: sentences about sizes of the example that others cannot take the place of.
    """

    program: ExportedProgram
    batch: int | None
    fixed: tuple[str, ...]


class Way(NamedTuple):
    """One way to export a network.

    Args:
        export: does so, or raises ValueError with the reason.
        any_size: whether positions are symbols.
    """

    export: Callable[[], Exported]
    any_size: bool = False


def sharing_copy(module: Module) -> Module:
    """A copy that has the module's own parameters and buffers, which nothing writes into."""
    with quiet():
        return deepcopy(module, {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())})


def ways(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dim: int, training: bool = True
) -> Iterator[Way]:
    """The ways to export a copy of the model in one mode, the quickest first, and the one that assumes least last.

    What comes out is to be compared with the model: sizes that are computed within torch's own functions, or that
    decide what is done, are not seen here.
    """

    def copied() -> nn.Module:
        # Some networks keep tensors between calls, which after an export are without values.
        return sharing_copy(model).train(training)

    two, named, images = two_images(args, kwargs)
    inputs, start = (args, kwargs), time.process_time()
    sizes = _look(copied, (two, named))
    limit = _PATIENCE * (time.process_time() - start) + _SECONDS
    sized = sizes is not None and sizes.differ(_look_at_larger(copied, (two, named), dim, sizes))
    fixed = (FIXED_SIZE,) if sized else ()
    of_many = partial(of_images, images=images, number=_MANY)

    def for_any_size() -> Exported:
        own, (many, many_named) = copied(), _of_many_images(inputs, of_many)
        positions = _dynamic(model, many, many_named, range(1, 8))
        with _at_most(limit, own):
            program = _whole(export(own, many, many_named, dynamic_shapes=positions))
        return Exported(program, _MANY, () if _takes_any_size(program, dim) else (FIXED_SIZE,))

    def for_many() -> Exported:
        # Exporting may have made symbols of the sizes of other inputs without values.
        own, (many, many_named) = copied(), _of_many_images(inputs, of_many)
        return Exported(_whole(export(own, many, many_named)), _MANY, fixed)

    symbolic: list[Exported] = []

    def for_any_batch() -> Exported:
        try:
            program = export(copied(), two, named, dynamic_shapes=_dynamic(model, two, named, range(1)))
        except ValueError:
            program = export(copied(), two, named)
        symbolic.append(Exported(program, None, (*_about_batch(program), *fixed)))
        return symbolic[0]

    if (
        sizes is not None
        and not _is_multiple(chain(_shapes(model), _shapes_of((two, named))))
        and sizes.grow(_look(copied, inputs, of_many, sizes, most=len(sizes.calls)))
    ):
        # Symbolic sizes of windows and tokens would take minutes; those of maps a few times as long as numbers.
        if sized and not sizes.attends:
            yield Way(for_any_size, any_size=True)
        # A batch of a number that is easily recognized takes a part of the time that a symbol takes.
        yield Way(for_many)
        if not sized and not sizes.attends:
            yield Way(for_any_size, any_size=True)
    yield Way(for_any_batch)
    if symbolic:
        yield Way(lambda: symbolic[0]._replace(program=taken_apart(symbolic[0].program)))


def depends_on_mode(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the network calls other functions in training than in evaluation."""
    looks = [_look(lambda mode=mode: sharing_copy(model).train(mode), (args, kwargs)) for mode in (True, False)]
    names = [[name for name, _ in look.calls] if look else None for look in looks]
    return names[0] != names[1]


def taken_apart(program: ExportedProgram) -> ExportedProgram:
    """The program without writes into tensors, by torch itself, which takes as long as exporting."""
    with quiet():
        return program.run_decompositions({})


def _about_batch(program: ExportedProgram) -> tuple[str, ...]:
    """What is to be said of the numbers of images that a program with a symbol for it takes."""
    numbers = [_leading(recorded) for recorded in _inputs(program)]
    if all(map(is_concrete_int, numbers)):
        return (FIXED_BATCH,)
    most = [bound for number in numbers if (bound := _most(program, number)) is not None]
    return tuple(
        f"the result is for at most {bound} images, since the network does something else with more"
        for bound in sorted(most)[:1]
    )


def _most(program: ExportedProgram, size: int | torch.SymInt) -> int | None:
    """The bound that a decision of the network has put on a symbol."""
    known = program.range_constraints.get(size.node.expr) if isinstance(size, torch.SymInt) else None
    return int(known.upper) if known is not None and bool(known.upper < _ENDLESS) else None


def _inputs(program: ExportedProgram) -> list[Any]:
    """What is recorded of the inputs."""
    names = program.graph_signature.user_inputs
    return [node.meta.get("val") for node in program.graph.nodes if node.name in names]


def _takes_any_size(program: ExportedProgram, dim: int) -> bool:
    """Whether all positions of the first input are symbols without bound, none of which torch took for a number."""
    first = next(recorded for recorded in _inputs(program) if isinstance(recorded, Tensor))
    sizes = [size for axis, size in enumerate(first.shape) if axis not in (0, dim % first.dim())]
    return not any(is_concrete_int(size) or _most(program, size) is not None for size in sizes)


def _whole(program: ExportedProgram) -> ExportedProgram:
    """The program, which has no constants without values: torch looks for them itself where inputs have values."""
    if any(isinstance(constant, FakeTensor) for constant in program.constants.values()):
        raise ValueError("the network holds what cannot be traced, such as tensor.data")
    return program


def name_batch(network: fx.GraphModule, batch: int) -> None:
    """Put the size of the input in the place of sizes that are multiples of the number of images."""
    graph = network.graph
    first = next(n for n in graph.nodes if n.op == "placeholder" and _leading(n.meta.get("val")) == batch)
    named: dict[int, fx.Node] = {}

    def name(leaf: Any) -> Any:
        if type(leaf) is not int or leaf == 0 or leaf % batch:
            return leaf
        if leaf not in named:
            after = first if leaf == batch else name(batch)
            with graph.inserting_after(after):
                if leaf == batch:
                    named[leaf] = graph.call_function(torch.ops.aten.sym_size.int, (first, 0))
                else:
                    named[leaf] = graph.call_function(operator.mul, (after, leaf // batch))
            named[leaf].meta["val"] = leaf
        return named[leaf]

    for node in list(graph.nodes):
        if node.op == "call_function":
            node.args, node.kwargs = (map_aggregate(part, name) for part in (node.args, node.kwargs))


def _leading(recorded: Any) -> int | torch.SymInt:
    return recorded.shape[0] if isinstance(recorded, Tensor) and recorded.dim() else 0


@contextmanager
def _at_most(seconds: float, model: nn.Module) -> Iterator[None]:
    """Raise an error from the next call of one of the model's modules, once so much processor time has gone by.

    Where sizes are multiplied and divided, torch can reason about symbols for hours.
    """
    ends, own = time.process_time() + seconds, set(model.modules())

    def check(module: nn.Module, args: Any) -> None:
        if module in own and time.process_time() > ends:
            raise TimeoutError("following the sizes of the image takes too long")

    handle = register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()


@dataclass(eq=False)
class _Sizes(TorchFunctionMode):
    """Notices attention, and the numbers that functions of torch are given.

    Args:
        most: how many calls there may be; some networks go through their images one by one.
        on_meta: whether tensors are of the device `meta`; a look that is compared with another is taken likewise.
        attends: whether there is attention.
        calls: the name of each function, and its numbers.
    """

    most: int | None = None
    on_meta: bool = True
    attends: bool = False
    calls: list[tuple[str, tuple[float, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def differ(self, other: _Sizes | None) -> bool:
        """Whether numbers are others where the image has another size; not where the network insists on one size."""
        return other is not None and other.calls != self.calls

    def grow(self, many: _Sizes | None) -> bool:
        """Whether every number is the same for many images as for two, or grows with their number."""

        def follows(two: float, of_many: float) -> bool:
            whole = isinstance(two, int) and isinstance(of_many, int)
            return two == of_many or (whole and 2 * of_many == _MANY * two)

        if many is None or [name for name, _ in many.calls] != [name for name, _ in self.calls]:
            return False
        pairs = zip(self.calls, many.calls, strict=True)
        return all(len(a) == len(b) and all(map(follows, a, b)) for (_, a), (_, b) in pairs)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        self.attends = self.attends or any(key in name for key in _ATTENTION)
        self.calls.append((name, tuple(_numbers(pytree.tree_leaves((args, kwargs))))))
        if self.most is not None and len(self.calls) > self.most:
            raise RuntimeError("the network goes through its images one by one")
        return func(*args, **(kwargs or {}))


def _numbers(leaves: Iterable[Any]) -> Iterator[float]:
    for leaf in leaves:
        if isinstance(leaf, slice):
            yield from _numbers((leaf.start, leaf.stop, leaf.step))
        elif isinstance(leaf, int | float | np.integer):
            yield leaf if isinstance(leaf, float) else int(leaf)


Shape = Callable[[Tensor], Sequence[int]]
"""The shape of what takes the place of an input."""


def _look(
    copied: Callable[[], nn.Module],
    inputs: Any,
    shape: Shape = lambda leaf: leaf.shape,
    before: _Sizes | None = None,
    most: int | None = None,
) -> _Sizes | None:
    """What a model does with sizes, run on tensors without values, in a part of an export's time; None if it fails.

    Tensors of the device `meta` are quickest; networks that name a device take those that only claim to be on one.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def as_meta(leaf: Any) -> Any:
        return leaf.detach().to("meta") if isinstance(leaf, Tensor) else leaf

    def as_fake(leaf: Any) -> Any:
        return fake.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf

    for on_meta, mode, without_values in ((True, torch.device("meta"), as_meta), (False, fake, as_fake)):
        if before is not None and before.on_meta is not on_meta:
            continue
        model, sizes = copied(), _Sizes(most, on_meta)
        own = dict(chain(model.named_parameters(), model.named_buffers()))
        with quiet(), suppress(Exception), torch.no_grad(), mode:
            state = pytree.tree_map(without_values, own)
            args, kwargs = _without_values(inputs, shape, "meta" if on_meta else None)
            with sizes:
                torch.func.functional_call(model, state, args, kwargs)
            return sizes
    return None


def _look_at_larger(copied: Callable[[], nn.Module], inputs: Any, dim: int, before: _Sizes) -> _Sizes | None:
    """At about twice as many positions along each axis: an odd number, by which decisions show, if the network can."""
    odd = _look(copied, inputs, resized(inputs, dim, lambda size: 2 * size + 1), before)
    return odd or _look(copied, inputs, resized(inputs, dim, lambda size: 2 * size), before)


def resized(inputs: Any, dim: int, to: Callable[[int], int]) -> Shape:
    """Another number of positions along each axis, where tensors have as many axes as the first."""
    rank = next(leaf.dim() for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor))

    def shape(leaf: Tensor) -> Sequence[int]:
        kept = range(leaf.dim()) if leaf.dim() != rank else (0, dim % rank)
        return [size if axis in kept else to(size) for axis, size in enumerate(leaf.shape)]

    return shape


def of_images(leaf: Tensor, images: int, number: int) -> Sequence[int]:
    """The shape with another number of images, where it is of images."""
    return [number, *leaf.shape[1:]] if leaf.dim() and leaf.shape[0] == images else leaf.shape


def _without_values(inputs: Any, shape: Shape, device: str | None = None) -> Any:
    """Tensors of these shapes in the place of inputs, made in the mode or on the device that holds no values."""

    def empty(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return torch.empty(list(shape(leaf)), dtype=leaf.dtype, device=device or leaf.device)

    return pytree.tree_map(empty, inputs)


def _of_many_images(inputs: Any, shape: Shape) -> Any:
    """Inputs without values for many images; what is not of images stays as it is."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def resize(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or list(shape(leaf)) == list(leaf.shape):
            return leaf
        with mode:
            return _without_values(leaf, shape)

    return pytree.tree_map(resize, inputs)


def _shapes(model: nn.Module) -> Iterator[int]:
    return (size for tensor in chain(model.parameters(), model.buffers()) for size in tensor.shape)


def _shapes_of(inputs: Any) -> Iterator[int]:
    return (size for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor) for size in leaf.shape)


def _is_multiple(sizes: Iterable[int]) -> bool:
    """Whether a network has sizes of its own that could be taken for those of many images."""
    return any(size and size % _MANY == 0 for size in sizes)


def _dynamic(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], axes: Iterable[int]) -> Any:
    """Which sizes may change: the given axes of every tensor, by the names of the arguments of `forward`."""

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        return {axis: Dim.AUTO for axis in axes if axis < leaf.dim()}

    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    return {name: pytree.tree_map(of, argument) for name, argument in bound.items()}
