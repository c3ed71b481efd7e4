"""What a process does with one photograph; estimators and references are kept from one to the next."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from lightfast._photographs.balance import Prior, choose_estimator
from lightfast._photographs.files import read_photo
from lightfast._photographs.folder import BalancedFile, balance_file
from lightfast._photographs.series import Shot, shot_of

__all__ = ["balance_one", "check_estimator", "look_at_one"]

_estimator = lru_cache(2)(choose_estimator)
_photo = lru_cache(1)(read_photo)


def check_estimator(name: str) -> None:
    """A sentence if there is no such estimator."""
    _estimator(name)


def balance_one(source: Path, target: Path, estimator: str, options: dict[str, Any]) -> BalancedFile:
    """:func:`balance_file` with the estimator of a name, and the reference in a file."""
    if options.get("reference") is not None:
        options = options | {"reference": _photo(options["reference"])}
    return balance_file(source, target, _estimator(estimator), **options)


def look_at_one(source: Path, estimator: str, prior: Prior) -> Shot:
    """What a series needs to know of a photograph."""
    return shot_of(read_photo(source), _estimator(estimator), prior)
