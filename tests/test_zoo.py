"""The sweep over the networks of a library, and what it says of those that do not convert."""

from __future__ import annotations

import json
import time

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from lightfast._commands import app
from lightfast._convert import sweep


class _Draws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


def _classifier() -> tuple[nn.Module, Tensor]:
    layers = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)
    return nn.Sequential(*layers), torch.zeros(1, 3, 8, 8)


def _slow() -> tuple[nn.Module, Tensor]:
    time.sleep(30)
    return _classifier()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    builds = {"good": _classifier, "draws": lambda: (_Draws(), torch.zeros(1, 3, 8, 8)), "slow": _slow}
    monkeypatch.setattr(sweep, "networks", lambda library: builds)


def test_every_network_has_a_row(library: None) -> None:
    good, draws, slow = sweep.sweep("torch", ["good", "draws", "s*"], limit=10)
    assert (good.converts, good.outputs, good.constrained, good.layers) == (True, ("invariant",), 2, 2)
    assert good.seconds > 0 and good.export_seconds > 0
    assert not draws.converts and "draws random numbers" in draws.reason
    assert not slow.converts and slow.reason == "takes longer than 10 seconds"


def test_command_writes_record_and_table(library: None, tmp_path) -> None:
    done = CliRunner().invoke(app, ["zoo", "--library", "torch", "--names", "good,draws", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "good: 2 of 2 layers constrained" in done.output and "1 of 2 networks convert" in done.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert [row["name"] for row in found["networks"]] == ["good", "draws"]
    assert (tmp_path / "table.md").read_text() == sweep.table(found)
    assert "| good | yes | invariant | 2 of 2 |" in sweep.table(found)


def test_unknown_names_are_explained(library: None) -> None:
    done = CliRunner().invoke(app, ["zoo", "--names", "nothing-is-called-so"])
    assert done.exit_code == 2 and "nothing-is-called-so" in done.output


def test_unknown_library_is_explained() -> None:
    with pytest.raises(ValueError, match="there are timm, transformers, monai"):
        sweep.networks("nothing")
