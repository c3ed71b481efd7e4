"""The passes in C are built, verified and kept: with real compilers, files and processes, and each of them failing."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from lightfast._backends.native import build

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or shutil.which("gcc") is None, reason="the passes in C need Linux and a compiler"
)

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


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    for name in ("LIGHTFAST_NATIVE", "LIGHTFAST_CC", "LIGHTFAST_CFLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.cache))
    monkeypatch.setenv("PATH", f"{place.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(build, "SOURCES", place.sources)
    new_process(monkeypatch)
    return place


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


# ---------------------------------------------------------------------------------------------- which code is used


def test_zero_means_never(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTFAST_NATIVE", "0")
    assert build.load(forbidden) is None
    assert place.count() == 0 and not place.cache.exists()


@pytest.mark.parametrize("mode", ["", "1", "require"])
def test_one_and_require_mean_use(mode: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTFAST_NATIVE", mode)
    assert load().passes.answer(2) == 42


def test_another_value_is_an_error_that_lists_them(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTFAST_NATIVE", "yes")
    with pytest.raises(ValueError, match="LIGHTFAST_NATIVE is 'yes', but it can only be 0, 1 or require"):
        build.load(verify)


def test_no_compiler_is_normal(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build.load(verify) is None
    monkeypatch.setenv("LIGHTFAST_NATIVE", "require")
    with pytest.raises(RuntimeError, match=r"no C compiler \(cc, gcc or clang\)"):
        build.load(verify)


def test_another_system_is_normal(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert build.load(verify) is None
    monkeypatch.setenv("LIGHTFAST_NATIVE", "require")
    with pytest.raises(RuntimeError, match="they are for Linux"):
        build.load(verify)


# ------------------------------------------------------------------------------------------------ the cache, if well


def test_built_and_verified_once(place: Place) -> None:
    first = load()
    started = place.count()
    again = load(verify)
    assert again.path == first.path == place.kept()[0]
    assert again._replace(passes=first.passes) == first
    assert started and place.count() == started, "a compiler was started although nothing had to be built"


def test_verified_once_by_the_same_file(place: Place) -> None:
    load()
    # It is in the same file, which makes it the same version.
    assert load(forbidden).passes.answer(2) == 42


def test_verified_again_by_a_new_version_but_not_built(place: Place, tmp_path: Path) -> None:
    load()
    started = place.count()
    other = tmp_path / "other.py"
    other.write_text("def verify(passes):\n    return {'answer': 'new doubts'}\n")
    names: dict[str, Callable[[ctypes.CDLL], Mapping[str, str]]] = {}
    exec(compile(other.read_text(), str(other), "exec"), names)
    with pytest.warns(RuntimeWarning, match="new doubts"):
        assert load(names["verify"]).refused == {"answer": "new doubts"}
    assert place.count() == started
    assert json.loads(place.kept("*.json")[0].read_text())["refused"] == {"answer": "new doubts"}


def test_a_warm_start_takes_no_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SOURCES", Path(build.__file__).parent)

    def has_passes(passes: ctypes.CDLL) -> Mapping[str, str]:
        assert passes.moments_float and passes.halve_last_bfloat16
        return {}

    load(has_passes)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        load(has_passes)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.03


def test_only_the_owner_can_read_or_write(place: Place) -> None:
    old = os.umask(0)
    try:
        load()
    finally:
        os.umask(old)
    assert place.private.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in place.private.iterdir()} == {0o600}
    assert not [path for path in place.private.iterdir() if path.name.startswith(("build-", "part-"))]


def test_the_manifest_says_how_it_was_built(place: Place) -> None:
    library = load()
    manifest = json.loads(place.kept("*.json")[0].read_text())
    assert manifest["sha256"] == hashlib.sha256(library.path.read_bytes()).hexdigest()
    assert manifest["refused"] == {} and tuple(manifest["flags"]) == library.flags
    assert manifest["compiler"].startswith(f"{place.bin / 'cc'}, gcc") and "-march=native" in library.flags


def change_source(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.sources / "answer.h").write_text("#define ANSWER 42 \n")


def change_flags(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTFAST_CFLAGS", "-O1")


def change_compiler(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTFAST_CC", str(place.compiler("other")))


def change_version(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.compiler("cc", f'test "$1" = --version && echo 99 && exit; exec {shutil.which("gcc")} "$@"')


def change_torch(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.torch, "__version__", "99")


def change_processor(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_processor", lambda: "another one")


def change_machine(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "another one")


CHANGES = [
    change_source,
    change_flags,
    change_compiler,
    change_version,
    change_torch,
    change_processor,
    change_machine,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_part_of_the_key_counts(
    change: Callable[[Place, pytest.MonkeyPatch], None], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    change(place, monkeypatch)
    load()
    assert len(place.kept("*.json")) == 2


def test_the_processor_is_named() -> None:
    described = build._processor()
    assert "flags" in described or "Features" in described
    assert "MHz" not in described and described == build._processor()


def test_a_library_outlives_its_compiler(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load()
    change_version(place, monkeypatch)
    newest = load()
    os.utime(first.path.with_name(first.path.name[:-20] + ".json"), (1e9, 1e9))
    monkeypatch.setenv("PATH", "/nowhere")
    assert load(forbidden).path == newest.path
    newest.path.unlink()  # First, because this process has loaded it.
    newest.path.write_bytes(b"damaged")
    assert load(forbidden).path == first.path
    monkeypatch.setenv("LIGHTFAST_CFLAGS", "-O1")
    assert build.load(verify) is None, "a library with other flags was taken"


def test_old_files_go_when_a_new_library_comes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    (place.private / "build-killed").mkdir()
    (place.private / "build-killed" / "0.o").touch()
    old = time.time() - 91 * 86400
    for path in place.private.iterdir():
        os.utime(path, (old, old))
    (recent := place.private / "native-recent.so").touch()
    change_source(place, monkeypatch)
    fresh = load().path
    assert place.kept("*.so") == sorted([fresh, recent])
    assert len(place.kept("*.json")) == 1 and not (place.private / "build-killed").exists()


# ---------------------------------------------------------------------------------------------- compilers and flags


@pytest.mark.parametrize("compiler", ["gcc", CLANG])
def test_compilers_work(compiler: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    monkeypatch.setenv("LIGHTFAST_CC", compiler)
    library = load()
    assert library.passes.answer(2) == 42
    if compiler == "gcc":
        # OpenMP is the one that torch has loaded.
        assert "-fopenmp" in library.flags and b"libgomp" not in library.path.read_bytes()


@pytest.mark.parametrize("compiler", ["gcc", CLANG])
def test_without_openmp_there_is_one_thread(compiler: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if (path := shutil.which(compiler)) is None:
        pytest.skip(f"there is no {compiler}")
    # What is compiled with OpenMP calls a function that nothing has, as clang's does without its library.
    (place.sources / "library.c").write_text(
        "#ifdef _OPENMP\nextern void unheard_of(void);\nvoid caller(void) { unheard_of(); }\n#endif\n" + SOURCE
    )
    monkeypatch.setenv("LIGHTFAST_CC", path)
    library = load()
    assert library.passes.answer(2) == 42 and "-fopenmp" not in library.flags


def test_a_library_that_cannot_be_loaded_keeps_no_other_compiler_off(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcc = shutil.which("gcc")
    broken = place.compiler(
        "broken", f'{gcc} "$@" || exit; case "$*" in *-shared*) : > "$(echo $@ | sed "s/.* //")"; esac'
    )
    monkeypatch.setenv("LIGHTFAST_CC", str(broken))
    assert "file too short" in failure()
    monkeypatch.setenv("LIGHTFAST_CC", "gcc")
    assert load().passes.answer(2) == 42


def test_default_compilers_come_in_order(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = place.bin.parent / "tools"
    tools.mkdir()
    for tool in ("as", "ld", "sh"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", f"{place.bin}{os.pathsep}{tools}")
    for name in ("gcc", "clang"):
        place.compiler(name)
    for name in ("cc", "gcc", "clang"):
        assert load().compiler.startswith(f"{place.bin / name},")
        (place.bin / name).unlink()


def test_a_compiler_may_have_words(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.sources / "answer.h").write_text("")
    monkeypatch.setenv("LIGHTFAST_CC", "gcc '-DANSWER=40 + 2'")
    assert load().passes.answer(2) == 42


def test_compilers_speak_english_and_have_room(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("TMPDIR", "/full")
    place.compiler("cc", f'echo "$LC_ALL $TMPDIR" >> {place.mark}; exec {shutil.which("gcc")} "$@"')
    load()
    version, *steps = place.mark.read_text().splitlines()
    assert version.startswith("C ") and steps
    assert all(step.startswith(f"C {place.private}") for step in steps)


def test_flags_come_last(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.sources / "answer.h").write_text("")
    monkeypatch.setenv("LIGHTFAST_CFLAGS", "-O1 '-DANSWER=40 + 2'")
    library = load()
    assert library.passes.answer(2) == 42
    assert library.flags[-3:] == ("-march=native", "-O1", "-DANSWER=40 + 2")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64")
def test_flags_that_name_a_processor_replace_ours(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTFAST_CFLAGS", "-march=x86-64")
    assert [flag for flag in load().flags if "march" in flag] == ["-march=x86-64"]


@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast", "-funsafe-math-optimizations"])
def test_small_numbers_stay(flag: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linked with such a flag, a library makes the whole process round them to zero."""
    monkeypatch.setenv("LIGHTFAST_CFLAGS", flag)
    load()
    assert float("5e-324") * float("1") > 0


