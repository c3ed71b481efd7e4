"""The tab *Balance*: photographs without the color of their light, found or set by hand."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import gradio as gr

from lightfast._page.visitors import PHOTOS, SIDE, checked, fresh, in_sentences, kept, sentence, shown, upright_size
from lightfast._photographs.balance import DEFAULT_ESTIMATOR, Balanced, balance, choose_estimator
from lightfast._photographs.files import read_photo, suffix_for
from lightfast._photographs.photo import Photo
from lightfast._photographs.raw import RawPhoto

__all__ = ["Entry", "Settings", "balance_tab"]

# Pixels along the longer side that are worked on while controls move.
_ENOUGH = 1500

# The slider's ends: candles, and the bluest sky.
_KELVIN = (2000, 25000)

FOUND, BY_HAND, SPOT, MIXED = "Find it", "Temperature and tint", "A gray spot", "Mixed light"


@dataclass(frozen=True)
class Entry:
    """A photograph of the visitor.

    Attributes:
        path: of the file, whose name is the photograph's.
        size: width and height of the picture, upright.
        before: a small picture of it, a file.
        temperature: of the light that was found, in kelvin; with the tint it says what to take away.
        tint: likewise.
        done: what was done, in words.
        spot: x and y of what should be gray, in pixels of the upright picture; None for none.
    """

    path: Path
    size: tuple[int, int]
    before: str
    temperature: float
    tint: float
    done: str
    spot: tuple[int, int] | None = None


@dataclass(frozen=True)
class Settings:
    """What the controls say."""

    way: str = FOUND
    strength: float = 1.0
    temperature: float = 6504.0
    tint: float = 0.0

    def of(self, entry: Entry) -> dict[str, Any]:
        """Arguments of :func:`lightfast.balance` for a photograph."""
        if self.way == BY_HAND:
            return {"strength": self.strength, "temperature": self.temperature, "tint": self.tint}
        if self.way == SPOT and entry.spot is not None:
            # A few pixels, so that noise matters less, whatever the size of the photograph.
            return {"strength": self.strength, "pick": (*entry.spot, max(entry.size) // 300 + 1)}
        return {"strength": self.strength, "mixed": self.way == MIXED}


@cache
def _estimator() -> Any:
    return choose_estimator(DEFAULT_ESTIMATOR)


def _entry(path: Path, request: gr.Request) -> tuple[Entry, str]:
    """A photograph that was brought, and a file with its balanced picture."""
    photo = read_photo(checked(path))
    found = balance(photo, _estimator())
    height, width = upright_size(found.picture)
    before, after = (shown(request, each, path.stem) for each in (photo, found.picture))
    return Entry(path, (width, height), before, found.temperature, found.tint, found.done), after


@lru_cache(8)
def _small(path: Path) -> tuple[Photo | RawPhoto, int]:
    """The photograph with some of its pixels, in its own colors, and one in how many; of raw files, all."""
    photo = read_photo(path)
    if not isinstance(photo, Photo):
        return photo, 1
    step = max(1, max(photo.pixels.shape[:2]) // _ENOUGH)
    return replace(photo, pixels=photo.pixels[::step, ::step].copy(), alpha=None), step


def _preview(entry: Entry, settings: Settings, request: gr.Request) -> tuple[str, Balanced]:
    """The balanced picture as it is shown, a file, and what was found."""
    photo, step = _small(entry.path)
    options: dict[str, Any] = settings.of(entry)
    if "pick" in options:
        options["pick"] = tuple(number // step for number in options["pick"])
    elif settings.way in (FOUND, SPOT):
        # What was found in the whole photograph, where some of its pixels may say a little else.
        options |= {"mixed": False, "temperature": entry.temperature, "tint": entry.tint}
    found = balance(photo, _estimator(), **options)
    return shown(request, found.picture, entry.path.stem), found


def _said(entry: Entry, found: Balanced | None, settings: Settings) -> str:
    name = f"**{entry.path.name}**"
    if found is None or settings.way == FOUND:
        light = f"light of {entry.temperature:.0f} K, tint {entry.tint:+.0f}"
        return f"{name}: {entry.done}; {light}."
    if settings.way == SPOT and entry.spot is None:
        return f"{name}: click on the picture, on something that should be gray."
    return f"{name}: {found.done}; light of {found.temperature:.0f} K, tint {found.tint:+.0f}."


def _nothing() -> Any:
    """Nothing to download, or nothing anymore: the controls have changed."""
    return gr.File(value=None, visible=False)


@in_sentences
def _brought(
    uploads: list[str] | None, entries: Sequence[Entry], request: gr.Request, progress: Any
) -> tuple[Any, ...]:
    """More photographs: those that can be read are taken, the others named."""
    uploads = uploads or []
    if len(entries) + len(uploads) > PHOTOS:
        raise ValueError(f"these would be more than {PHOTOS} photographs: the command `lightfast balance` has no limit")
    taken, failed, pair, last = list(entries), [], None, None
    for number, upload in enumerate(uploads):
        progress((number, len(uploads)), desc="Balancing")
        path = kept(request, upload)
        try:
            last, after = _entry(path, request)
        except (ValueError, OSError, ImportError) as error:
            failed.append(sentence(error))
            continue
        taken.append(last)
        pair = (last.before, after)
    if pair is None or last is None:
        raise ValueError(" ".join(failed) or "nothing was uploaded: choose photographs")
    said = _said(last, None, Settings())
    left = f"\n\nLeft out: {'; '.join(failed)}" if failed else ""
    return (
        taken,
        len(taken) - 1,
        gr.Gallery(value=[(entry.before, entry.path.name) for entry in taken], visible=len(taken) > 1),
        pair,
        said + left,
        _nothing(),
        FOUND,
        min(max(round(last.temperature), _KELVIN[0]), _KELVIN[1]),
        round(last.tint),
        last.before,
        None,
    )


@in_sentences
def _again(
    entries: Sequence[Entry], chosen: int, way: str, strength: float, temperature: float, tint: float, request: Any
) -> tuple[Any, ...]:
    """The chosen photograph as the controls say."""
    if not entries:
        raise ValueError("there is no photograph yet: choose some first")
    entry, settings = entries[chosen], Settings(way, strength, temperature, tint)
    after, found = _preview(entry, settings, request)
    return (entry.before, after), _said(entry, found, settings), _nothing()


@in_sentences
def _written(
    entries: Sequence[Entry],
    way: str,
    strength: float,
    temperature: float,
    tint: float,
    request: gr.Request,
    progress: Any,
) -> tuple[Any, str]:
    """All photographs in full size, in files with their metadata; several also in one archive."""
    if not entries:
        raise ValueError("there is no photograph yet: choose some first")
    settings, targets = Settings(way, strength, temperature, tint), []
    for number, entry in enumerate(entries):
        progress((number, len(entries)), desc="Writing")
        photo = read_photo(entry.path)
        found = balance(photo, _estimator(), **settings.of(entry))
        target = fresh(request, f"{entry.path.stem}-balanced{suffix_for(photo.kind, entry.path)}")
        found.picture.save(target)
        targets.append(target)
    if len(targets) > 1:
        archive = fresh(request, "balanced.zip")
        with zipfile.ZipFile(archive, "w") as file:
            for number, target in enumerate(targets, 1):
                file.write(target, f"{number:03d}-{target.name}")
        targets.insert(0, archive)
    count = f"{len(entries)} photographs are" if len(entries) > 1 else "The photograph is"
    files = gr.File(value=[str(target) for target in targets], visible=True)
    return files, f"{count} ready below, in full size, with EXIF data and color profile."


def balance_tab() -> None:
    """Build the tab."""
    entries, chosen = gr.State([]), gr.State(0)
    upload = gr.File(file_count="multiple", label="Photographs", height=130, elem_id="balance-upload")
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            compared = gr.ImageSlider(
                label="Before and after", interactive=False, elem_id="compared", max_height=560, buttons=["fullscreen"]
            )
            spotted = gr.Image(
                label="Click on what should be gray",
                interactive=False,
                visible=False,
                elem_id="spotted",
                buttons=[],
                type="filepath",
            )
            gallery = gr.Gallery(
                label="Photographs",
                columns=4,
                height="auto",
                allow_preview=False,
                visible=False,
                interactive=False,
                elem_id="gallery",
                buttons=[],
            )
        with gr.Column(min_width=280):
            way = gr.Radio([FOUND, BY_HAND, SPOT, MIXED], value=FOUND, label="The light", elem_id="way")
            strength = gr.Slider(0, 1, 1, step=0.01, label="Strength", elem_id="strength")
            with gr.Group(visible=False) as by_hand:
                temperature = gr.Slider(*_KELVIN, 6504, step=10, label="Temperature, kelvin", elem_id="temperature")
                tint = gr.Slider(-150, 150, 0, step=1, label="Tint: magenta below 0, green above", elem_id="tint")
            with gr.Row(visible=False) as at:
                across = gr.Number(label="x of the spot", precision=0, minimum=0, min_width=110, elem_id="spot-x")
                down = gr.Number(label="y of the spot", precision=0, minimum=0, min_width=110, elem_id="spot-y")
            status = gr.Markdown("Choose photographs first.", elem_id="balance-status", elem_classes="status")
            go = gr.Button("Balance all for download", variant="primary", elem_id="balance-all")
            download = gr.File(
                label="Download", interactive=False, visible=False, elem_id="balance-download", file_count="multiple"
            )
            clear = gr.Button("Start over", elem_id="start-over")
    private: dict[str, Any] = {"api_visibility": "private"}
    settings = [way, strength, temperature, tint]
    shows = [compared, status, download]

    # Gradio finds a progress bar by the default of an argument, and what it hands over by annotations.
    def brought(files: Any, held: Any, request: gr.Request, progress: Any = gr.Progress()) -> Any:  # noqa: B008
        return _brought(files, held, request, progress)

    def written(
        held: Any,
        w: str,
        s: float,
        k: float,
        t: float,
        request: gr.Request,
        progress: Any = gr.Progress(),  # noqa: B008
    ) -> Any:
        return _written(held, w, s, k, t, request, progress)

    def again(held: Any, number: int, w: str, s: float, k: float, t: float, request: gr.Request) -> Any:
        return _again(held, number, w, s, k, t, request)

    upload.upload(
        brought,
        [upload, entries],
        [entries, chosen, gallery, compared, status, download, way, temperature, tint, spotted, upload],
        **private,
    )

    def selected(held: Sequence[Entry], event: gr.SelectData) -> tuple[Any, ...]:
        entry = held[event.index]
        spot = entry.spot or (None, None)
        return event.index, entry.before, *spot

    gallery.select(selected, [entries], [chosen, spotted, across, down], **private).success(
        again, [entries, chosen, *settings], shows, **private
    )

    def switched(to: str) -> tuple[Any, ...]:
        return gr.Group(visible=to == BY_HAND), gr.Row(visible=to == SPOT), gr.Image(visible=to == SPOT)

    way.change(switched, way, [by_hand, at, spotted], show_progress="hidden", **private)
    quick: dict[str, Any] = {"trigger_mode": "always_last", "show_progress": "hidden", **private}
    way.input(again, [entries, chosen, *settings], shows, **quick)
    for slider in (strength, temperature, tint):
        slider.input(again, [entries, chosen, *settings], shows, **quick)

    def spot_at(held: Sequence[Entry], number: int, x: float | None, y: float | None) -> list[Entry]:
        if not held or x is None or y is None:
            return list(held)
        return [replace(entry, spot=(int(x), int(y))) if n == number else entry for n, entry in enumerate(held)]

    def clicked(held: Sequence[Entry], number: int, event: gr.SelectData) -> tuple[Any, ...]:
        entry = held[number]
        scale = max(1.0, max(entry.size) / SIDE)
        x, y = (min(round(place * scale), side - 1) for place, side in zip(event.index, entry.size, strict=True))
        return spot_at(held, number, x, y), x, y

    spotted.select(clicked, [entries, chosen], [entries, across, down], **private).success(
        again, [entries, chosen, *settings], shows, **private
    )
    for number in (across, down):
        number.submit(spot_at, [entries, chosen, across, down], [entries], **private).success(
            again, [entries, chosen, *settings], shows, **private
        )
    go.click(written, [entries, *settings], [download, status], **private)

    def cleared() -> tuple[Any, ...]:
        return [], 0, gr.Gallery(value=[], visible=False), None, "Choose photographs first.", _nothing(), None, FOUND, 1

    clear.click(
        cleared, None, [entries, chosen, gallery, compared, status, download, spotted, way, strength], **private
    )
