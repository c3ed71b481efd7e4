"""Many photographs: which files, where each goes, and each of them read, balanced and written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lightfast._photographs.balance import Balanced, Found, apply_light, choose_light, part_of_light
from lightfast._photographs.files import PHOTO_SUFFIXES, read_photo, suffix_for, write_photo
from lightfast._photographs.photo import Photo, PhotoError
from lightfast._photographs.raw import RAW_SUFFIXES, RawPhoto
from lightfast._photographs.sidecar import sidecar_path, write_sidecar

__all__ = ["BalancedFile", "FoundPhotos", "balance_file", "find_photos", "only_raw", "output_paths", "said_of"]


@dataclass(frozen=True)
class BalancedFile:
    """A photograph that was balanced.

    Attributes:
        source: the file it came from.
        target: the file it went to.
        found: what was found in it, without the picture; None if nothing was done.
        note: what else there is to say, in words.
        before: a small JPEG of it; None if none was asked for.
        after: likewise, balanced.
    """

    source: Path
    target: Path
    found: Balanced | None = None
    note: str = ""
    before: bytes | None = None
    after: bytes | None = None

    @property
    def kept(self) -> bool:
        """Whether the target was there already, and nothing was done."""
        return self.found is None


@dataclass
class FoundPhotos:
    """Photographs that were found.

    Attributes:
        photos: each with the sub-folder of the output that it belongs into.
        left_out: sentences about what was not taken.
    """

    photos: dict[Path, Path] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def find_photos(paths: Sequence[Path], recursive: bool = False, out: Path | None = None) -> FoundPhotos:
    """The files among `paths`, and the photographs in the folders among them.

    Args:
        paths: files and folders.
        recursive: look into sub-folders too; links to folders are not followed.
        out: a folder to leave out, since it is where results go.
    """
    found = FoundPhotos()
    for path in paths:
        if not path.is_dir():
            found.photos[path] = Path()
            continue
        inside = dict(_inside(path, recursive, out, found.left_out))
        if not inside:
            known = ", ".join(sorted(PHOTO_SUFFIXES - RAW_SUFFIXES))
            aside = "".join(f"; {sentence}" for sentence in found.left_out)
            raise ValueError(f"{path} has no photographs ({known}, raw){aside}")
        found.photos |= inside
    return found


def only_raw(found: FoundPhotos) -> FoundPhotos:
    """The camera raw files among them, which alone can have their white balance in a sidecar."""
    raw = {photo: below for photo, below in found.photos.items() if photo.suffix.lower() in RAW_SUFFIXES}
    if not raw:
        raise ValueError("sidecars are for camera raw files, and there is none: leave --sidecar out")
    others = len(found.photos) - len(raw)
    count = "1 photograph" if others == 1 else f"{others} photographs"
    said = [f"{count} left out, since sidecars are for camera raw files"] if others else []
    return FoundPhotos(raw, found.left_out + said)


def _inside(folder: Path, recursive: bool, out: Path | None, left_out: list[str]) -> Iterator[tuple[Path, Path]]:
    others: Counter[str] = Counter()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if out is None or not _same(Path(place, name), out))
        if folders and not recursive:
            count = "1 sub-folder" if len(folders) == 1 else f"{len(folders)} sub-folders"
            left_out.append(f"{count} of {folder} left out: use --recursive")
            folders.clear()
        for name in sorted(names):
            path = Path(place, name)
            if path.suffix.lower() in PHOTO_SUFFIXES:
                yield path, Path(place).relative_to(folder)
            elif not name.startswith("."):
                others[path.suffix.lower() or "no suffix"] += 1
    if others:
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in sorted(others.items()))
        left_out.append(f"{sum(others.values())} files of {folder} left out that are no photographs by name ({kinds})")


def _same(path: Path, other: Path) -> bool:
    return _real(path) == _real(other)


def _real(path: Path) -> Path:
    """Without links; a link to itself stays as it is."""
    return Path(os.path.realpath(path))


def output_paths(photos: Mapping[Path, Path], out: Path) -> list[Path]:
    """Where each photograph goes, without a suffix yet: never onto an input, nor two onto one."""
    inputs = {_real(photo).with_suffix("") for photo in photos}
    taken: set[Path] = set()
    targets = []
    for photo, below in photos.items():
        stem = _real(out / below) / photo.stem
        number, target = 1, stem
        while target in inputs or target in taken:
            target = stem.with_name(f"{photo.stem}-balanced" + ("" if number == 1 else f"-{number}"))
            number += 1
        taken.add(target)
        targets.append(out / below / target.name)
    return targets


def balance_file(
    source: Path,
    target: Path,
    estimate: Callable[[Tensor], Tensor],
    *,
    strength: float = 1.0,
    mixed: bool = False,
    light: Found | None = None,
    sidecar: bool = False,
    thumbnails: bool = False,
    overwrite: bool = True,
    dry_run: bool = False,
    **choices: Any,
) -> BalancedFile:
    """Read, balance and write one photograph; `target` gets the suffix of its kind.

    Args:
        source: the file.
        target: where it goes, without a suffix.
        estimate: tells the light.
        strength: as for :func:`lightfast.balance`.
        mixed: likewise.
        light: its light, if that is known already.
        sidecar: write the white balance of a raw file beside it, and no picture.
        thumbnails: whether small pictures are wanted, too.
        overwrite: do again what is there already.
        dry_run: write nothing.
        choices: of :func:`~lightfast._photographs.balance.choose_light`.

    Raises:
        PhotoError: it cannot be read, or written; the message names it.
    """
    # Most names tell the kind, and then nothing needs to be read of what is done already.
    usual = ".tif" if source.suffix.lower() in RAW_SUFFIXES else source.suffix
    expected = sidecar_path(source) if sidecar else _named(target, usual)
    if not overwrite and expected.exists():
        return BalancedFile(source, expected)
    photo = read_photo(source)
    target = expected if sidecar else _named(target, suffix_for(photo.kind, source))
    if target.exists() and _same(target, source):
        raise PhotoError(f"{source} would be overwritten: name another folder with --out")
    if not overwrite and target.exists():
        return BalancedFile(source, target)
    try:
        found = light or choose_light(photo, estimate, **choices)
        write = not (dry_run or sidecar)
        balanced = apply_light(photo, found, strength, estimate if mixed else None, write)
        if write:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_photo(balanced.picture, target)
        elif sidecar and not dry_run:
            write_sidecar(target, *part_of_light(photo, found, strength))
    except PhotoError as error:
        raise PhotoError(f"{source}: {error}" if str(source) not in str(error) else str(error)) from error
    small = (_small(photo), _small(balanced.picture)) if thumbnails and write else (None, None)
    return BalancedFile(source, target, replace(balanced, picture=None), photo.note, *small)


def said_of(result: BalancedFile) -> str:
    """What was found and done, in words."""
    found = result.found
    if found is None:
        return "kept as it is"
    sure = "" if found.spread is None else f" (estimate ± {found.spread:.1f}°)"
    note = f"; {result.note}" if result.note else ""
    return f"{found.temperature:.0f} K, tint {found.tint:+.0f}{sure}, {found.done}{note}"


def _named(target: Path, suffix: str) -> Path:
    return target.with_name(target.name + suffix)


def _small(photo: Photo | RawPhoto) -> bytes:
    import io

    file = io.BytesIO()
    photo.upright(320).convert("RGB").save(file, "JPEG", quality=88)
    return file.getvalue()
