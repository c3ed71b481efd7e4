"""Converting the networks of a library, each in a process of its own: which convert, how long it takes, and why not."""

from __future__ import annotations

import math
import multiprocessing
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from lightfast._certify import Certificate
from lightfast._convert.blocks import ProjectedWeight
from lightfast._convert.converter import convert
from lightfast._convert.layers import LINEAR
from lightfast._convert.libraries import networks
from lightfast._convert.nodes import operation
from lightfast._convert.regions import varying_nodes
from lightfast._tracing import export, quiet
from lightfast.functional import add_offset
from lightfast.nn._constrained import Constrained

_PATIENCE = 30
"""How many times its limit a network may take by the clock, on a machine that does other things too."""


@dataclass(frozen=True)
class Row:
    """One network of a sweep.

    Args:
        name: in its library.
        family: in its library.
        built: whether the library could make it here, and run it.
        converts: whether it does, and the result runs.
        seconds: of processor time for the conversion, whether it succeeds or not.
        export_seconds: of one `torch.export` of the network in evaluation mode, before; 0 where that fails.
        verdict: the kinds of its outputs' responses, as certified: `invariant`, `equivariant`.
        constrained: how many linear layers and convolutions are constrained.
        layers: how many there are.
        error: how far the converted network is from its certificate, measured in float64 with another light for each of
            two images, relative to its largest output; None where that was not measured.
        reason: why it does not convert.
        limit: the seconds that it had.
    """

    name: str
    family: str = ""
    built: bool = True
    converts: bool = False
    seconds: float = 0.0
    export_seconds: float = 0.0
    verdict: tuple[str, ...] = ()
    constrained: int = 0
    layers: int = 0
    error: float | None = None
    reason: str = ""
    limit: float = 0.0


def sweep(library: str, names: Iterable[str], limit: float, memory: float, processes: int = 1) -> Iterator[Row]:
    """Convert networks of a library, each in a process of its own, and say how each went as soon as it has ended.

    Args:
        library: as for :func:`~lightfast._convert.libraries.networks`.
        names: of its networks.
        limit: seconds of processor time after which a network is given up; one that waits for something is given
            up after many times as many by the clock.
        memory: GiB that a network may take.
        processes: how many at a time, each with one thread.
    """
    context = _context(library)
    waiting, running = list(reversed(list(names))), dict[Connection, _Run]()
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                run = _Run(context, library, waiting.pop(), limit, memory)
                running[run.pipe] = run
            nearest = min(run.ends for run in running.values())
            for pipe in wait(list(running), timeout=max(0.0, nearest - time.monotonic())):
                assert isinstance(pipe, Connection)
                running[pipe].receive()
            for pipe, run in list(running.items()):
                if run.is_over():
                    yield running.pop(pipe).row
    finally:
        for run in running.values():
            run.process.kill()


class _Run:
    """A process that converts one network, and what it has said so far."""

    def __init__(
        self, context: ForkServerContext | SpawnContext, library: str, name: str, limit: float, memory: float
    ) -> None:
        pipe, told = context.Pipe(duplex=False)
        # Of another class on Windows.
        self.pipe: Any = pipe
        self.row = Row(name, reason=f"takes longer than {limit:g} seconds", limit=limit)
        self.ends, self.told, self.done = time.monotonic() + _PATIENCE * limit, False, False
        self.process: BaseProcess = context.Process(target=_convert_one, args=(library, name, limit, memory, told))
        self.process.start()
        told.close()

    def receive(self) -> None:
        """Take what the process says; nothing more comes from one that has ended."""
        try:
            self.row, self.told = self.pipe.recv(), True
        except EOFError:
            self.done = True

    def is_over(self) -> bool:
        late = time.monotonic() >= self.ends
        if not late and not self.done:
            return False
        if late:
            self.process.kill()
        self.process.join()
        self.pipe.close()
        if not self.told and late:
            self.row = replace(self.row, reason="the process did not end, and used no time")
        elif not self.told and self.process.exitcode == -signal.SIGKILL:
            self.row = replace(self.row, reason="the process was killed, for memory most likely")
        elif not self.told and self.process.exitcode != -signal.SIGXCPU:
            self.row = replace(self.row, reason=f"the process ended with code {self.process.exitcode}")
        return True


