"""The passes in C as a library for this machine: built by its compiler at first use, verified once, and kept.

A library is a program that runs with all the rights of its user. So it lies in a folder that no one else can write, is
loaded only if its checksum is the one that was noted when it was built, and works only where it has shown itself right.
Whatever goes wrong, torch does the work instead, and one warning says why.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

Verify = Callable[[ctypes.CDLL], Mapping[str, str]]

SOURCES = Path(__file__).parent
BUILD_SECONDS = 60.0
TRIAL_SECONDS = 60.0
RETRY_SECONDS = 600.0  # A compiler that hung or code that crashed is not tried again before.
KEPT_SECONDS = 90 * 86400.0
_FORMAT = 1  # Of the manifest.
_ROOM = 4 << 20  # Bytes, more than a build takes.
_FLAGS = ("-O3", "-ffast-math", "-fno-finite-math-only", "-fPIC")
_TUNING = ("-march=native",)
# They make a linker add code that rounds small numbers to zero in the whole process; and OpenMP has its own choice.
_NOT_FOR_LINKING = ("-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-fopenmp")
# How OpenMP may be had: (flags of the compiler, flags of the linker), best first. Linked without OpenMP's library, a
# library takes the one that torch has loaded, if that has the functions which this compiler calls: two pools of threads
# would fight for the cores. Without OpenMP there is one thread.
_OPENMP = ((("-fopenmp",), ()), (("-fopenmp",), ("-fopenmp",)), ((), ()))
_ADVICE = (
    "LIGHTFAST_CC and LIGHTFAST_CFLAGS choose another compiler and other flags; with LIGHTFAST_NATIVE=0 torch does the "
    "work, without a warning."
)
_failures: dict[str, _Failure] = {}
_told: set[str] = set()


class Library(NamedTuple):
    """The compiled passes, and what is known of them."""

    passes: ctypes.CDLL
    refused: Mapping[str, str]
    """How each operation that must not be used differs from torch's."""
    compiler: str
    flags: tuple[str, ...]
    path: Path
    """Where it was loaded from; a library that could not be kept is gone from there."""


class _Failure(Exception):
    """Why there is no library."""


class _Absent(_Failure):
    """There is nothing to build with, which is no one's fault."""


class _Fatal(_Failure):
    """A compiler hung, or what it built crashed: costly to see again."""


def load(verify: Verify, trial: Sequence[str] | None = None) -> Library | None:
    """The library, from the cache or newly built, or None where torch must do the work.

    `verify` compares the operations of a library with torch's and returns the ones that differ, with a sentence each.
    Its verdict is stored. The first time, for a compiler or flags that the user chose, the command `trial` does it in a
    process of its own (see :func:`report`), since such a library may crash: flags can ask for more than the processor
    has, which `-march=native` cannot.
    """
    mode = os.environ.get("LIGHTFAST_NATIVE") or "1"
    if mode not in ("0", "1", "require"):
        raise ValueError(f"LIGHTFAST_NATIVE is {mode!r}, but it can only be 0, 1 or require")
    if mode == "0":
        return None
    try:
        library, remark = _find_or_build(verify, trial)
    except (_Failure, OSError) as why:
        sentence = f"The passes in C are not used, and torch does their work, more slowly: {why}. {_ADVICE}"
        if mode == "require":
            raise RuntimeError(sentence) from why
        if not isinstance(why, _Absent):
            _warn_once(sentence)
        return None
    if library.refused:
        differences = "; ".join(f"{operation}: {how}" for operation, how in library.refused.items())
        made = f"compiler: {library.compiler}, flags: {shlex.join(library.flags)}"
        sentence = f"Some passes in C are wrong on this machine, and torch does their work: {differences} ({made})."
        if mode == "require":
            raise RuntimeError(f"{sentence} {_ADVICE}")
        remark = f"{sentence} {_ADVICE} {remark}"
    if remark:
        _warn_once(remark.strip())
    return library


def report(verify: Verify) -> None:
    """Print what `verify` finds in the library that LIGHTFAST_NATIVE_TRIAL names: the work of the command `trial`."""
    print("\n" + json.dumps(dict(verify(ctypes.CDLL(os.environ["LIGHTFAST_NATIVE_TRIAL"])))), flush=True)


