"""The passes in C by other compilers and for other processors: the same numbers, whatever vectors they are made of."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from operations import failures, native_cases

from lightfast._backends.native import build
from lightfast._backends.native.backend import Native, Passes
from lightfast._backends.trust import verdict_on_passes

# What a processor says that it has, of what compilers assume.
AVX = {"avx2", "fma", "f16c", "bmi1", "bmi2"}
AVX512 = AVX | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
NEEDED = {
    "": set(),
    "-march=x86-64-v2": {"sse4_2", "ssse3", "popcnt"},
    "-march=x86-64-v3": AVX,
    "-march=x86-64-v4": AVX512,
    "-march=x86-64-v3 -mprefer-vector-width=128": AVX,
    "-march=native -mprefer-vector-width=256": AVX,
    "-march=native -mprefer-vector-width=512": AVX512,
    "-march=x86-64-v3 -O2": AVX,
    # What a pass reads without having written it is a large number, and not by chance a zero.
    "-march=x86-64-v3 -ftrivial-auto-var-init=pattern": AVX,
}
COMPILERS = ["gcc", "clang-16"]
IN_MAKE_TEST = ("gcc", "-march=x86-64-v3")
WAYS = [
    pytest.param(compiler, flags, marks=() if (compiler, flags) == IN_MAKE_TEST else pytest.mark.slow)
    for compiler in COMPILERS
    for flags in NEEDED
]


def skip_without(compiler, flags):
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler} here")
    known = set(Path("/proc/cpuinfo").read_text().split()) if Path("/proc/cpuinfo").exists() else set()
    if missing := NEEDED[flags] - known:
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")


@pytest.mark.parametrize(("compiler", "flags"), WAYS)
def test_every_operation(compiler, flags, monkeypatch):
    skip_without(compiler, flags)
    monkeypatch.setenv("LIGHTFAST_CC", compiler)
    monkeypatch.setenv("LIGHTFAST_CFLAGS", flags)
    monkeypatch.setenv("LIGHTFAST_NATIVE", "require")
    library = build.load(verdict_on_passes)
    assert library is not None and not library.refused
    assert set(shlex.split(flags)) <= set(library.flags) and compiler in library.compiler
    assert not failures(native_cases(), Native(Passes(library.passes, {})))


SANITIZED = """
import operations
from lightfast._backends.native import backend
passes = backend._passes()
assert passes is not None and not passes.refused
found = operations.failures(operations.native_cases(), backend.Native(passes))
assert not found, found
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["-march=x86-64-v3 -O1", "-march=native -O1"])
def test_nothing_is_read_or_written_that_should_not_be(flags, tmp_path, repository):
    """Under the sanitizers of addresses and of undefined behavior, which end the process that they object to."""
    skip_without("gcc", flags.replace(" -O1", "").replace("-march=native", ""))
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    if not Path(runtime.stdout.strip()).is_absolute():
        pytest.skip("gcc has no address sanitizer here")
    sanitizers = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g"
    environment = {
        **os.environ,
        "LIGHTFAST_CC": "gcc",
        "LIGHTFAST_CFLAGS": f"{flags} {sanitizers}",
        "LIGHTFAST_NATIVE": "require",
        "XDG_CACHE_HOME": str(tmp_path),
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": os.pathsep.join([str(repository / "tests" / "backends"), str(repository / "src")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-5000:]
