"""What a stranger's machine sees first: the time of an import, machines without the passes in C, what is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STRANGE = """
import json, os, platform, sys, time, warnings
warnings.simplefilter("error")
import torch
system, machine = sys.argv[1:]
platform.system, platform.machine = lambda: system, lambda: machine
start = time.process_time()
import lightfast as lf
seconds = time.process_time() - start
torch.set_num_threads(1)
from lightfast._backends.native.backend import library
classifier, light = lf.pretrained("resnet20-cifar10"), torch.tensor([[[[1.0]], [[0.6]], [[0.3]]]])
images = torch.rand(2, 3, 32, 32) / 2 + 0.5
apart = (classifier(images) - classifier(lf.light.relight(images, illuminants=light.flatten()))).abs().max()
network = lf.models.create("resnet20").train()
network(torch.randn(2, 3, 32, 32)).sum().backward()
learned = all(parameter.grad.isfinite().all() for parameter in network.parameters())
print(json.dumps({"seconds": seconds, "in C": library() is not None, "apart": float(apart), "learned": learned}))
"""


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "aarch64")])
def test_without_the_passes_in_c_everything_works(system: str, machine: str, tmp_path: Path) -> None:
    """Elsewhere than on Linux nothing is compiled, and without a compiler nothing can be: torch does the work."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "LIGHTFAST_CC")}
    environment |= {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "LIGHTFAST_NATIVE": "1"}
    command = [sys.executable, "-c", STRANGE, system, machine]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not found["in C"] and found["learned"] and found["apart"] < 1e-3 and not done.stderr
    assert found["seconds"] < 0.3, "import lightfast takes too long beyond torch's own import"


def test_what_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., tuple[Any, str, str]], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 40)
    code, _, said = run("balance", tmp_path / "a.png", "-o", tmp_path / "out", "--jobs", 1)
    assert code != 0 and ("pip install lightfast[" in said or "cannot be read" in said)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else True)
    code, _, said = run("reproduce", "spectral", "--out", tmp_path / "study")
    assert code == 2 and "this needs matplotlib, which is not installed: pip install lightfast[train]" in said
    assert not (tmp_path / "study").exists()


def test_every_extra_is_explained_and_every_module_has_one(repository: Path) -> None:
    from lightfast.cli import _EXTRAS

    text = (repository / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    assert set(_EXTRAS.values()) <= set(extras)
    lines = text[text.index("[project.optional-dependencies]") :].splitlines()
    for name in extras:
        place = next(number for number, line in enumerate(lines) if line.startswith(f"{name} = ["))
        assert lines[place - 1].startswith("# "), f"what is the extra {name} for?"
    assert {"Homepage", "Documentation", "Changes", "Issues"} <= set(project["urls"])


def test_the_version_is_the_same_everywhere(repository: Path) -> None:
    from lightfast import __version__

    changes = re.findall(r"^## \[(\d[^\]]*)\] - (\S+)$", (repository / "CHANGELOG.md").read_text(), re.M)
    citation = (repository / "CITATION.cff").read_text()
    assert changes[0][0] == __version__
    assert f"version: {__version__}\ndate-released: {changes[0][1]}\n" in citation