def _warn_once(sentence: str) -> None:
    if sentence not in _told:
        _told.add(sentence)
        warnings.warn(sentence, RuntimeWarning, stacklevel=3)


def _find_or_build(verify: Verify, trial: Sequence[str] | None) -> tuple[Library, str]:
    """The library, and what its user should know about the cache."""
    if platform.system() != "Linux":
        raise _Absent("they are for Linux")
    flags = _flags()
    folder, closed = private_folder()
    command, key = _compiler(), _key(flags)
    if command is None:
        return _built_before(folder, key, verify), ""
    version = _version(command, folder)
    key = f"{key}-{_digest(*command, version)}"
    compiler = ", ".join([shlex.join(command), *version.splitlines()[:1]])
    try:
        if folder and (cached := _cached(folder, key, verify)):
            return cached, ""
        _raise_known_failure(folder, key)
        chosen = _words("LIGHTFAST_CC") or _words("LIGHTFAST_CFLAGS")
        place = folder if folder and _has_room(folder) else None
        with tempfile.TemporaryDirectory(prefix="build-", dir=place, ignore_cleanup_errors=True) as scratch:
            library = _built(command, flags, Path(scratch), verify, trial if chosen else None)
            library = library._replace(compiler=compiler)
            if place:
                with suppress(OSError):
                    return _kept(library, place, key, verify), ""
    except (_Failure, OSError) as why:
        if key not in _failures:
            kind = type(why) if isinstance(why, _Failure) else _Failure
            _note_failure(kind(f"{why} (compiler: {compiler}, flags: {shlex.join(flags)})"), folder, key)
        raise _failures[key] from why
    return library, (
        "The passes in C cannot be kept, and every process builds them again: "
        f"{closed or f'there is no room in {folder}'}. Set XDG_CACHE_HOME to a folder of your own."
    )


def _words(variable: str) -> tuple[str, ...]:
    """The words of an environment variable, quoted as in a shell."""
    try:
        return tuple(shlex.split(os.environ.get(variable, "")))
    except ValueError as error:
        raise _Failure(f"{variable} cannot be read as words of a shell: {error}") from error


def _flags() -> tuple[str, ...]:
    """Ours and then the user's, who have the last word; not every compiler knows our choice of a processor."""
    added = _words("LIGHTFAST_CFLAGS")
    names_processor = any(flag.startswith(("-march=", "-mcpu=")) for flag in added)
    return (*_FLAGS, *(() if names_processor else _TUNING), *added)


def _key(flags: Sequence[str]) -> str:
    """A digest of everything that makes a library what it is, but for the compiler that was found."""
    sources = [path.read_bytes().hex() for path in sorted(SOURCES.glob("*.[ch]"))]
    machine = (platform.machine(), _processor(), str(torch.__version__))
    return _digest(*sources, *flags, "by", *_words("LIGHTFAST_CC"), "for", *machine)


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


def _processor() -> str:
    """What tells processors apart, since the code is for this one alone: of the first core, the others are like it."""
    telling = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU ", "isa", "uarch")
    lines = []
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.strip() and lines:
                break
            if line.startswith(telling):
                lines.append(line)
    return "".join(lines)


def _compiler() -> tuple[str, ...] | None:
    """The compiler's command with its full path, or None if there is none."""
    asked = _words("LIGHTFAST_CC")
    for name in asked[:1] or ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return (os.path.abspath(path), *asked[1:])
    return None


def _version(command: Sequence[str], folder: Path | None) -> str:
    """What a compiler says of itself, noted for a file of this size and date: starting it costs too much each time."""
    about = os.stat(command[0])
    identity = _digest(*command, str(about.st_mtime_ns), str(about.st_size))
    unknown = f"of unknown version ({identity})"
    note = folder and folder / f"compiler-{identity}.txt"
    if note:
        with suppress(OSError):
            return read_own(note).decode(errors="replace") or unknown
    text = ""
    with suppress(_Failure, OSError):  # One that does not say is known by its file.
        text = _run([*command, "--version"], min(10, BUILD_SECONDS), {"LC_ALL": "C"}).stdout
    if note:
        with suppress(OSError):
            write_whole(note, text)
    return text or unknown


def private_folder() -> tuple[Path | None, str]:
    """Where libraries are kept, if no one else can write there; otherwise None, and why."""
    try:
        named = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (named if named.is_absolute() else Path.home() / ".cache") / "lightfast" / "native"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_others(os.stat(folder), folder)
    except (OSError, RuntimeError) as why:  # RuntimeError: a user without a home.
        return None, str(why)
    return folder, ""