def _context(library: str) -> ForkServerContext | SpawnContext:
    """Processes that start with torch and the library imported, where the system can."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, library.partition(":")[0]])
    return context


def _convert_one(library: str, name: str, limit: float, memory: float, tell: Connection) -> None:
    """Convert one network, in a process of its own, and tell the row twice: before and after it was measured."""
    torch.set_num_threads(1)
    _set_limits(limit, memory)
    network = networks(library)[name]
    row = Row(name, network.family, limit=limit)
    start = time.process_time()
    try:
        torch.manual_seed(0)
        try:
            with quiet(), torch.no_grad():
                model, example = network.build()
                if not _floats(deepcopy(model).eval()(example)):
                    raise ValueError("it answers with nothing")
        except Exception as error:
            tell.send(replace(row, built=False, reason=f"cannot be built: {_sentence(error)}"))
            return
        start = time.process_time()
        with quiet(), suppress(Exception):
            export(deepcopy(model).eval(), (torch.cat([example, example]),), {})
            row = replace(row, export_seconds=_since(start))
        start = time.process_time()
        with quiet():
            net = convert(model, example)
        row = replace(row, converts=True, seconds=_since(start), **_findings(net))
    except Exception as error:
        tell.send(replace(row, seconds=_since(start), reason=_sentence(error)))
        return
    tell.send(row)
    try:
        with quiet(), torch.no_grad():
            deepcopy(net).eval()(torch.cat([example, example])[:2])
    except Exception as error:
        tell.send(replace(row, converts=False, reason=f"its result does not run: {_sentence(error)}"))
        return
    with quiet(), suppress(Exception):
        error = measured_error(net, example)
        # Outputs of an untrained network may be infinite, which measures nothing.
        tell.send(replace(row, error=error if math.isfinite(error) else None))


def _findings(net: nn.Module) -> dict[str, Any]:
    report: Any = net.conversion
    kinds = tuple(dict.fromkeys(output.response.kind for output in report.certificate.outputs))
    constrained, layers = count_layers(net)
    return {"verdict": kinds, "constrained": constrained, "layers": layers}


def count_layers(net: nn.Module) -> tuple[int, int]:
    """How many linear layers and convolutions of a converted network are constrained, and how many see the image.

    A layer whose weight is computed in `forward` has no module of its own, and is one where it is called. Layers that
    make something of positions alone, such as a bias of attention, have nothing to do with the light. Of a network that
    was invariant already, and is left as it is, only those layers count that are constrained.
    """
    seen: list[nn.Module] = [*net.modules()]
    calls: list[fx.Node] = []
    if isinstance(net, fx.GraphModule):
        calls = [*varying_nodes(net.graph)]
        called = dict.fromkeys(str(node.target) for node in calls if node.op == "call_module")
        seen = [module for path in called for module in net.get_submodule(path).modules()]
    layers = [module for module in seen if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)]
    constrained = sum(isinstance(module, Constrained) for module in layers)
    projected = sum(isinstance(module, ProjectedWeight) for module in net.modules())
    if not isinstance(net, fx.GraphModule):
        return constrained, constrained
    return constrained + projected, len(layers) + sum(operation(node) in LINEAR for node in calls)


@torch.no_grad()
def measured_error(net: nn.Module, example: Tensor) -> float:
    """How far the outputs of a converted network are from what its certificate says, under two lights at once.

    `max |y(x + G Δ) - y(x) - R Δ| / max(1, max |y|)` in float64 and evaluation mode, the largest of all outputs. A
    network that draws random numbers draws the same ones for both.
    """
    report: Any = net.conversion
    certificate: Certificate = report.certificate
    net = deepcopy(net).double().eval()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, *example.shape[1:], generator=generator, dtype=torch.float64)
    light = 2 * torch.rand(2, 3, generator=generator, dtype=torch.float64) - 1

    def outputs_of(image: Tensor) -> list[Tensor]:
        torch.manual_seed(0)
        return _floats(net(image))

    before, after = map(outputs_of, (x, add_offset(x, light, 3)))
    errors = []
    for output, was, now in zip(certificate.outputs, before, after, strict=True):
        if (groups := output.response.groups) is not None and not output.invariant:
            images, features = output.response.images_axis or 0, output.response.features_axis or 1
            front = add_offset(was.movedim(images, 0), light, groups, features + (features < images))
            was = front.movedim(0, images)
        errors.append(float((now - was).abs().max() / was.abs().max().clamp(min=1)))
    return max(errors)


def _floats(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _set_limits(seconds: float, gigabytes: float) -> None:
    """Let allocations beyond the limit fail, and the process end when it has had its time, where the system can."""
    with suppress(ImportError):
        import resource

        data, cpu = int(gigabytes * 2**30), math.ceil(seconds)
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))


def _since(start: float) -> float:
    return round(time.process_time() - start, 2)


def _sentence(error: Exception) -> str:
    """The first line of what an error says, short enough for a table."""
    said = str(error).strip().split("\n")[0]
    return (said or type(error).__name__)[:200].replace("|", "/")
