"""A real browser that visits the page."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from visiting import chromium, serving, show  # pyright: ignore[reportMissingImports]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    for module in ("gradio", "playwright"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    if chromium() is None:
        pytest.skip("there is no Chromium here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, as in containers, Chromium has no sandbox.
        launched = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
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