def _refuse_others(about: os.stat_result, path: Path) -> None:
    if about.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    if about.st_mode & 0o022:
        raise PermissionError(f"{path} can be written by other users")


def _has_room(folder: Path) -> bool:
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(bytes(_ROOM))
        return True
    return False


def read_own(path: Path) -> bytes:
    """The content of a file that is ours: others may have left theirs while the folder was open to them."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        _refuse_others(os.fstat(file.fileno()), path)
        return file.read()


def write_whole(path: Path, text: str) -> None:
    """All of a file or nothing, whenever the process is killed."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix="part-")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _built_before(folder: Path | None, key: str, verify: Verify) -> Library:
    """The newest library that fits, by whatever compiler: that it is gone now is no reason not to use it."""
    manifests = list(folder.glob(f"native-{key}-*.json")) if folder else []
    for manifest in sorted(manifests, key=os.path.getmtime, reverse=True):
        if library := _cached(manifest.parent, manifest.stem.removeprefix("native-"), verify):
            return library
    if asked := _words("LIGHTFAST_CC"):
        raise _Failure(f"there is no compiler {asked[0]}, which LIGHTFAST_CC names")
    raise _Absent("there is no C compiler (cc, gcc or clang) on this machine")


def _cached(folder: Path, key: str, verify: Verify) -> Library | None:
    """The library of this key, if every byte of it is as it was built; None for anything that looks odd."""
    try:
        manifest = json.loads(read_own(folder / f"native-{key}.json"))
        checksum = manifest["sha256"]
        path = folder / _library_name(key, checksum)
        if manifest["format"] != _FORMAT or hashlib.sha256(read_own(path)).hexdigest() != checksum:
            return None
        refused, flags = _verdict(manifest["refused"]), tuple(map(str, manifest["flags"]))
        library = Library(ctypes.CDLL(str(path)), refused, str(manifest["compiler"]), flags, path)
        outdated = manifest["verifier"] != _version_of(verify)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if outdated:
        library = library._replace(refused=_verified(library.passes, verify))
        with suppress(OSError):
            _write_manifest(library, folder, key, checksum, verify)
    return library


def _library_name(key: str, checksum: str) -> str:
    """With its checksum, so that processes which build at once cannot change a library that a manifest describes."""
    return f"native-{key}-{checksum[:16]}.so"


def _version_of(verify: Verify) -> str:
    """A digest of the code that verifies and is verified: what another version of it found does not count."""
    with suppress(TypeError, OSError):
        folders = (Path(inspect.getfile(verify)).resolve(strict=True).parent, SOURCES)
        return _digest(*(path.read_bytes().hex() for folder in folders for path in sorted(folder.glob("*.py"))))
    return ""


def _kept(library: Library, folder: Path, key: str, verify: Verify) -> Library:
    """The library moved into the cache: itself first and then its manifest, since without one it is not there."""
    checksum = hashlib.sha256(library.path.read_bytes()).hexdigest()
    path = folder / _library_name(key, checksum)
    library.path.chmod(0o600)
    library.path.replace(path)
    _write_manifest(library, folder, key, checksum, verify)
    _remove_old(folder, key)
    return library._replace(path=path)


