"""What a visit takes: the page as a process of its own, and hands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["chromium", "serving", "set_slider", "show"]


def chromium() -> str | None:
    """The system's Chromium, if there is one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`lightfast page` on a free port, with its temporary files in a folder: its address, and the process."""
    command = [sys.executable, "-m", "lightfast.cli", "page", "--no-browser"]
    env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    env |= {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found[0], process
                break
        else:
            raise AssertionError("the page did not start:\n" + "".join(said))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()


def show(page: Any, tab: str) -> None:
    """Open a tab; those that a narrow screen has no room for are behind a button."""
    page.get_by_role("tab").first.wait_for()
    found = page.get_by_role("tab", name=tab, exact=True)
    if not found.is_visible():
        page.locator(".overflow-menu > button").click()
        page.locator(".overflow-dropdown").get_by_text(tab, exact=True).click()
    else:
        found.click()


def set_slider(page: Any, name: str, value: float) -> None:
    """Move a slider, as a drag of the mouse does."""
    page.locator(f"#{name} input[type=range]").evaluate(
        "(range, value) => { range.value = value; range.dispatchEvent(new Event('input', {bubbles: true})) }", value
    )
