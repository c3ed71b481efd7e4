"""The sweep over the networks of a library, and what it says of those that do not convert."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from lightfast._commands import app
from lightfast._convert import convert, coverage, libraries
from lightfast._convert import sweep as sweeping
from lightfast._convert.libraries import Network, networks, one_per_family
from lightfast._convert.sweep import Row, count_layers, measured_error, sweep
from tests.zoo import kinds

LIBRARY = "tests.zoo.library:NETWORKS"


def test_every_network_has_a_row() -> None:
    rows = {row.name: row for row in sweep(LIBRARY, ["good", "decides", "large"], limit=60, memory=4, processes=3)}
    good, decides, large = (rows[name] for name in ("good", "decides", "large"))
    assert (good.converts, good.verdict, good.constrained, good.layers) == (True, ("invariant",), 2, 2)
    assert good.seconds > 0 and good.export_seconds > 0 and good.error is not None and good.error < 1e-12
    assert not decides.converts and "cannot be exported" in decides.reason
    assert not large.converts and "memory" in large.reason


def test_network_whose_result_does_not_run_does_not_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("it has no such size")

    def converted(model: nn.Module, example: Tensor) -> nn.Module:
        net: Any = nn.Sequential(Fails())
        net.conversion = convert(model, example).conversion
        return net

    told: Any = SimpleNamespace(rows=[])
    told.send = told.rows.append
    monkeypatch.setattr(sweeping, "convert", converted)
    monkeypatch.setattr(sweeping, "_set_limits", lambda *_: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    sweeping._convert_one(LIBRARY, "good", 60, 4, told)
    assert not told.rows[-1].converts and told.rows[-1].reason == "its result does not run: it has no such size"


def test_network_that_takes_too_long_is_given_up() -> None:
    (row,) = sweep(LIBRARY, ["endless"], limit=1, memory=8)
    assert not row.converts and row.reason == "takes longer than 1 seconds"


def _swept(names: str, out: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["zoo", "--library", LIBRARY, "--names", names, "--out", str(out), *options])
    assert done.exit_code == 0, done.output
    return done.output


def test_command_writes_record_and_table_and_goes_on(tmp_path: Path) -> None:
    said = _swept("decides", tmp_path)
    assert "decides: no:" in said and "0 of 1 networks convert" in said
    said = _swept("good,decides,missing", tmp_path, "--resume")
    assert "good: 2 of 2 layers constrained" in said and "decides:" not in said
    assert "1 of 2 networks convert" in said
    record = json.loads((tmp_path / "tests.zoo.library.NETWORKS.json").read_text())
    assert [row["name"] for row in record["networks"]] == ["good", "decides", "missing"]
    assert record["networks"][2]["reason"] == "cannot be built: a library that is not there"
    assert {"command", "commit", "machine"} == set(record["source"])
    assert {"torch", "python"} <= set(record["versions"]) and all("date" in row for row in record["networks"])
    assert f"| {LIBRARY} | 2 | 1 | 1 of 1 | 1 of 1 |" in (tmp_path / "table.md").read_text()
    table = (tmp_path / "tests.zoo.library.NETWORKS.md").read_text()
    assert table == coverage.table(record) and "| good | yes | invariant | 2 of 2 |" in table


def test_records_of_other_versions_and_commits_are_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: dict[str, Any] = {"commit": "abc", "command": "lightfast zoo", "machine": {}}
    record = coverage.read(tmp_path, "torch", source)
    coverage.add(tmp_path, record, Row("one"), ["one"])
    assert [row["name"] for row in coverage.read(tmp_path, "torch", source)["networks"]] == ["one"]
    assert coverage.read(tmp_path, "torch", source | {"commit": "def"})["networks"] == []
    monkeypatch.setattr(coverage, "versions", lambda library: {"torch": "another"})
    assert coverage.read(tmp_path, "torch", source)["networks"] == []


def test_libraries_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr(libraries, "LIBRARIES", {"timm": libraries.LIBRARIES["timm"]})
    done = CliRunner().invoke(app, ["zoo", "--names", "x"])
    assert "timm is missing" in done.output and done.exit_code == 2
    done = CliRunner().invoke(app, ["zoo", "--library", "timm"])
    assert done.exit_code == 2 and "timm cannot be imported" in done.output


def test_unknown_names_are_explained() -> None:
    done = CliRunner().invoke(app, ["zoo", "--library", LIBRARY, "--names", "nothing-is-called-so"])
    assert done.exit_code == 2 and "nothing-is-called-so" in done.output
    with pytest.raises(ValueError, match="there are timm, torchvision, transformers, monai"):
        networks("nothing")


@pytest.mark.parametrize("library", ["transformers", "monai", "lightfast"])
def test_installed_libraries_have_networks(library: str) -> None:
    pytest.importorskip(library)
    found = networks(library)
    assert one_per_family(found) and all(isinstance(network, Network) for network in found.values())


def test_layers_that_never_see_the_image_are_not_counted() -> None:
    net = convert(kinds.WritesItsType(), torch.zeros(1, 3, 8, 8))
    assert count_layers(net) == (1, 1)


def test_networks_of_lightfast_are_plain_ones() -> None:
    model, example = networks("lightfast")["resnet20"].build()
    assert model(example).shape == (1, 10) and count_layers(model)[0] == 0


def test_measured_error_finds_a_false_certificate() -> None:
    net = convert(nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU()), torch.zeros(1, 3, 4, 4))
    assert measured_error(net, torch.zeros(1, 3, 4, 4)) < 1e-12
    false = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU())
    false.conversion = net.conversion  # pyright: ignore[reportArgumentType]
    assert measured_error(false, torch.zeros(1, 3, 4, 4)) > 1e-3
