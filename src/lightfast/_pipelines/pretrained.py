"""Trained models that come with the package."""

from __future__ import annotations

from pathlib import Path

from lightfast._pipelines.pipeline import Pipeline, read_pipeline

__all__ = ["pretrained", "pretrained_names"]

_WEIGHTS = Path(__file__).with_name("weights")


def pretrained(name: str) -> Pipeline:
    """A trained pipeline from the weights inside the package, in evaluation mode and without gradients.

    Its `train()` makes it ready for training on: its parameters want gradients again.

    Args:
        name: one of :func:`pretrained_names`.

    Returns:
        A :class:`lightfast.Classifier` for the names of recognition, a :class:`lightfast.Estimator` for `cerberus-nus`,
        and a :class:`lightfast.Inpainter` for `context-encoder-slim`.
    """
    names = pretrained_names()
    if name not in names:
        raise ValueError(f"there is no pretrained model {name!r}; there are: {', '.join(names) or 'none'}")
    return read_pipeline(_WEIGHTS, name)


def pretrained_names() -> list[str]:
    """The names that :func:`pretrained` knows."""
    return sorted(path.stem for path in _WEIGHTS.glob("*.safetensors") if path.with_suffix(".json").is_file())
