"""What all tests share: few threads, and a place where real data may lie."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

# Workers of pytest-xdist share the cores between them, and so do the processes that they start: threads that wait for
# each other on a core that is taken make a command ten times as slow.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)
# Deadlines measure the machine, not the code.
settings.register_profile("lightfast", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lightfast")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a GPU skip without one."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="there is no GPU"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder named by LIGHTFAST_DATA, which holds real data sets; tests that need it skip without it."""
    folder = os.environ.get("LIGHTFAST_DATA")
    if not folder:
        pytest.skip("set LIGHTFAST_DATA to a folder with real data sets to run this test")
    return Path(folder)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout that the tests are in."""
    return Path(__file__).parents[1]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str, str]]:
    """Run a `lightfast` command in this process: (exit code, standard output, standard error)."""
    from lightfast.cli import main

    def call(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["lightfast", *map(str, arguments)])
        try:
            main()
            code: Any = 0
        except SystemExit as left:
            code = left.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small networks are not faster with more, and what is compared bit by bit must have equally many."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def interpreted() -> Iterator[Callable[..., Any]]:
    """Calls of functions in a process where Triton's kernels run on the CPU."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    from interpreter import interpreter  # pyright: ignore[reportMissingImports]

    with interpreter() as call:
        yield call


@pytest.fixture
def passes() -> Any:
    """The passes in C; tests that are about them skip without."""
    from lightfast._backends.native import backend as native

    if native._passes() is None:
        pytest.skip("there is no C compiler here, or the passes in C are switched off")
    return native._passes()


@pytest.fixture
def plain_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the moment that it is called, torch does what the passes in C did."""
    from lightfast._backends.native import backend as native

    return lambda: monkeypatch.setattr(native, "_passes", lambda: None)