@pytest.mark.parametrize("variable", ["LIGHTFAST_CC", "LIGHTFAST_CFLAGS"])
def test_quotes_that_do_not_close(variable: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "gcc 'open")
    assert f"{variable} cannot be read as words of a shell: No closing quotation" in failure()


# ------------------------------------------------------------------------------------------- compilers that fail


def test_a_named_compiler_that_is_not_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    monkeypatch.setenv("LIGHTFAST_CC", "no-such-compiler")  # What another one built is not what was asked for.
    assert "there is no compiler no-such-compiler, which LIGHTFAST_CC names" in failure()
    monkeypatch.setenv("LIGHTFAST_NATIVE", "require")
    with pytest.raises(RuntimeError, match="no-such-compiler"):
        build.load(verify)


def test_a_compiler_that_is_no_program(place: Place) -> None:
    (place.bin / "cc").write_bytes(b"\x7fELF nothing")
    assert "Exec format error" in failure()


def test_a_compiler_that_says_nothing(place: Place) -> None:
    place.compiler("cc", "exit 3")
    assert "the compiler failed: it said nothing, and ended with 3" in failure()


def test_a_compiler_error_is_told_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.sources / "answer.h").write_text("#error nothing works\n")
    monkeypatch.setenv("LIGHTFAST_CFLAGS", "-O1 -march=native")
    sentence = failure()
    for part in ("#error nothing works", str(place.bin / "cc"), "-O1 -march=native", "LIGHTFAST_NATIVE=0"):
        assert part in sentence
    started = place.count()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build.load(verify) is None
    assert place.count() == started, "what failed was tried again in the same process"
    monkeypatch.setenv("LIGHTFAST_NATIVE", "require")
    with pytest.raises(RuntimeError, match="#error nothing works"):
        build.load(verify)


