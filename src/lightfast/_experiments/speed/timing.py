"""Measuring one thing beside another: warm, interleaved, and as a whole distribution."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

_WARMUP = 3
_Name = TypeVar("_Name")


class Work:
    """Something to be done again and again: eagerly, or by replaying a CUDA graph of it.

    Args:
        once: does it once, without reading anything back from the device.
        device: where.
        graph: whether to capture it in a CUDA graph.
    """

    def __init__(self, once: Callable[[], Any], device: torch.device, graph: bool) -> None:
        self.once, self.device = once, device
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type != "cuda":
            once()
            return
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(_WARMUP):
                once()
        torch.cuda.synchronize()
        if graph:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                once()
            torch.cuda.synchronize()

    def seconds(self, times: int, clock: Callable[[], float] = time.perf_counter) -> float:
        """How long it takes on average, over so many times; by this clock, where it is done on the CPU."""
        again = self.once if self._graph is None else self._graph.replay
        if self.device.type != "cuda":
            start = clock()
            for _ in range(times):
                again()
            return (clock() - start) / times
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self._stream):
            start.record()
            for _ in range(times):
                again()
            end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000 / times


@dataclass(frozen=True)
class Pace:
    """How long to measure, and by which clock.

    Args:
        seconds: after which no further round is begun.
        rounds: at least and at most so many.
        shortest: a sample repeats its work until it takes so many seconds.
        clock: `time.perf_counter`, or `time.process_time` on a CPU that others use too, with one thread.
    """

    seconds: float = 5.0
    rounds: tuple[int, int] = (5, 25)
    shortest: float = 0.01
    clock: Callable[[], float] = time.perf_counter


def interleaved(works: Mapping[_Name, Work], pace: Pace) -> dict[_Name, list[float]]:
    """Time all works in turn, round after round, so that what disturbs the machine disturbs all of them.

    Returns:
        For each work, by name, the seconds it took in each round.
    """
    fewest, most = pace.rounds
    start = time.perf_counter()
    once = {name: max(work.seconds(1, pace.clock), 1e-7) for name, work in works.items()}
    times = {name: max(1, round(pace.shortest / seconds)) for name, seconds in once.items()}
    # Where nothing is repeated within a sample, these were samples already.
    whole = all(number == 1 for number in times.values())
    samples = {name: [seconds] if whole else [] for name, seconds in once.items()}
    for number in range(int(whole), most):
        if number >= fewest and time.perf_counter() - start > pace.seconds:
            break
        for name, work in works.items():
            samples[name].append(work.seconds(times[name], pace.clock))
    return samples


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    [2.0, 3.0, 4.0]
    """
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * list(values)


def ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Quartiles of the ratio in each round: of two works that were timed one after the other.

    >>> ratios([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    [2.0, 2.0, 2.0]
    """
    return quartiles([value / other for value, other in zip(values, base, strict=True)])


def rounded(values: Sequence[float], times: int = 1) -> list[float]:
    """As records hold them; with 1000, seconds in milliseconds."""
    return [round(times * value, 4) for value in values]


def peak_memory(once: Callable[[], Any], model: nn.Module, device: torch.device) -> int:
    """Bytes at the highest point of a training step: activations, gradients, and the model itself; it is warm already.

    On a GPU from torch's allocator. On a CPU from every allocation that the profiler saw torch make.
    """
    model.zero_grad(set_to_none=True)
    gc.collect()
    held = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    if device.type == "cuda":
        # Libraries take a workspace when they are first used in a stream, which is none of the model's memory.
        once()
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        once()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before + held
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        once()
    results: Any = profiler.profiler
    tree = results.kineto_results.experimental_event_tree()
    changes = sorted((e.start_time_ns, e.extra_fields.alloc_size) for e in _walk(tree) if e.name == "[memory]")
    now = highest = 0
    for _, change in changes:
        now += change
        highest = max(highest, now)
    return highest + held


def _walk(events: Any) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _walk(event.children)
