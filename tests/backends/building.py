"""A machine of our own to build the passes in C on: sources, a cache, compilers that keep a record, processes."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from lightfast._backends.native import build

# As the passes are: threads of OpenMP, and a header beside it.
SOURCE = """#include "answer.h"
int answer(int threads) {
    int total = 0;
    _Pragma("omp parallel for schedule(static) num_threads(threads)")
    for (int i = 0; i < 64; i++) {
        if (i < ANSWER) {
            _Pragma("omp atomic")
            total++;
        }
    }
    return total;
}
"""
LEAVES_A_MARK = '#include <stdio.h>\n__attribute__((constructor)) void run(void) { fclose(fopen("%s", "w")); }\n'
CLANG = next(filter(shutil.which, ["clang", *(f"clang-{version}" for version in range(30, 11, -1))]), "clang")


def verify(passes: ctypes.CDLL) -> Mapping[str, str]:
    return {} if passes.answer(2) == 42 else {"answer": "it is not 42"}


def refuse(passes: ctypes.CDLL) -> Mapping[str, str]:
    return {"answer": "it is off by 0.3"}


def forbidden(passes: ctypes.CDLL) -> Mapping[str, str]:
    raise AssertionError("verified once more")


class Place:
    """A machine of our own: sources, cache, and a compiler in PATH that keeps a record of its calls."""

    def __init__(self, folder: Path) -> None:
        self.sources, self.bin, self.cache = folder / "sources", folder / "bin", folder / "cache"
        self.calls, self.mark = folder / "calls", folder / "mark"
        self.sources.mkdir()
        self.bin.mkdir()
        (self.sources / "library.c").write_text(SOURCE)
        (self.sources / "answer.h").write_text("#define ANSWER 42\n")
        self.compiler("cc")

    def compiler(self, name: str, does: str = f'exec {shutil.which("gcc")} "$@"') -> Path:
        script = self.bin / name
        script.write_text(f'#!/bin/sh\necho {name} "$@" >> {self.calls}\n{does}\n')
        script.chmod(0o755)
        return script

    @property
    def private(self) -> Path:
        return self.cache / "lightfast" / "native"

    def count(self) -> int:
        """How often a compiler was started."""
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

    def kept(self, pattern: str = "native-*.so") -> list[Path]:
        return sorted(self.private.glob(pattern))

    def plant(self) -> None:
        """Put a library with a matching manifest in place of the one in the cache; loaded, it leaves a mark."""
        foreign = self.sources.parent / "foreign.c"
        foreign.write_text(LEAVES_A_MARK % self.mark + SOURCE.replace('#include "answer.h"', "#define ANSWER 42"))
        (manifest,) = self.kept("*.json")
        for library in self.kept():
            library.unlink()
        made = self.private / "foreign.so"
        subprocess.run(["gcc", "-shared", "-fPIC", foreign, "-o", made], check=True)
        checksum = hashlib.sha256(made.read_bytes()).hexdigest()
        made.rename(self.private / f"{manifest.stem}-{checksum[:16]}.so")
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "sha256": checksum}))


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a process knows of failures."""
    monkeypatch.setattr(build, "_failures", {})
    monkeypatch.setattr(build, "_told", set())


def load(verify: build.Verify = verify, trial: list[str] | None = None) -> build.Library:
    library = build.load(verify, trial)
    assert library is not None
    return library


def failure(verify: build.Verify = verify, trial: list[str] | None = None) -> str:
    """The sentence of the only warning, where there is no library."""
    with pytest.warns(RuntimeWarning) as caught:
        assert build.load(verify, trial) is None
    assert len(caught) == 1
    return str(caught[0].message)


def remark(verify: build.Verify = verify) -> tuple[build.Library, str]:
    """A library that works, and the sentence of the only warning."""
    with pytest.warns(RuntimeWarning) as caught:
        library = load(verify)
    assert len(caught) == 1
    return library, str(caught[0].message)


CHILD = f"""
import importlib.util, json, os, sys, warnings
spec = importlib.util.spec_from_file_location("build", {build.__file__!r})
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
"""
# Torch takes seconds to import, and only its version has a part in this.
LOAD = (
    "import sys, types\nsys.modules['torch'] = types.SimpleNamespace(__version__='0')\n"
    + CHILD
    + """
from pathlib import Path
build.SOURCES = Path(sys.argv[1])

def verify(passes):
    assert passes.answer(2) == 42
    return {}

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    library = build.load(verify)
    told = [str(warning.message) for warning in caught]
print(json.dumps({"answer": library and library.passes.answer(2), "told": told, "path": str(library and library.path)}))
"""
)


def start(place: Place, code: str = LOAD, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-c", code, str(place.sources)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, object]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


def child(place: Place) -> dict[str, object]:
    return result(start(place))
