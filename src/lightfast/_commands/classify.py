"""`lightfast classify`: what is in a photograph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lightfast._commands import options


def classify(
    photos: Annotated[list[Path], typer.Argument(help="Image files.")],
    model: Annotated[
        str, typer.Option(help="A packaged classifier, the folder of a trained one, or OWNER/NAME on the Hub.")
    ] = "resnet20-cifar10",
    top: Annotated[int, typer.Option(min=1, help="How many classes to show for each.")] = 3,
    device: options.Device = "auto",
) -> None:
    """Say what is in photographs, with probabilities. One that cannot be read is named, and the others still done."""
    import torch

    from lightfast._photographs.decode import load_image
    from lightfast._photographs.photo import PhotoError
    from lightfast._pipelines.classifier import Classifier

    classifier = Classifier.load(model)
    where = options.choose_device(device)
    classifier.to(where)
    size = classifier.config["size"]
    unread = 0
    for photo in photos:
        try:
            image = load_image(photo, size)
        except PhotoError as error:
            typer.echo(f"lightfast: {error}", err=True)
            unread += 1
            continue
        with torch.no_grad():
            probabilities = classifier(image[None].to(where).float() / 255).softmax(1)[0]
        if not probabilities.isfinite().all():
            raise RuntimeError(
                f"{model} answers {photo} with what is no number: it is damaged, or its training diverged"
            )
        values, places = probabilities.topk(min(top, len(classifier.classes)))
        answers = zip(places.tolist(), values.tolist(), strict=True)
        shown = "  ".join(f"{classifier.classes[place]} {100 * value:.1f} %" for place, value in answers)
        typer.echo(f"{photo}: {shown}")
    if unread:
        raise typer.Exit(2)