def _write_manifest(library: Library, folder: Path, key: str, checksum: str, verify: Verify) -> None:
    manifest = {
        "format": _FORMAT,
        "sha256": checksum,
        "refused": dict(library.refused),
        "verifier": _version_of(verify),
        "compiler": library.compiler,
        "flags": library.flags,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_whole(folder / f"native-{key}.json", json.dumps(manifest, indent=1))


def _remove_old(folder: Path, key: str) -> None:
    """Remove what is not of this key and has lain here for long: other versions, and builds that were killed."""
    for path in folder.iterdir():
        with suppress(OSError):
            if not path.name.startswith(f"native-{key}") and path.lstat().st_mtime < time.time() - KEPT_SECONDS:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _raise_known_failure(folder: Path | None, key: str) -> None:
    """Raise what this process has met before, or any process a short time ago if it was costly."""
    if key in _failures:
        raise _failures[key]
    if folder:
        note = folder / f"native-{key}.failed"
        with suppress(OSError):
            if time.time() - note.stat().st_mtime < RETRY_SECONDS:
                wait = f"and not tried again within {RETRY_SECONDS / 60:.0f} minutes"
                raise _Failure(f"{read_own(note).decode()}, {wait}")


def _note_failure(failure: _Failure, folder: Path | None, key: str) -> None:
    _failures[key] = failure
    if folder and isinstance(failure, _Fatal):
        with suppress(OSError):
            write_whole(folder / f"native-{key}.failed", str(failure))


def _built(
    command: Sequence[str], flags: tuple[str, ...], scratch: Path, verify: Verify, trial: Sequence[str] | None
) -> Library:
    """A library that can be loaded and has been verified, with OpenMP in the best way that works."""
    deadline = time.monotonic() + BUILD_SECONDS
    reason = ""
    for number, (openmp, linked) in enumerate(_OPENMP):
        path, used = scratch / f"{number}.so", (*openmp, *flags)
        try:
            _compile(command, used, linked, path, deadline)
            refused = _tried(path, trial) if trial else None
            passes = ctypes.CDLL(str(path))
            return Library(passes, _verified(passes, verify) if refused is None else refused, "", used, path)
        except _Fatal:
            raise
        except (_Failure, OSError) as why:
            reason = str(why)
    raise _Failure(reason)  # The last way is the simplest, so what it lacks is what matters.


def _compile(command: Sequence[str], flags: Sequence[str], linked: Sequence[str], path: Path, deadline: float) -> None:
    """Compile and link; separately, because flags of the one do harm in the other."""
    compiled = path.with_name(f"{_digest(*flags)}.o")
    for_linking = [flag for flag in flags if flag not in _NOT_FOR_LINKING]
    compiling = [*command, *flags, "-c", str(SOURCES / "library.c"), "-o", str(compiled)]
    linking = [*command, "-shared", str(compiled), *for_linking, *linked, "-o", str(path)]
    for step in [linking] if compiled.exists() else [compiling, linking]:
        # In English, whatever the user speaks, and with a place for the compiler's own files, should /tmp be full.
        ended = _run(step, deadline - time.monotonic(), {"LC_ALL": "C", "TMPDIR": str(path.parent)})
        if ended.returncode:
            raise _Failure(f"the compiler failed: {_complaint(ended)}")


def _complaint(ended: subprocess.CompletedProcess[str]) -> str:
    """The line that says most of what went wrong: the first about an error, or the first at all."""
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    about_errors = [line for line in lines if "error:" in line]
    return (about_errors + lines + [f"it said nothing, and ended with {ended.returncode}"])[0]


def _tried(path: Path, trial: Sequence[str]) -> dict[str, str]:
    """The verdict of a process of its own, which may crash."""
    environment = {
        "LIGHTFAST_NATIVE": "0",
        "LIGHTFAST_NATIVE_TRIAL": str(path),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    ended = _run(trial, TRIAL_SECONDS, environment)
    if ended.returncode < 0:
        number = -ended.returncode
        raise _Fatal(f"the library crashed when it was verified, by signal {number}, {signal.strsignal(number)}")
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or ["it said nothing"]
        raise _Failure(f"the library could not be verified: {said[-1]}")
    try:
        return _verdict(json.loads(ended.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError, TypeError) as error:
        raise _Failure(f"the library could not be verified: {trial[0]} gave no verdict") from error


def _verified(passes: ctypes.CDLL, verify: Verify) -> dict[str, str]:
    try:
        return _verdict(verify(passes))
    except Exception as error:
        raise _Failure(f"the library could not be verified: {type(error).__name__}: {error}") from error


def _verdict(refused: object) -> dict[str, str]:
    if not isinstance(refused, Mapping):
        raise TypeError(f"a verdict is a dictionary, not {refused!r}")
    return {str(operation): str(how) for operation, how in refused.items()}


def _run(command: Sequence[str], seconds: float, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A command to its end, or to its time limit, when it is killed with all that it started."""
    environment, pipe = {**os.environ, **environment}, subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
    ) as process:
        try:
            out, err = (text.decode(errors="replace") for text in process.communicate(timeout=max(seconds, 0)))
        except BaseException as why:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(why, subprocess.TimeoutExpired):
                raise _Fatal(f"{command[0]} did not come to an end and was stopped") from why
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
