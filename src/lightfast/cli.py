"""The command line, `lightfast`: each command is a file of :mod:`lightfast._commands`."""

from __future__ import annotations

import importlib.util
import os
import sys

__all__ = ["main"]

_EXTRAS = {
    "PIL": "photo",
    "imagecodecs": "photo",
    "tifffile": "photo",
    "rawpy": "raw",
    "pillow_heif": "heic",
    "matplotlib": "train",
    "tensorboard": "train",
    "torchmetrics": "train",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "huggingface_hub": "hub",
}
"""Which extra brings a module."""


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
        print(f"lightfast: {_missing(error) or _plain(error)}", file=sys.stderr)
        # A training that was interrupted says with what.
        sys.exit(getattr(error, "exit_code", 1 if isinstance(error, RuntimeError) else 2))


def _plain(error: Exception) -> str:
    """An error in words; what the system says of a file, without the number that it has for it."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return str(error)


def _missing(error: Exception) -> str:
    """What to install, if that is all that is wrong."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module not in _EXTRAS:
        return ""
    return f"this needs {module}, which is not installed: pip install lightfast[{_EXTRAS[module]}]"


if __name__ == "__main__":
    main()
