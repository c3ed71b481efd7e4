"""Pipelines that leave Python: ONNX files and programs of `torch.export`, checked before they are given."""

from __future__ import annotations

import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightfast._atomic import write_whole
from lightfast._fuse import fuse
from lightfast._pipelines.pipeline import Pipeline

__all__ = ["FORMATS", "OPSET", "TOLERANCE", "Exported", "export", "metadata"]

OPSET = 18
"""The set of ONNX operators by default, and the oldest that torch can write."""

TOLERANCE = 1e-4
"""How much a file's answers may differ from the pipeline's, relative to the largest of them (and to 1)."""

Answer = Callable[[Sequence[Tensor]], Tensor]

_DYNAMIC_BATCHES = (1, 2, 5)
_SATURATIONS = (0.0, 0.9)
_NEEDED = ("onnx", "onnxscript", "onnxruntime")


class Exported(NamedTuple):
    """A file that was written, and what its check found.

    Attributes:
        path: the file.
        inputs: of each, its name and its shape, where a name stands for any number.
        output: likewise.
        difference: the largest between an answer of the file and one of the pipeline.
        scale: the largest number in the pipeline's answers.
        batches: how many batches of images were compared.
    """

    path: Path
    inputs: dict[str, tuple[int | str, ...]]
    output: tuple[str, tuple[int | str, ...]]
    difference: float
    scale: float
    batches: int


def export(
    pipeline: Pipeline,
    path: str | os.PathLike[str],
    *,
    opset: int | None = None,
    dynamic: bool = True,
    size: tuple[int, int] | None = None,
) -> Exported:
    """Write a whole pipeline to a file that needs neither this library nor, as ONNX, torch.

    The pipeline is fused, exported, and read again; the file's answers are then compared with the pipeline's own, on
    random images and on the same images under colored light, in batches (and, where it may vary, of images) of several
    sizes. Only a file that passes comes to lie at `path`.

    Args:
        pipeline: left as it is.
        path: a new file, `.onnx` or `.pt2` (a program of `torch.export`).
        opset: of ONNX; :data:`OPSET` by default.
        dynamic: let the number of images vary, and their height and width where the pipeline takes images of any size.
            Otherwise a batch is one image.
        size: height and width of the images; those that the pipeline is for by default. Where they may vary, it is only
            the size that the program is traced with.

    Returns:
        What was written.

    Raises:
        ValueError: the file exists already, or is of no format known here.
        ImportError: a package is missing; the message says which to install.
        RuntimeError: the file's answers are not the pipeline's. Nothing is left of it.
    """
    if not isinstance(pipeline, Pipeline):
        raise ValueError(
            f"a {type(pipeline).__name__} does not say which pictures it takes: export lf.Classifier(network, classes)"
        )
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ValueError(f"the format follows from the name: {' or '.join(FORMATS)}, but got {path.name!r}")
    if path.exists():
        raise ValueError(f"{path} exists already: name another file, or delete it first")
    if path.suffix == ".onnx":
        _check_onnx(opset or OPSET)
    elif opset is not None:
        raise ValueError("an opset is for ONNX: name a file that ends in .onnx")
    size = size or pipeline.image_size
    if size is None:
        raise ValueError(
            "this pipeline does not say what size its images have: give it, such as size=(32, 32) or --size 32x32"
        )
    pipeline = _at_home(pipeline)
    inputs = pipeline.example_inputs(2 if dynamic else 1, size)
    varying = {0: "batch"} | ({2: "height", 3: "width"} if pipeline.dynamic_size else {}) if dynamic else {}
    _answer(pipeline, inputs)
    with _quiet():
        # In memory: where a disk is full, torch's own writer ends the process.
        content, read = FORMATS[path.suffix](pipeline, inputs, varying, opset or OPSET)
        found = _compare(pipeline, read, size, varying)
    if path.exists():
        raise ValueError(f"{path} was written by somebody else in the meantime: name another file")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
    shapes = [_shape(x.shape, varying) for x in inputs]
    answer = _shape(_answer(pipeline, inputs).shape, {0: varying.get(0)})
    described = dict(zip(pipeline.input_names, shapes, strict=True))
    return Exported(path, described, (pipeline.output_name, answer), *found)


def metadata(pipeline: Pipeline) -> dict[str, str]:
    """What a file says about itself: the version, the kind of pipeline, its configuration, and the names of classes."""
    from lightfast._version import __version__

    about = {"lightfast": __version__, "pipeline": type(pipeline).__name__, "config": json.dumps(pipeline.config)}
    classes = pipeline.config.get("classes")
    return about if classes is None else about | {"classes": json.dumps(classes)}


def _check_onnx(opset: int) -> None:
    """Raise a sentence if the packages are missing, or if there is no such set of operators."""
    missing = [package for package in _NEEDED if find_spec(package) is None]
    if missing:
        raise ImportError(f"an ONNX file needs {', '.join(missing)}, not installed here: pip install lightfast[export]")
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if not OPSET <= opset <= newest:
        raise ValueError(f"ONNX is written with an opset from {OPSET} to {newest}, not {opset}")


