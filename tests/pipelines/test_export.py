"""Exported files answer as the pipeline does, read by other programs; nothing is left of those that do not."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import lightfast as lf
from lightfast._pipelines import export
from lightfast._pipelines.classifier import Classifier
from lightfast._pipelines.inpainter import Inpainter
from lightfast._pipelines.load import pretrained, pretrained_names
from lightfast.color import ChannelNorm

CLASSES = ["cat", "dog", "bird"]


def small_classifier(offset_groups=3, field=0):
    norm = ChannelNorm([2.0] * 3, [1.0] * 3)
    options = {"color": "log", "offset_groups": offset_groups, "field": field, "size": 16}
    return Classifier("resnet20", CLASSES, norm, **options).eval()


FRESH = {
    "cerberus": lambda: lf.Estimator("cerberus", members=2, views=4),
    "cerberus-local": lambda: lf.Estimator(
        "cerberus-local", members=2, views=4, options={"cerberus-local": {"norm": True}}
    ),
    "inpainter": lambda: Inpainter("context-encoder-slim"),
    "statistics": lambda: lf.Estimator("color-statistics"),
}
# One of each kind; the largest have hundreds of layers.
QUICK = ("context-encoder-slim", "resnet20-cifar10", "statistics")
NAMES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in (*pretrained_names(), *FRESH)
]


def relit(images, seed):
    """Other light on linear or on sRGB images, near enough: any gain a channel is an input like another."""
    gains = np.random.default_rng(seed).uniform(0.1, 1, (len(images), 3, 1, 1)).astype(np.float32)
    return images * gains


@pytest.mark.parametrize("name", NAMES)
def test_onnx_files_answer_as_the_pipeline(name, tmp_path):
    pipeline = FRESH[name]().eval() if name in FRESH else pretrained(name)
    written = lf.export(pipeline, tmp_path / "model.onnx")
    assert written.difference < 1e-4 and written.batches == (12 if pipeline.dynamic_size else 6)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]

    model = onnx.load(written.path)
    onnx.checker.check_model(model)
    about = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(about["config"]) == pipeline.config and about["pipeline"] == type(pipeline).__name__
    assert json.loads(about.get("classes", "null")) == pipeline.config.get("classes")
    assert all(not node.metadata_props for node in model.graph.node)

    session = onnxruntime.InferenceSession(written.path, providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()] == list(pipeline.input_names)
    first = session.get_inputs()[0].shape
    assert first == (["batch", 3, "height", "width"] if pipeline.dynamic_size else ["batch", 3, *pipeline.image_size])
    assert session.get_outputs()[0].name == pipeline.output_name
    sizes = [(33, 70), (128, 96)] if pipeline.dynamic_size else [pipeline.image_size]
    for batch, size in [(batch, size) for batch in (1, 3) for size in sizes]:
        images, *others = pipeline.example_inputs(batch, size, seed=9)
        for seen in (images, torch.from_numpy(relit(images.numpy(), batch))):
            inputs = dict(zip(pipeline.input_names, (seen, *others), strict=True))
            answer = session.run(None, {key: value.numpy() for key, value in inputs.items()})[0]
            with torch.no_grad():
                expected = pipeline(*inputs.values())
            torch.testing.assert_close(torch.from_numpy(answer), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("suffix", "groups"), [(".onnx", 3), (".pt2", None)])
def test_a_classifier_that_takes_a_plane_of_light_away(suffix, groups, tmp_path):
    written = lf.export(small_classifier(groups, field=1), tmp_path / f"model{suffix}")
    assert written.difference < 1e-4 and written.inputs == {"images": ("batch", 3, 16, 16)}


def test_programs(tmp_path):
    pipeline = lf.Estimator("cerberus-local", members=2, views=4, options={"cerberus-local": {"norm": True}}).eval()
    written = lf.export(pipeline, tmp_path / "model.pt2")
    assert written.inputs == {"images": ("batch", 3, "height", "width")} and written.output[0] == "illuminant"
    extra = {"config": "", "pipeline": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    assert json.loads(extra["config"]) == pipeline.config and extra["pipeline"] == "Estimator"
    assert str(export.__file__).rsplit("/", 1)[0].encode() not in (tmp_path / "model.pt2").read_bytes()
    images = torch.rand(3, 3, 40, 90)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(images), pipeline(images))


def test_a_folder_by_the_command_line(tmp_path, run):
    small_classifier().save(tmp_path / "run")
    code, out, err = run(
        "export", tmp_path / "run", "-o", tmp_path / "new" / "model.pt2", "--static", "--size", "24x32"
    )
    assert code == 0, err
    assert "images 1 x 3 x 24 x 32" in out and "scores 1 x 3" in out and "largest difference" in out
    program = torch.export.load(tmp_path / "new" / "model.pt2").module()
    assert program(torch.rand(1, 3, 24, 32)).shape == (1, 3)
    code, _, err = run("export", tmp_path / "run", "-o", tmp_path / "new" / "model.pt2")
    assert code == 2 and "exists already" in err


def test_the_pipeline_is_left_as_it_is(tmp_path):
    pipeline = small_classifier().train().double()
    before = {key: value.clone() for key, value in pipeline.state_dict().items()}
    lf.export(pipeline, tmp_path / "model.pt2", dynamic=False)
    assert pipeline.training and all(torch.equal(before[key], value) for key, value in pipeline.state_dict().items())


@pytest.mark.parametrize("harm", [0.1, float("nan")])
def test_nothing_is_left_of_a_file_that_answers_differently(tmp_path, monkeypatch, harm):
    def harmed(model):
        fused = lf.fuse(model)
        with torch.no_grad():
            fused.network.head.layer.linear.weight[0, 0] += harm
        return fused

    monkeypatch.setattr(export, "fuse", harmed)
    with pytest.raises(RuntimeError, match="differs from the pipeline"):
        lf.export(small_classifier(), tmp_path / "model.pt2", dynamic=False)
    assert not list(tmp_path.iterdir())


def test_a_pipeline_that_cannot_take_the_size_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"expected sRGB images \(N, 3, 128, 128\)"):
        lf.export(Inpainter("context-encoder-slim"), tmp_path / "model.onnx", size=(64, 64))
    assert not list(tmp_path.iterdir())


def test_a_size_is_needed(tmp_path):
    with pytest.raises(ValueError, match="--size"):
        lf.export(Classifier("resnet20", CLASSES), tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere", "-o", "model.onnx"], "'nowhere' is no model: it is not in the package"),
        ([".", "-o", "model.onnx"], "model.json"),
        (["resnet20-cifar10"], "--out"),
        (["resnet20-cifar10", "-o", "model.tflite"], ".onnx or .pt2, but got 'model.tflite'"),
        (["resnet20-cifar10", "-o", "model.onnx", "--opset", 11], "an opset from 18 to"),
        (["resnet20-cifar10", "-o", "model.onnx", "--opset", 999], "an opset from 18 to"),
        (["resnet20-cifar10", "-o", "model.pt2", "--opset", 20], "an opset is for ONNX"),
        (["resnet20-cifar10", "-o", "model.onnx", "--size", "big"], "such as 32x48, but got 'big'"),
        (["resnet20-cifar10", "-o", "model.onnx", "--size", "0x8"], "at least one pixel"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_answered_with_a_sentence(run, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("export", *arguments)
    assert code == 2 and sentence in err and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_missing_packages_are_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnxruntime" else object())
    code, _, err = run("export", "resnet20-cifar10", "-o", tmp_path / "model.onnx")
    assert code == 2 and "needs onnxruntime, not installed here: pip install lightfast[export]" in err
    assert not list(tmp_path.iterdir())
