"""Experiments: networks that are trained, measured under other light, and compared.

What all of them share is here, once: the engine that trains (`engine`), data (`data`), plans and how users change
them (`plan`), the study that does what is left to do (`study`) and what it keeps in its folder (`records`), mean and
spread over seeds (`summary`), lights to measure under (`lights`), where a number comes from (`provenance`), and the
report (`report`). `speed` measures times.

An experiment is a package with a subclass of :class:`lightfast._experiments.study.Study`, and its line in
:data:`EXPERIMENTS`, which gives it `lightfast reproduce NAME` and `lightfast train NAME` with their options. The class
has

- what users see: `help`, `train_help` (empty for no `train`), `data_help`, and `needs_data` where nothing is drawn;
- `kinds`, what is compared, by name in the order of tables: objects with a `title`, and `color` "log" where the light
  cannot fool them; `noun`, what they are called, also in records; `aliases`, names for several; `usual`, those that
  `reproduce` compares by default, and `trained`, the one that `train` trains;
- `plans`, recipes by name, of a subclass of :class:`lightfast._experiments.plan.Plan` with the experiment's own values;
  `demo` is for what the project draws, `usual_recipe` for data; `together`, how many trainings share a GPU by default;
- `pipeline`, the class of what is trained, and `measured`, the entries of records to report over seeds;
- `load(data, options)`, the data in a folder or drawn, and `about_data()`, what to write down of it;
- `make(run, folder)`, a fresh pipeline and the task that trains it (:class:`lightfast._experiments.study.Training`);
- `measure(run, pipeline)`, what is measured of it, `line(record)`, that in a line, and `report(records)`, its tables,
  curves and pictures (:class:`lightfast._experiments.report.Report`).

Fields of the class that are made by :func:`lightfast._experiments.study.option` are options of its commands. It may
also have `recipes` (which depend on the data), `splits` (of the data), `parts` (several studies), `train_one` and
`evaluate`. Pipelines, tasks and pictures are its own; everything else is done for it.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["EXPERIMENTS", "experiment"]

EXPERIMENTS = {
    "recognition": "recognition.experiment:Recognition",
    "imagenet": "recognition.experiment:ImageNet",
    "finetuning": "recognition.finetuning:FineTuning",
    "illuminant": "illuminant.experiment:Illuminant",
    "inpainting": "inpainting.experiment:Inpainting",
    "spectral": "spectral.experiment:Spectral",
    "prints": "prints.experiment:PrintsStudy",
    "photographs": "photographs.experiment:Photographs",
}
"""Module and class of each, by name."""


def experiment(name: str) -> Any:
    """The class of an experiment, which is imported when it is asked for."""
    module, _, cls = EXPERIMENTS[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), cls)