def _at_home(pipeline: Pipeline) -> Pipeline:
    """A copy for the CPU, in float32 and evaluation mode."""
    return deepcopy(pipeline).to("cpu", torch.float32).eval()


@torch.no_grad()
def _answer(pipeline: Pipeline, inputs: Sequence[Tensor]) -> Tensor:
    return pipeline(*inputs)


@torch.no_grad()
def _program(pipeline: Pipeline, inputs: tuple[Tensor, ...], varying: dict[int, str]) -> Any:
    """The fused pipeline as a program of `torch.export`."""
    dims = {axis: torch.export.Dim(name, min=1 if axis == 0 else 2) for axis, name in varying.items()}
    program = torch.export.export(fuse(pipeline), inputs, dynamic_shapes=tuple(dims for _ in inputs))
    for node in program.graph.nodes:
        # The lines of code that an operation comes from, with the folders of this machine.
        node.meta.pop("stack_trace", None)
    return program


def _to_pt2(
    pipeline: Pipeline, inputs: tuple[Tensor, ...], varying: dict[int, str], opset: int
) -> tuple[bytes, Answer]:
    file = io.BytesIO()
    torch.export.save(_program(pipeline, inputs, varying), file, extra_files=metadata(pipeline))
    content = file.getvalue()
    program = torch.export.load(io.BytesIO(content)).module()

    @torch.no_grad()
    def answer(inputs: Sequence[Tensor]) -> Tensor:
        return program(*inputs)

    return content, answer


def _to_onnx(
    pipeline: Pipeline, inputs: tuple[Tensor, ...], varying: dict[int, str], opset: int
) -> tuple[bytes, Answer]:
    import onnxruntime

    program: Any = torch.onnx.export(
        _program(pipeline, inputs, varying),
        dynamo=True,
        opset_version=opset,
        input_names=list(pipeline.input_names),
        output_names=[pipeline.output_name],
        dynamic_shapes=tuple(varying for _ in inputs),
        verbose=False,
    )
    written = program.model.opset_imports[""]
    if written != opset:
        raise ValueError(f"torch cannot write this pipeline with opset {opset}, but with {written}")
    for node in program.model.graph:
        # Where in the program an operation comes from: as large as the weights of a small network.
        node.metadata_props.clear()
    program.model.metadata_props.update(metadata(pipeline))
    content = program.model_proto.SerializeToString()
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise RuntimeError(f"the ONNX file that was made cannot be loaded by onnxruntime: {error}") from error

    def answer(inputs: Sequence[Tensor]) -> Tensor:
        feeds = {name: x.numpy() for name, x in zip(pipeline.input_names, inputs, strict=True)}
        return torch.from_numpy(session.run(None, feeds)[0])

    return content, answer


FORMATS: dict[str, Callable[..., tuple[bytes, Answer]]] = {".onnx": _to_onnx, ".pt2": _to_pt2}
"""By the suffix of a file, what makes its content and the function that is read back from that."""


def _compare(
    pipeline: Pipeline, answer: Answer, size: tuple[int, int], varying: dict[int, str]
) -> tuple[float, float, int]:
    """The largest difference, the largest answer, and how many batches were compared; raises if they are not equal."""
    height, width = size
    sizes = [size, (height + 13, 2 * width + 1)] if 2 in varying else [size]
    cases = [
        (batch, shape, saturation)
        for batch in (_DYNAMIC_BATCHES if varying else (1,))
        for shape in sizes
        for saturation in _SATURATIONS
    ]
    difference = scale = 0.0
    for seed, (batch, shape, saturation) in enumerate(cases):
        inputs = pipeline.example_inputs(batch, shape, saturation, seed=seed // len(_SATURATIONS))
        expected, given = _answer(pipeline, inputs), answer(inputs)
        if given.shape != expected.shape:
            raise RuntimeError(
                f"the exported file answers {batch} images of {shape[0]} x {shape[1]} pixels with {tuple(given.shape)} "
                f"instead of {tuple(expected.shape)}; it was not kept"
            )
        error = (given - expected).abs().max().item()
        # Not a number is larger than any difference.
        difference = max(difference, error) if error == error else float("inf")
        scale = max(scale, expected.abs().max().item())
    if not difference <= TOLERANCE * max(1.0, scale):
        raise RuntimeError(
            f"the exported file differs from the pipeline by {difference:.2g}, where answers are up to {scale:.2g}; "
            "it was not kept"
        )
    return difference, scale, len(cases)


def _shape(shape: Sequence[int], varying: dict[int, Any]) -> tuple[int | str, ...]:
    return tuple(varying.get(axis) or size for axis, size in enumerate(shape))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporter says on its way about itself, and about packages that nobody asked for."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
