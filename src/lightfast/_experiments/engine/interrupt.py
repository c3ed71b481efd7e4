"""Ctrl-C and SIGTERM: a training that is told to stop does so between two steps, with a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightfast._experiments.engine import processes

__all__ = ["Interrupted", "listening"]


class Interrupted(RuntimeError):
    """A training was told to stop, and has; the message says what is kept, and how to go on.

    Args:
        message: the sentence.
        number: of the signal.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number, self.exit_code = number, 128 + number


@contextmanager
def listening() -> Iterator[Callable[[], int]]:
    """Inside this context the first SIGINT or SIGTERM is only noted: the function that is given tells its number, or 0.

    The second acts as it always does. Several processes that train together are ended by `torchrun` and its own signals
    (see :mod:`lightfast._experiments.engine.processes`), and Python has signals for its main thread alone: there,
    nothing is noted.
    """
    noted = 0
    if processes.count() > 1 or threading.current_thread() is not threading.main_thread():
        yield lambda: noted
        return
    owner = os.getpid()

    def note(number: int, _: Any) -> None:
        nonlocal noted
        signal.signal(number, before[number])
        if os.getpid() == owner:
            noted = noted or number
        elif number == signal.SIGTERM:
            # A worker that reads data ahead is ended by its parent, which alone answers to Ctrl-C.
            os.kill(os.getpid(), number)

    # What is ignored, as shells do for commands in the background, stays so.
    heard = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) != signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, note) or signal.SIG_DFL for number in heard}
    try:
        yield lambda: noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
