"""The passes in C are built and kept: with real compilers, and each of them failing."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from building import CLANG, SOURCE, Place, failure, forbidden, load, new_process, verify

from lightfast._backends.native import build

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or shutil.which("gcc") is None, reason="the passes in C need Linux and a compiler"
)


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
