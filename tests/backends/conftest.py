"""What the tests of backends share: a process of Triton's interpreter, and plain torch in place of the passes in C."""

import importlib.util

import pytest
from interpreter import interpreter

from lightfast.backends.native import backend as native


@pytest.fixture(scope="session")
def interpreted():
    """Calls of functions where Triton's kernels run on the CPU."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    with interpreter() as call:
        yield call


@pytest.fixture
def passes():
    """The passes in C; tests that are about them skip without."""
    if native._passes() is None:
        pytest.skip("there is no C compiler here, or the passes in C are switched off")
    return native._passes()


@pytest.fixture
def plain_torch(monkeypatch):
    """From the moment that it is called, torch does what the passes in C did."""
    return lambda: monkeypatch.setattr(native, "_passes", lambda: None)
