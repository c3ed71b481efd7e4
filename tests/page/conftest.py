"""The page as a process of its own, and a real browser that visits it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


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


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    for module in ("gradio", "playwright"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, as in containers, Chromium has no sandbox.
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def address(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("page")) as (address, _):
        yield address


Visit = Callable[..., Any]


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    """A new visitor on a tab; whatever the page wants from elsewhere is an error."""
    contexts, elsewhere = [], []

    def come(address: str, tab: str, width: int = 1200, height: int = 900) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)

        def watched(route: Any) -> None:
            local = route.request.url.startswith((address, "data:", "blob:"))
            if not local:
                elsewhere.append(route.request.url)
            route.continue_() if local else route.abort()

        page.route("**/*", watched)
        page.goto(address)
        show(page, tab)
        return page

    yield come
    for context in contexts:
        context.close()
    assert elsewhere == []


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
