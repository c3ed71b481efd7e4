"""Where a number comes from: command, commit, versions and machine."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("torch", "numpy", "safetensors")


def provenance() -> dict[str, Any]:
    """What is needed to get a result again, as JSON can hold it.

    `commit` is what LIGHTFAST_COMMIT says in the environment, for copies sent to another machine. Otherwise it is that
    of the checkout the package is in, with `+` after it if files were changed since, or None outside one.

    >>> sorted(provenance())
    ['command', 'commit', 'date', 'machine', 'versions']
    """
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *map(without_folders, sys.argv[1:])]),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "versions": {"python": platform.python_version(), **_versions()},
    }


def without_folders(argument: str) -> str:
    """An argument as records show it: of a path that leads elsewhere the last name alone; where is nobody's business.

    >>> without_folders("/home/me/cifar10"), without_folders("--data=../../cifar10/"), without_folders("runs/best")
    ('cifar10', '--data=cifar10', 'runs/best')
    >>> without_folders("--set=options={'p': '/home/me/x'}"), without_folders("/home/me/x,/home/me/y")
    ("--set=options={'p': 'x'}", 'x,y')
    """

    def shown(found: re.Match[str]) -> str:
        path = Path(found[0])
        return path.name if path.is_absolute() or ".." in path.parts else found[0]

    return re.sub(r"[^=,'\"\[\](){}]+", shown, argument)


def _versions() -> dict[str, str]:
    from lightfast import __version__

    versions = {"lightfast": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _machine() -> dict[str, Any]:
    graphics = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count(), "gpus": graphics}


def _commit() -> str | None:
    said = os.environ.get("LIGHTFAST_COMMIT")
    if said:
        return said
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
        return answer.stdout.strip()

    try:
        # An installed copy may lie inside a checkout of something else, which does not know this file.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
