"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Line breaks are between values alone: JSON writes those inside a text as two characters.
_INNERMOST = re.compile(r"([\[{])\n\s*([^\[\]{}]*?)\n\s*([\]}])")
_SHORT = 160

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DiskFull(OSError):
    """There was no room for a file; nothing of it is left, and what was there before still is."""

    def __init__(self, path: Path, number: int) -> None:
        super().__init__(
            number,
            f"there is no room for {path} ({os.strerror(number)}): nothing of it was written, and what was there "
            "before still is; make room, or name another folder",
        )

    def __str__(self) -> str:
        return str(self.strerror)


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[Path]:
    """A hidden file to write beside `path`, which it replaces in one go at the end, or disappears after an error.

    Args:
        path: its folder exists.
        durable: force it to the disk first, so that a machine that stops loses nothing, either.

    Raises:
        DiskFull: there is no room for it.
        OSError: another error of the system, also one that a library in Rust met.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        if durable:
            _flush(partial)
        os.replace(partial, path)
        if durable:
            _flush(path.parent)
    except Exception as error:
        number = _system_error(error)
        if number in _FULL and not isinstance(error, DiskFull):
            raise DiskFull(path, number) from error
        if number and not isinstance(error, OSError):
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write all of the file or nothing: a reader never sees half of it."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def write_json(path: Path, content: Any) -> None:
    """Write JSON to be read by people too, the whole file or nothing."""
    write_whole(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    """JSON to be read by people too: short lists and objects that hold no others are on one line.

    >>> print(json_bytes({"a": {"mean": 1.5, "median": 1}, "b": [[1, 2], []]}).decode(), end="")
    {
     "a": {"mean": 1.5, "median": 1},
     "b": [
      [1, 2],
      []
     ]
    }
    """
    return (_INNERMOST.sub(_on_one_line, json.dumps(content, indent=1)) + "\n").encode()


def _on_one_line(found: re.Match[str]) -> str:
    opened, inside, closed = found.groups()
    line = opened + re.sub(r"\n\s*", " ", inside) + closed
    return line if len(line) <= _SHORT else found[0]


def _system_error(error: BaseException) -> int:
    """The number that the system has for an error, also as libraries in Rust put it; or else 0."""
    told = re.search(r"\(os error (\d+)\)", str(error))
    return (error.errno or 0) if isinstance(error, OSError) else int(told[1]) if told else 0


def _flush(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
