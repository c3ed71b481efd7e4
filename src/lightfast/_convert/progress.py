"""What a long conversion is doing, said on a terminal once it has taken some seconds."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Self, TextIO


class Progress:
    """Writes each step from the moment on that the whole has taken `after` seconds; nothing where nobody looks.

    Args:
        what: is being done.
        after: seconds of silence.
        stream: a terminal, or anything else that is then written to only if `always`.
        always: write also if the stream is no terminal.
    """

    def __init__(self, what: str, after: float = 3.0, stream: TextIO | None = None, always: bool = False) -> None:
        self.what, self.step, self.stream = what, "", sys.stderr if stream is None else stream
        self.shown = always or self.stream.isatty()
        self.speaks = threading.Event()
        self.timer = threading.Timer(after, self._begin)
        self.timer.daemon = True

    def __enter__(self) -> Self:
        if self.shown:
            self.timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.timer.cancel()

    def __call__(self, step: str) -> None:
        self.step = step
        if self.speaks.is_set():
            self._write()

    def _begin(self) -> None:
        self.speaks.set()
        self._write()

    def _write(self) -> None:
        self.stream.write(f"{self.what}: {self.step}\n")
        self.stream.flush()
