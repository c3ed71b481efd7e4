"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[Path]:
    """A hidden file to write beside `path`, which it replaces in one go at the end, or disappears after an error.

    Args:
        path: its folder exists.
        durable: force it to the disk first, so that a machine that stops loses nothing, either.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        if durable:
            _flush(partial)
        os.replace(partial, path)
        if durable:
            _flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write all of the file or nothing: a reader never sees half of it."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def write_json(path: Path, content: Any) -> None:
    """Write JSON to be read by people too, the whole file or nothing."""
    write_whole(path, (json.dumps(content, indent=1) + "\n").encode())


def _flush(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
