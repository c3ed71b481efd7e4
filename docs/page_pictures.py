"""Make the pictures of docs/page.md: the page at two widths, in Chromium, with photographs of scikit-image."""

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright
from skimage import data

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests" / "page"))

from visiting import chromium, serving, set_slider, show  # noqa: E402


def save(page: Any, name: str) -> None:
    """The visible part of the page as a JPEG file."""
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(DOCS / f"{name}.jpg", quality=85)


def main() -> None:
    """Visit the page, and write docs/page-*.jpg."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        # Under a lamp.
        warm = (data.chelsea() * np.array([1.0, 0.8, 0.55])).round().astype(np.uint8)
        Image.fromarray(warm).save(Path(folder, "chelsea.jpg"), quality=95)
        Image.fromarray(data.astronaut()).save(Path(folder, "astronaut.jpg"), quality=95)
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        with serving(Path(folder)) as (address, _):
            page = browser.new_page(viewport={"width": 1100, "height": 900})
            page.goto(address)
            show(page, "Balance")
            for name in ("astronaut", "chelsea"):
                page.locator("#balance-upload input[type=file]").set_input_files(str(Path(folder, f"{name}.jpg")))
                page.locator("#balance-status").get_by_text(name).wait_for()
            page.wait_for_timeout(2000)
            save(page, "page-balance")
            show(page, "Fill")
            page.locator("#fill-upload input[type=file]").set_input_files(str(Path(folder, "astronaut.jpg")))
            page.get_by_text("512 x 512 pixels").wait_for()
            page.wait_for_timeout(2000)
            save(page, "page-fill")
            page.set_viewport_size({"width": 390, "height": 844})
            page.reload()
            show(page, "Under any light")
            set_slider(page, "saturation", 0.9)
            page.locator("#light-status").get_by_text("In white light").wait_for()
            page.wait_for_timeout(500)
            save(page, "page-light-phone")
        browser.close()


if __name__ == "__main__":
    main()