def test_another_process_tries_a_compiler_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = place.sources.parent / "headers"
    place.compiler("cc", f'test -e {headers} || {{ echo no headers >&2; exit 1; }}; exec {shutil.which("gcc")} "$@"')
    assert "the compiler failed: no headers" in failure()
    headers.touch()
    new_process(monkeypatch)
    assert load().passes.answer(2) == 42


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead but not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ")[-1][0] != "Z"
    except OSError:
        return False


def test_a_compiler_that_hangs_is_killed_with_its_children(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    child = place.calls.with_name("child")
    place.compiler("cc", f"sleep 600 & echo $! >> {child}; wait")
    monkeypatch.setattr(build, "BUILD_SECONDS", 1)
    start = time.monotonic()
    sentence = failure()
    assert time.monotonic() - start < 10
    assert f"{place.bin / 'cc'} did not come to an end and was stopped" in sentence and "-march=native" in sentence
    children = list(map(int, child.read_text().split()))
    time.sleep(0.2)
    assert children and not any(map(alive, children))

    # Other processes do not wait for it again, for some minutes.
    started = place.count()
    new_process(monkeypatch)
    assert "not tried again within 10 minutes" in failure()
    assert place.count() == started
    monkeypatch.setattr(build, "RETRY_SECONDS", 0)
    new_process(monkeypatch)
    failure()
    assert place.count() > started


def test_interrupting_a_build_stops_the_compiler(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = place.calls.with_name("pid")
    place.compiler(
        "cc", f'test "$1" = --version && exit; echo $$ > {pid}; sleep 0.3; kill -INT {os.getpid()}; sleep 600'
    )
    # Processes that were started in the background ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            build.load(verify)
    finally:
        signal.signal(signal.SIGINT, before)
    time.sleep(0.2)
    assert not alive(int(pid.read_text()))
    assert not list(place.private.glob("build-*"))


# ---------------------------------------------------------------------------------------------------- verification


def test_what_differs_is_named_and_stored(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    library, sentence = remark(refuse)
    assert library.refused == {"answer": "it is off by 0.3"}
    for part in ("answer: it is off by 0.3", str(place.bin / "cc"), "-march=native", "LIGHTFAST_CC"):
        assert part in sentence
    new_process(monkeypatch)
    stored, again = remark(forbidden)
    assert stored._replace(passes=library.passes) == library and again == sentence
    monkeypatch.setenv("LIGHTFAST_NATIVE", "require")
    with pytest.raises(RuntimeError, match=r"it is off by 0\.3"):
        build.load(forbidden)


def test_a_verification_that_fails(place: Place) -> None:
    def missing(passes: ctypes.CDLL) -> Mapping[str, str]:
        return {"pass": str(passes.no_such_pass)}

    sentence = failure(missing)
    assert "the library could not be verified: AttributeError" in sentence and str(place.bin / "cc") in sentence
    assert not place.kept()


LOADS = "import ctypes, os; passes = ctypes.CDLL(os.environ['LIGHTFAST_NATIVE_TRIAL']); "


def trial(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", LOADS + code]


@pytest.fixture
def chosen(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """With flags of the user's choice, and torch's OpenMP out of reach, so that a trial needs no torch."""
    monkeypatch.setenv("LIGHTFAST_CFLAGS", "-O1")
    return place


def test_a_trial_gives_the_verdict(chosen: Place) -> None:
    says_so = trial("print('words'); print('{}' if passes.answer(2) == 42 else '{\"answer\": \"no\"}')")
    assert load(forbidden, says_so).refused == {}
    assert load(forbidden, ["/nowhere"]).refused == {}, "a verdict that is stored was asked for again"


def test_a_trial_can_refuse(chosen: Place) -> None:
    with pytest.warns(RuntimeWarning, match="answer: it is 41"):
        assert load(forbidden, trial('print(\'{"answer": "it is 41"}\')')).refused == {"answer": "it is 41"}


def test_a_trial_is_for_what_the_user_chose(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    never = [sys.executable, "-c", "raise SystemExit('tried')"]
    assert load(verify, never).refused == {}
    monkeypatch.setenv("LIGHTFAST_CC", "gcc")
    assert "the library could not be verified: tried" in failure(verify, never)


@pytest.mark.parametrize("number", [signal.SIGILL, signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT])
def test_a_crash_is_a_refusal(number: signal.Signals, chosen: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (chosen.sources / "answer.h").write_text(f"#include <signal.h>\n#define ANSWER (raise({int(number)}), 42)\n")
    sentence = failure(forbidden, trial("print(passes.answer(1))"))
    assert f"the library crashed when it was verified, by signal {int(number)}, {signal.strsignal(number)}" in sentence
    assert "-O1" in sentence and not chosen.kept()
    started = chosen.count()
    new_process(monkeypatch)
    failure(forbidden, trial("print(passes.answer(1))"))
    assert chosen.count() == started, "what crashed was built again at once"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64")
def test_flags_for_another_processor(chosen: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """FMA4 is gone from all processors since 2017."""
    if "fma4" in build._processor():
        pytest.skip("this processor has it")
    (chosen.sources / "library.c").write_text(
        "#include <x86intrin.h>\nfloat answer(float x) {\n"
        "    return _mm_cvtss_f32(_mm_macc_ss(_mm_set_ss(x), _mm_set_ss(x), _mm_set_ss(x))); }\n"
    )
    monkeypatch.setenv("LIGHTFAST_CFLAGS", "-mfma4")
    assert "Illegal instruction" in failure(forbidden, trial("passes.answer(ctypes.c_float(1)); print('{}')"))


def test_a_sanitizer_that_was_not_loaded_first(chosen: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runtime ends a process that loads it late."""
    monkeypatch.setenv("LIGHTFAST_CFLAGS", "-O1 -fsanitize=address")
    assert "-fsanitize=address" in failure(forbidden, trial("print('{}')"))


@pytest.mark.parametrize("code", ["", "print('well')", "print('[1]')"])
def test_a_trial_without_a_verdict(code: str, chosen: Place) -> None:
    assert "gave no verdict" in failure(forbidden, trial(code))


def test_a_trial_that_hangs(chosen: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "TRIAL_SECONDS", 0.5)
    assert "did not come to an end" in failure(forbidden, trial("import time; time.sleep(600)"))


def test_report_is_the_work_of_a_trial(chosen: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process with torch, as it will be; modules are found where this process finds them."""
    (tmp_path / "verification.py").write_text(
        "def verify(passes):\n    return {} if passes.answer(2) == 42 else {'answer': 'wrong'}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    library = load(forbidden, [sys.executable, "-c", CHILD + "import verification; build.report(verification.verify)"])
    assert library.passes.answer(2) == 42 and b"libgomp" not in library.path.read_bytes()


# ----------------------------------------------------------------------------------------------- files that are off


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "gone", "planted"])
def test_a_damaged_library_is_built_again(damage: str, stub: Place) -> None:
    """And never loaded: in processes of their own, which a truncated one would end."""
    path = Path(str(child(stub)["path"]))
    good = path.read_bytes()
    if damage == "planted":
        (manifest,) = stub.kept("*.json")
        told = manifest.read_text()
        stub.plant()
        stub.kept()[0].rename(path)
        manifest.write_text(told)
    elif damage == "gone":
        path.unlink()
    else:
        flipped = bytearray(good)
        flipped[len(good) // 2] ^= 1
        path.write_bytes({"truncated": good[:5000], "empty": b"", "flipped": bytes(flipped)}[damage])
    started = stub.count()
    assert child(stub) == {"answer": 42, "told": [], "path": str(path)}
    assert stub.count() > started and not stub.mark.exists()
    assert path.read_bytes() == good


@pytest.mark.parametrize("which", ["*.so", "*.json"])
def test_a_folder_in_place_of_a_file(which: str, place: Place) -> None:
    load()
    (path,) = place.kept(which)
    path.unlink()
    path.mkdir()
    library, sentence = remark()
    assert library.passes.answer(2) == 42 and "cannot be kept" in sentence
    assert not place.kept("part-*") and not place.kept("build-*")


MANIFESTS = {
    "gone": None,
    "empty": b"",
    "garbage": b"\xff\x00{",
    "a list": b"[]",
    "a number": b"7",
    "no fields": b"{}",
    "another format": lambda told: {**told, "format": 0},
    "no checksum": lambda told: {**told, "sha256": None},
    "no verdict": lambda told: {**told, "refused": None},
    "no verifier": lambda told: {key: told[key] for key in told if key != "verifier"},
    "no flags": lambda told: {**told, "flags": 3},
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_damaged_manifest_is_written_again(kind: str, place: Place) -> None:
    load()
    (manifest,) = place.kept("*.json")
    good, bad, started = json.loads(manifest.read_text()), MANIFESTS[kind], place.count()
    if bad is None:
        manifest.unlink()
    else:
        manifest.write_bytes(bad if isinstance(bad, bytes) else json.dumps(bad(good)).encode())
    load()
    assert place.count() > started
    assert {**json.loads(manifest.read_text()), "date": ""} == {**good, "date": ""}


def check_temporary(place: Place, sentence: str, library: build.Library) -> None:
    """It works, from a folder that is gone, and nothing else was loaded."""
    assert library.passes.answer(2) == 42 and not library.path.exists() and not library.path.parent.exists()
    assert not place.mark.exists()
    assert "every process builds them again" in sentence and "XDG_CACHE_HOME" in sentence


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777, 0o720])
@pytest.mark.parametrize("link", [False, True])
def test_a_cache_that_others_can_write(mode: int, link: bool, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    place.plant()
    if link:
        place.private.rename(place.cache / "elsewhere")
        place.private.symlink_to(place.cache / "elsewhere")
    place.private.chmod(mode)
    library, sentence = remark()
    check_temporary(place, sentence, library)
    assert f"{place.private} can be written by other users" in sentence


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("link", [False, True])
def test_a_cache_of_another_user(link: bool, place: Place) -> None:
    load()
    place.plant()
    if link:
        place.private.rename(place.cache / "elsewhere")
        place.private.symlink_to(place.cache / "elsewhere")
    os.chown(place.private, 12345, 12345)
    library, sentence = remark()
    check_temporary(place, sentence, library)
    assert f"{place.private} belongs to another user" in sentence


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("which", ["*.so", "*.json"])
def test_files_that_another_user_left(which: str, place: Place) -> None:
    """The folder is private now, but was open once."""
    load()
    place.plant()
    os.chown(place.kept(which)[0], 12345, 12345)
    assert load().passes.answer(2) == 42
    assert not place.mark.exists() and load(forbidden).path.stat().st_uid == 0


@pytest.mark.parametrize("which", ["*.so", "*.json"])
def test_files_that_are_open_or_lead_elsewhere(which: str, place: Place) -> None:
    load()
    place.plant()
    (file,) = place.kept(which)
    file.chmod(0o666)
    assert load().passes.answer(2) == 42
    place.plant()
    file = place.kept(which)[0]
    file.rename(place.cache / "elsewhere")
    file.symlink_to(place.cache / "elsewhere")
    assert load().passes.answer(2) == 42 and not place.mark.exists()


def test_a_pipe_in_the_cache_does_not_block(place: Place) -> None:
    load()
    (manifest,) = place.kept("*.json")
    manifest.unlink()
    os.mkfifo(manifest, 0o600)
    assert load().passes.answer(2) == 42 and manifest.is_file()


@pytest.mark.parametrize("where", ["/proc", "/proc/version", "/dev/null/cache"])
def test_a_cache_that_cannot_be_made(where: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", where)
    library, sentence = remark()
    check_temporary(place, sentence, library)
    assert where in sentence


def test_a_user_without_a_home(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    library, sentence = remark()
    check_temporary(place, sentence, library)
    assert "Could not determine home directory" in sentence


@pytest.mark.parametrize("named", ["", "relative"])
def test_the_cache_is_in_the_home_folder(named: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    monkeypatch.setenv("HOME", str(place.cache))
    assert load().path.parent == place.cache / ".cache" / "lightfast" / "native"


def test_no_place_at_all(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    sentence = failure()
    assert "/proc" in sentence and str(place.bin / "cc") in sentence


# ------------------------------------------------------------------------------------------------ other processes

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


@pytest.fixture
def stub(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """With the version of torch that the children have, so that they share a cache with this process."""
    monkeypatch.setattr(build.torch, "__version__", "0")
    yield place


def test_processes_that_start_at_once(stub: Place) -> None:
    results = [result(process) for process in [start(stub) for _ in range(6)]]
    assert [(found["answer"], found["told"]) for found in results] == [(42, [])] * 6
    assert len(stub.kept("*.json")) == 1
    assert not [path for path in stub.private.iterdir() if path.name.startswith(("build-", "part-"))]
    started = stub.count()
    assert load(verify).passes.answer(2) == 42 and stub.count() == started


def test_processes_that_build_differently(stub: Place) -> None:
    """Each library is another, and the manifest fits the one that it names, whoever was last."""
    stub.compiler("cc", f'exec {shutil.which("gcc")} "$@" -Wl,--build-id=0x$(od -An -N8 -tx1 /dev/urandom | tr -d " ")')
    results = [result(process) for process in [start(stub) for _ in range(4)]]
    assert [(found["answer"], found["told"]) for found in results] == [(42, [])] * 4
    assert len(stub.kept()) == len({found["path"] for found in results}) > 1
    started = stub.count()
    assert load().passes.answer(2) == 42 and stub.count() == started


KILLS = "import os, signal\ndef die(*arguments): os.kill(os.getpid(), signal.SIGKILL)\n"


@pytest.mark.parametrize("moment", ["_compile", "_verified", "_kept", "_write_manifest", "_remove_old", "os.replace"])
def test_a_process_that_is_killed_leaves_no_harm(moment: str, stub: Place) -> None:
    patch = f"{moment} = die" if "." in moment else f"build.{moment} = die"
    dying = start(stub, LOAD.replace("build.SOURCES =", f"{KILLS}{patch}\nbuild.SOURCES ="))
    dying.communicate(timeout=120)
    assert dying.returncode == -signal.SIGKILL
    assert child(stub) | {"path": ""} == {"answer": 42, "told": [], "path": ""}
    (manifest,) = stub.kept("*.json")
    assert load().path.name.startswith(manifest.stem)


@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_file_system_that_takes_nothing(kind: str, stub: Place) -> None:
    """On file systems of our own, where the machine lets us have them."""
    stub.cache.mkdir()
    options = "size=256k" if kind == "full" else "ro"
    mount = f"mount -t tmpfs -o {options} none {stub.cache}"
    inside = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    found = result(start(stub, before=inside))
    assert found["answer"] == 42 and not Path(str(found["path"])).exists()
    (sentence,) = found["told"]  # type: ignore[misc]
    assert {"full": "there is no room", "read-only": "Read-only file system"}[kind] in sentence
