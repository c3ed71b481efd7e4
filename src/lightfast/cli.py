"""The command line, `lightfast`: each command is a file of :mod:`lightfast._commands`."""

from __future__ import annotations

import importlib.util
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name. What the user got wrong is answered with one sentence, not a traceback.

    Exit codes: 0 all well, 1 the work failed, 2 wrong arguments, files or folders, 130 interrupted, 143 told to end.
    With LIGHTFAST_DEBUG=1 in the environment, errors come with their traceback.
    """
    if importlib.util.find_spec("typer") is None:
        sys.exit("lightfast: the command line needs more packages: pip install lightfast[cli]")
    from lightfast._commands import app

    try:
        app()
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        if os.environ.get("LIGHTFAST_DEBUG"):
            raise
        print(f"lightfast: {error}", file=sys.stderr)
        # A training that was interrupted says with what.
        sys.exit(getattr(error, "exit_code", 1 if isinstance(error, RuntimeError) else 2))


if __name__ == "__main__":
    main()
