"""A library is used after it has been verified, in a process of its own where it may crash."""

from __future__ import annotations

import ctypes
import platform
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from building import CHILD, Place, failure, forbidden, load, new_process, refuse, remark, verify

from lightfast._backends.native import build

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or shutil.which("gcc") is None, reason="the passes in C need Linux and a compiler"
)


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
