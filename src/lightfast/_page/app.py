"""The page as a whole: its tabs, how it looks, and the server that shows it on this machine."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from lightfast._pipelines.classifier import Classifier

__all__ = ["page"]

_STYLE = """
.lit { width: 100%; max-width: 420px; aspect-ratio: 1; border-radius: 8px; display: block; margin: auto; }
.status { min-height: 3em; }
footer { display: none !important; }
#about table { display: block; overflow-x: auto; border: 0; font-size: 0.85em; }
#about :is(th, td) { white-space: nowrap; padding: 0.2em 0.7em; border-color: var(--border-color-primary); }
@media (max-width: 640px) { .lit { max-width: 230px; } }
"""


def page(
    port: int | None = None, *, model: Classifier | str | os.PathLike[str] | None = None, open_browser: bool = True
) -> None:
    """Show the page on this machine, http://127.0.0.1:7860, until Ctrl-C.

    White balance, holes filled, and two networks under any light, in a browser; needs `pip install lightfast[page]`.
    Nothing is loaded from the internet or sent there, and files of visitors are deleted when they leave. On a Hugging
    Face Space, which names host and port in the environment as gradio asks for it, a call of this is all of `app.py`.

    Args:
        port: the first free one from 7860 on, by default.
        model: a classifier of your own to see under any light, or what :func:`lightfast.load` reads one from; by
            default those in the package.
        open_browser: show it at once.
    """
    with _alone():
        gr = _gradio()
        own = model if model is None or isinstance(model, Classifier) else Classifier.load(model)
        app = build(own)
        _, address, _ = app.launch(
            server_port=port,
            inbrowser=open_browser,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            ssr_mode=False,
            pwa=False,
            run_history=False,
            enable_monitoring=False,
            footer_links=[],
            max_file_size=_limit(),
            theme=gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
            css=_STYLE,
        )
        print(f"lightfast: the page is at {address} (Ctrl-C ends it)", flush=True)
        try:
            _until_told()
        finally:
            app.close(verbose=False)


def build(own: Classifier | None = None) -> Any:
    """The page, as gradio's `Blocks`; with a classifier of one's own, if there is one."""
    gr = _gradio()
    from lightfast._page.about import about_tab
    from lightfast._page.balance import balance_tab
    from lightfast._page.fill import fill_tab
    from lightfast._page.light import light_tab
    from lightfast._page.visitors import forget

    # Uploads are looked after every minute, and live for a quarter of an hour; visitors have copies of their own.
    with gr.Blocks(title="Lightfast", analytics_enabled=False, delete_cache=(60, 900)) as app:
        gr.Markdown(
            "# Lightfast\nPhotographs and networks that the color of the light cannot fool. All of it runs here."
        )
        for name, tab in (("Balance", balance_tab), ("Fill", fill_tab), ("Under any light", partial(light_tab, own))):
            with gr.Tab(name):
                tab()
        with gr.Tab("About"):
            about_tab()
        app.unload(forget)
    return app


def _limit() -> str:
    from lightfast._page.visitors import MEGABYTES

    return f"{MEGABYTES}mb"


def _gradio() -> Any:
    try:
        import gradio
    except ImportError:
        raise ImportError("the page needs gradio: pip install lightfast[page]") from None
    return gradio


@contextmanager
def _alone() -> Iterator[None]:
    """Gradio without calls home, with a folder of its own for files, which goes in the end."""
    import torch

    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="lightfast-page-", ignore_cleanup_errors=True) as folder:
        before = dict(os.environ)
        os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_TEMP_DIR": os.path.realpath(folder)}
        # A visitor to a core: these networks are small, and threads that wait for each other take longer.
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            for name in ("GRADIO_ANALYTICS_ENABLED", "GRADIO_TEMP_DIR"):
                os.environ.pop(name)
                os.environ |= {name: before[name]} if name in before else {}


def _until_told() -> None:
    """Wait for Ctrl-C, or for being told to end; both leave nothing behind."""
    told = threading.Event()
    before = {number: signal.signal(number, lambda *_: told.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not told.wait(1):
            pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
