"""The seam: what networks are made of asks for operations, and not for devices, precisions or backends."""

import re
from pathlib import Path

import pytest

import lightfast
from lightfast import _backends as backends

SOURCE = Path(lightfast.__file__).parent
ROOMS = ("models", "_convert", "_pipelines", "_photographs", "_experiments/engine")
FILES = ("_certify", "_equivariance", "_fuse", "_project", "_tracing", "_wrap")
ABOVE = [
    *(path for room in ROOMS for path in sorted((SOURCE / room).rglob("*.py"))),
    *(SOURCE / f"{name}.py" for name in FILES),
]
PRIVATE = {
    "asks for a backend": r"\b_native\b|\b_triton\b|\btriton\b",
    "asks for a device": r"\bis_cuda\b|device\.type\s*[!=]=|\.is_cpu\b",
    "reaches behind the seam": r"lightfast\._backends\.\w+|import lightfast\._backends",
}
ALLOWED = {"_experiments/engine": {"asks for a device"}}
"""The engine decides whether a step becomes a CUDA graph, and when indices go to a GPU."""


def found_in(path):
    text = path.read_text()
    return {question for question, pattern in PRIVATE.items() if re.search(pattern, text)}


@pytest.mark.parametrize("path", ABOVE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_above_the_seam_asks_what_is_below(path):
    assert found_in(path) <= ALLOWED.get(path.relative_to(SOURCE).parent.as_posix(), set())


def test_every_room_is_there():
    assert all(any((SOURCE / room).rglob("*.py")) for room in ROOMS)


def test_what_is_imported_from_the_seam_is_public():
    for path in ABOVE:
        for names in re.findall(r"from lightfast\._backends import (\([^)]*\)|.*)", path.read_text()):
            assert set(re.findall(r"\w+", names)) <= set(backends.__all__), path
        # Not those of torch, which has a module of that name.
        used = set(re.findall(r"(?<!\.)\b_?backends\.(\w+)", path.read_text()))
        assert used <= set(backends.__all__), path


def test_devices_are_told_apart_in_one_place():
    """Among the operations; what is of one device is in its own folder."""
    pattern = re.compile(r"\bis_cuda\b|device\.type")
    asking = {path.name for path in (SOURCE / "_backends").glob("*.py") if pattern.search(path.read_text())}
    # Of autocast and of CUDA graphs, which torch has for some devices alone.
    assert asking == {"choose.py", "tensors.py", "weights.py", "trust.py"}
