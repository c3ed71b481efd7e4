"""Many files at a time, each in a process of its own, that all end at once when they are told to."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["cores", "in_processes"]

# Fewer tasks are done before other processes have started.
_WORTH_PROCESSES = 4

# Seconds in which a process that is told to end cleans up after itself.
_PATIENCE = 0.5


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_processes(
    work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], jobs: int, folder: Path
) -> Iterator[tuple[int, Any]]:
    """Do `work(*task)` for each task, `jobs` at a time: the number of the task and what came of it, as they are done.

    What came of it may be an exception. If whoever asks is interrupted, the processes end within a second, and what
    they had half written under `folder` is removed.

    Args:
        work: a function of a module.
        tasks: its arguments, which can be pickled.
        jobs: how many processes; with one, or a few tasks, everything is done here.
        folder: where the processes write.
    """
    if jobs == 1 or len(tasks) < _WORTH_PROCESSES:
        for number, task in enumerate(tasks):
            yield number, _outcome(work, *task)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    # A copy of this process has imported everything; other systems than Linux cannot copy one safely.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), context, _begin)
    try:
        with _interruptions() as interrupted:
            numbers = {pool.submit(_outcome, work, *task): number for number, task in enumerate(tasks)}
            for future in as_completed(numbers):
                if interrupted.is_set():
                    raise KeyboardInterrupt
                number = numbers.pop(future)
                try:
                    yield number, future.result()
                except BrokenProcessPool:
                    if interrupted.is_set():
                        raise KeyboardInterrupt from None
                    raise RuntimeError(
                        "a process ended before its time, perhaps for want of memory: use fewer at a time, with --jobs"
                    ) from None
    except BaseException:
        _end(folder)
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _interruptions() -> Iterator[threading.Event]:
    """Whether there was an interruption: Python loses one that comes while it runs a callback of its own."""
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return

    def interrupt(*_: Any) -> NoReturn:
        told.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield told
    finally:
        signal.signal(signal.SIGINT, before)


def _outcome(work: Callable[..., Any], *task: Any) -> Any:
    try:
        return work(*task)
    except (ValueError, OSError, ImportError, MemoryError) as error:
        # An exception that holds others, or whose class takes more than a text, may not travel between processes.
        return type(error)(str(error)) if len(error.args) == 1 else ValueError(str(error))


def _begin() -> None:
    """In each process: interruptions are for the parent, and its word to end lets files be cleaned up."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    torch.set_num_threads(1)


def _leave(*_: Any) -> NoReturn:
    sys.exit(1)


def _end(folder: Path) -> None:
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    patience = time.monotonic() + _PATIENCE
    for child in children:
        child.join(max(0.0, patience - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join()
        for partial in folder.rglob(f".*.{child.pid}.partial"):
            partial.unlink(missing_ok=True)
