"""`lightfast certify package.module:factory --input 1,3,32,32`."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torch import nn


def certify(
    target: Annotated[str, typer.Argument(help="package.module:factory, where factory() returns the network.")],
    input: Annotated[str, typer.Option(help="The shape of the input, such as 1,3,32,32.")],
    groups: Annotated[int, typer.Option(help="How many equal contiguous runs the input's features are.")] = 3,
    training: Annotated[bool, typer.Option(help="Certify training mode, instead of evaluation.")] = False,
    tolerance: Annotated[float, typer.Option(help="Responses that differ by less count as equal.")] = 1e-9,
    field: Annotated[
        int, typer.Option(help="Light that varies over the image: 0 for none, 1 for planes, 2 for quadratics.", min=0)
    ] = 0,
    table: Annotated[bool, typer.Option(help="List every module with its response.")] = False,
) -> None:
    """Prove that a network is offset equivariant or invariant (exit 0), or name what breaks it (exit 1)."""
    import torch

    from lightfast._certify import certify as certify_model

    model, example = _build(target).train(training), torch.zeros(_shape(input))
    certificate = certify_model(model, example, groups, tolerance=tolerance, field=field)
    typer.echo(str(certificate))
    if table:
        typer.echo("\n" + certificate.table())
    if not certificate.proved:
        raise typer.Exit(1)


def _build(target: str) -> nn.Module:
    """The network that `package.module:factory` names: a function that makes one, a class, or a module itself."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise typer.BadParameter(f"expected package.module:factory, but got {target!r}")
    from torch import nn

    # Factories in the folder that the command runs in are found, as with python -m.
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory = importlib.import_module(module)
        for part in name.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        raise typer.BadParameter(f"cannot find {target!r}: {error}") from error
    except Exception as error:
        raise typer.BadParameter(f"importing {module} fails with {_said(error)}") from error
    finally:
        sys.path.pop(0)
    model = factory if isinstance(factory, nn.Module) else _call(target, factory)
    if not isinstance(model, nn.Module):
        raise typer.BadParameter(f"{target!r} gave {type(model).__name__}, not a torch.nn.Module")
    return model


def _call(target: str, factory: Any) -> Any:
    """What the factory makes; a sentence if it cannot be called without arguments, or fails."""
    if not callable(factory):
        raise typer.BadParameter(f"{target!r} is {type(factory).__name__}, and no function that makes a network")
    try:
        wanted = [
            parameter.name
            for parameter in inspect.signature(factory).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
    except ValueError:  # Built in: it has no signature.
        wanted = []
    if wanted:
        raise typer.BadParameter(
            f"{target!r} needs {', '.join(wanted)}: name a function without arguments that calls it with them"
        )
    try:
        return factory()
    except Exception as error:
        raise typer.BadParameter(f"{target!r} fails with {_said(error)}") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip() or 'no message'}"


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"expected a shape such as 1,3,32,32, but got {text!r}") from error
