"""Whatever lies in the cache, or keeps it from being written: nothing wrong is loaded, and no process harms another."""

from __future__ import annotations

import json
import os
import platform
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from building import LOAD, Place, child, failure, forbidden, load, remark, result, start, verify

from lightfast._backends.native import build

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or shutil.which("gcc") is None, reason="the passes in C need Linux and a compiler"
)


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
