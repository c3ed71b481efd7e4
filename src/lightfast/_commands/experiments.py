"""`lightfast reproduce NAME` and `lightfast train NAME`, for every experiment: options, and what is done with them."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup
from typer.main import get_command

from lightfast._commands import options
from lightfast._experiments import EXPERIMENTS, experiment


def _group(command: str, about: str) -> typer.Typer:
    """The commands of all experiments, each of which is imported when it is asked for."""

    class Experiments(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return [name for name in EXPERIMENTS if self._has(name)]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            return _command(cmd_name, command) if cmd_name in EXPERIMENTS and self._has(cmd_name) else None

        def _has(self, name: str) -> bool:
            return command == "reproduce" or bool(experiment(name).train_help)

    app = typer.Typer(help=about, no_args_is_help=True, cls=Experiments)
    app.callback()(lambda: None)
    return app


reproduce = _group("reproduce", "The paper's experiments, from training to report.")
train = _group("train", "Train a network on your own pictures.")


def _command(name: str, command: str) -> Any:
    study = experiment(name)
    act = _reproduce if command == "reproduce" else _train

    def call(**given: Any) -> None:
        act(study, given | {"command": command})

    parameters = list(_parameters(name, study, command))
    call.__doc__ = study.help if command == "reproduce" else study.train_help
    call.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name)(call)
    return get_command(app)


def _parameters(name: str, study: Any, command: str) -> Iterator[inspect.Parameter]:
    """The options of a command, as parameters of a function."""

    def parameter(key: str, kind: Any, default: Any, help: str, *flags: str, **more: Any) -> inspect.Parameter:
        annotation = Annotated[kind, typer.Option(*flags, help=help, **more)]
        return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    kinds, recipes = ", ".join(study.kinds), ", ".join(study.recipes(None))
    data = Path if study.needs_data else Path | None
    yield parameter("data", data, ... if study.needs_data else None, study.data_help)
    usual = f"{recipes}; {study.usual_recipe} by default" + ("" if study.needs_data else ", or demo without data")
    yield parameter("recipe", str | None, None, f"{usual}.")
    if command == "reproduce":
        names = f"Comma-separated: {', '.join([kinds, *(name for name in study.aliases if name != 'all')])}; or all."
        yield parameter("chosen", str, study.usual, names, "--networks", "--strategies")
        yield parameter("seeds", int, 1, f"Trainings of each {study.noun}.", min=1)
        yield parameter("only", str | None, None, f"Do these runs alone: {study.trained}:0,... ({study.noun}:seed).")
        help = "Start no more trainings after so many seconds; run again to go on."
        yield parameter("seconds", float | None, None, help)
        yield parameter("photographs", bool, True, "Show pictures of the data set in the report.")
    else:
        yield parameter("chosen", str, study.trained, f"{kinds}.", "--network", "--strategy")
        yield parameter("seed", int, 0, "Of the first weights and the order of the pictures.", min=0)
        yield parameter("name", str, "model", "The name of the files in the folder.")
    out = study.pipeline.__name__.lower() if command == "train" else name
    yield parameter("out", Path, Path("runs") / out, "The folder for everything that is written.")
    yield parameter("model", str | None, None, _about_model(study))
    yield parameter("steps", int | None, None, "Steps of training; the recipe's by default.", min=1)
    yield parameter("parallel", int, study.together, "Trainings that share a GPU at a time.", min=1)
    yield parameter("resume", bool, False, options.RESUME, "--resume")
    help = "Another value for a part of the recipe: --set lr=0.05 --set batch_size=64"
    yield parameter("settings", list[str], [], help, "--set")
    yield parameter("half", bool, False, "Save weights in 16 bits, where the model can.", "--half")
    yield parameter("graph", bool | None, None, "Replay each step from a CUDA graph; on a GPU by default.")
    yield parameter("device", str, "auto", "auto, cpu or cuda.")
    help = "auto (what suits the device), float32 or bfloat16."
    yield parameter("precision", str, "auto", help)
    types = get_type_hints(study)
    for field in _own(study, command):
        limit = {} if field.metadata["minimum"] is None else {"min": field.metadata["minimum"]}
        yield parameter(field.name, types[field.name], field.default, field.metadata["help"], **limit)


def _about_model(study: Any) -> str:
    if not study.networks:
        return f"Not here: each {study.noun} has its own."
    return f"The network: {', '.join(study.networks)}; the recipe's by default."


def _own(study: Any, command: str) -> list[dataclasses.Field[Any]]:
    """The experiment's own options."""
    fields = [field for field in dataclasses.fields(study) if "help" in field.metadata]
    return [field for field in fields if field.metadata["command"] in ("", command)]


def _build(cls: Any, given: dict[str, Any], **more: Any) -> Any:
    """The study that users asked for. Everything is understood before data is read and anything is written."""
    from lightfast._experiments.plan import choose_plan

    device, data = options.choose_device(given["device"]), given["data"]
    given["recipe"] = given["recipe"] or ("demo" if data is None else cls.usual_recipe)
    changes = {name: given[name] for name in ("model", "precision", "graph")}
    recipes, settings = cls.recipes(data), given["settings"]
    plan = choose_plan(recipes, given["recipe"], device, steps=given["steps"], options=changes, settings=settings)
    names = ("parallel", "resume", "half", "out", *(field.name for field in _own(cls, given["command"])))
    known = {name: given[name] for name in names}
    loaded = cls.load(data, given)
    if given["steps"] is None and not any(text.startswith(("steps=", "batch_size=", "lr=")) for text in settings):
        plan = plan if plan.epochs is None else plan.for_samples(cls.samples(loaded))
    return cls(data=loaded, plan=plan, device=device, say=typer.echo, **known, **more)


def _reproduce(cls: Any, given: dict[str, Any]) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        # Before anything is trained, and not when its report is to be written.
        raise ModuleNotFoundError("there is no matplotlib", name="matplotlib")
    chosen, only = cls.choose(given["chosen"]), given["only"]
    shared = {name: given[name] for name in ("seeds", "seconds", "photographs")}
    study = _build(cls, given, chosen=chosen, only=None if only is None else cls.parse_runs(only), **shared)
    for part in study.parts():
        records = part.run()
        if part.main:
            typer.echo(f"\n{part.write_report(records)}")
            files = (str(part.out / name) for name in ("table.md", "results.json", "report.html"))
            typer.echo(f"written: {', '.join(files)}")


def _train(cls: Any, given: dict[str, Any]) -> None:
    kind = cls.choose_one(given["chosen"])
    study = _build(cls, given)
    study.tell(study.train_one(kind, given["seed"], given["name"]))
