"""Every campaign: a few attempts each time, and all of them in `make slow`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from campaign import CAMPAIGNS, _trembles
from programs import Program

FEW = {"images": 40, "models": 12, "proofs": 8, "kills": 3}


def run(name: str, count: int) -> str:
    """In a process of its own, which may fork, and which a decoder may end."""
    command = [sys.executable, str(Path(__file__).with_name("campaign.py")), name, "--count", str(count)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["images", "models", "proofs"])
def test_a_few_attempts(name: str) -> None:
    ended = CAMPAIGNS[name][0](FEW[name], 1)
    assert sum(ended.values()) == FEW[name] * (3 if name == "images" else 1)


def test_rounding_decides_only_between_equals() -> None:
    lines = [("affine", 0, 0), ("less", 1, 0), ("relu", 0, 0), ("round", 0, 0), ("compare_zero", 0, 0), ("less", 0, 3)]
    assert [_trembles(Program(lines), place) for place in range(len(lines))] == [False, True, *[False] * 4]


def test_a_few_kills() -> None:
    assert run("kills", FEW["kills"]).startswith("kills: 3 attempts in ")


@pytest.mark.slow
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_all_attempts(name: str) -> None:
    assert f"{CAMPAIGNS[name][1]} attempts" in run(name, CAMPAIGNS[name][1])
