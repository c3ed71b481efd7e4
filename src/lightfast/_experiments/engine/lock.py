"""One training at a time in a folder."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

_held: set[Path] = set()


class FolderInUse(ValueError):
    """Another training writes to the folder."""


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Keep the folder, which exists, for this process; what already holds it may ask again.

    The lock is that of SQLite on a file `.lock`: it works on every system, workers forked meanwhile do not inherit it,
    and the system itself releases it when the process ends, however it ends.

    Raises:
        FolderInUse: another process holds it.
    """
    path = folder.resolve() / ".lock"
    if path in _held:
        yield
        return
    with closing(_locked(path)):
        _held.add(path)
        try:
            yield
        finally:
            _held.discard(path)
            path.unlink(missing_ok=True)


def _locked(path: Path) -> sqlite3.Connection:
    while True:
        try:
            connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        except sqlite3.OperationalError as error:
            raise OSError(f"{path.parent} cannot be written to ({error}): name another folder with --out") from None
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                connection.close()
                raise FolderInUse(
                    f"another training is writing to {path.parent}: wait until it is done, stop it, or name another "
                    "folder with --out"
                ) from None
            return connection  # A file system without locks, which is no reason not to train.
        if path.exists():
            return connection
        connection.close()  # The one before has just ended, and taken the file with it.
