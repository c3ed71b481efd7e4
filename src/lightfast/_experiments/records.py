"""What a study keeps in its folder: the settings of all runs, and the record of each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file, save_file
from torch import Tensor

from lightfast._atomic import replacing, write_json

RECORD = "evaluation.json"
"""The name of a finished run's record, in its folder."""

SETTINGS = "settings.json"
"""The name of what all runs in a folder have in common."""

_TENSORS = "tensors.safetensors"
_OF_NO_MATTER = ("epochs", "log_every", "checkpoint_every", "graph", "compile", "title")

Record = dict[str, Any]
"""What is known of a run, as JSON can hold it, and tensors."""


class Run(NamedTuple):
    """One training: of a strategy or network, from a seed, on a split of the data where there are several."""

    kind: str
    seed: int
    split: str = ""

    def __str__(self) -> str:
        return f"{self.kind}.{self.split}.{self.seed}" if self.split else f"{self.kind}:{self.seed}"


def run_folder(out: Path, run: tuple[Any, ...]) -> Path:
    """Where a run's model, record and log are."""
    run = Run(*run)
    return out / "runs" / (str(run) if run.split else f"{run.kind}-{run.seed}")


def write_record(folder: Path, record: Record) -> None:
    """Write a run's record; its tensors go to a file beside it, first, since the record says that a run is done."""
    tensors = {key: value.contiguous() for key, value in record.items() if isinstance(value, Tensor)}
    if tensors:
        with replacing(folder / _TENSORS) as partial:
            save_file(tensors, partial)
    write_json(folder / RECORD, without_tensors(record))


def read_records(out: Path, noun: str) -> dict[Run, Record]:
    """The records of the runs in a folder; `noun` is their name for what is compared."""
    records: dict[Run, Record] = {}
    for path in out.glob(f"runs/*/{RECORD}"):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            run = Run(record[noun], record["seed"], record.get("split", ""))
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{path} is not the record of a run ({error}): delete it, and the run is done again"
            ) from None
        tensors = path.with_name(_TENSORS)
        records[run] = record | (load_file(tensors) if tensors.exists() else {})
    return records


def without_tensors(record: Record) -> Record:
    """What JSON can hold of a record."""
    return {key: value for key, value in record.items() if not isinstance(value, Tensor)}


def keep_settings(out: Path, settings: Mapping[str, Any], write: bool) -> None:
    """See that settings, as JSON holds them, are those of before in the folder, and `write` them down.

    Two recipes in one folder would make one table of what cannot be compared.
    """
    path = out / SETTINGS
    changed = list(_differences(json.loads(path.read_text(encoding="utf-8")), settings)) if path.exists() else []
    if changed:
        raise ValueError(
            f"{out} holds runs with other settings ({'; '.join(changed)}): name another folder with --out, or delete "
            "this one"
        )
    if write:
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)


def _differences(before: Any, now: Any, name: str = "") -> Iterable[str]:
    """What settings differ in; but for those that do not matter to the result."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            yield from _differences(before.get(key), now.get(key), key)
    elif before != now and name not in _OF_NO_MATTER:
        yield f"{name} was {before} and is {now}"
