"""What a process does with one photograph; estimators are kept from one to the next."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from lightfast._photographs.balance import choose_estimator
from lightfast._photographs.folder import BalancedFile, balance_file

__all__ = ["balance_one", "check_estimator"]

_estimator = lru_cache(2)(choose_estimator)


def check_estimator(name: str) -> None:
    """A sentence if there is no such estimator."""
    _estimator(name)


def balance_one(source: Path, target: Path, estimator: str, options: dict[str, Any]) -> BalancedFile:
    """:func:`balance_file` with the estimator of a name."""
    return balance_file(source, target, _estimator(estimator), **options)
