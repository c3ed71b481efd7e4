"""The seam: what networks are made of asks for operations, and not for devices, precisions or backends."""

import re
from pathlib import Path

import pytest

import lightfast
from lightfast import _backends as backends

SOURCE = Path(lightfast.__file__).parent
ABOVE = [
    *(SOURCE / "models").rglob("*.py"),
    *(SOURCE / "engine").rglob("*.py"),
    *SOURCE.glob("pipelines*.py"),
    *(SOURCE / name for name in ("deploy.py", "estimator.py", "inpainter.py", "inpaint.py", "photo.py", "balance.py")),
]
PRIVATE = {
    "asks for a backend": r"\b_native\b|\b_triton\b|\btriton\b",
    "asks for a device": r"\bis_cuda\b|device\.type\s*[!=]=|\.is_cpu\b",
    "reaches behind the seam": r"lightfast\.backends\.\w+|import lightfast\.backends",
}
ALLOWED = {
    ("engine/step.py", "asks for a device"): "the engine decides whether a step becomes a CUDA graph",
    ("engine/loop.py", "asks for a device"): "and so it does for many networks at once",
    ("engine/order.py", "asks for a device"): "indices go to a GPU while it works on the batch before",
}


def found_in(path):
    text = path.read_text()
    return {what for what, pattern in PRIVATE.items() if re.search(pattern, text)}


@pytest.mark.parametrize("path", ABOVE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_above_the_seam_asks_what_is_below(path):
    name = path.relative_to(SOURCE).as_posix()
    assert found_in(path) == {what for file, what in ALLOWED if file == name}


def test_what_is_imported_from_the_seam_is_public():
    for path in ABOVE:
        for names in re.findall(r"from lightfast\.backends import (\([^)]*\)|.*)", path.read_text()):
            assert set(re.findall(r"\w+", names)) <= set(backends.__all__), path
        # Not those of torch, which has a module of that name.
        used = set(re.findall(r"(?<!\.)\bbackends\.(\w+)", path.read_text()))
        assert used <= set(backends.__all__), path


def test_devices_are_told_apart_in_one_place():
    """Among the operations; what is of one device is in its own folder."""
    pattern = re.compile(r"\bis_cuda\b|device\.type")
    asking = {path.name for path in (SOURCE / "backends").glob("*.py") if pattern.search(path.read_text())}
    # Of autocast and of CUDA graphs, which torch has for some devices alone.
    assert asking == {"choose.py", "tensors.py", "weights.py", "trust.py"}
