"""Machines for the tests of building."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from building import Place, new_process

from lightfast._backends.native import build


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    for name in ("LIGHTFAST_NATIVE", "LIGHTFAST_CC", "LIGHTFAST_CFLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.cache))
    monkeypatch.setenv("PATH", f"{place.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(build, "SOURCES", place.sources)
    new_process(monkeypatch)
    return place


@pytest.fixture
def stub(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """With the version of torch that the children have, so that they share a cache with this process."""
    monkeypatch.setattr(build.torch, "__version__", "0")
    yield place
