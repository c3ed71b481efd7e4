"""Pipelines on the Hub: the files, without a network."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import ModelCard, hub_mixin
from huggingface_hub.errors import LocalEntryNotFoundError

import lightfast as lf
from lightfast._pipelines import hub
from lightfast._pipelines.classifier import Classifier
from lightfast._pipelines.inpainter import Inpainter
from lightfast.color import ChannelNorm

FILES = ["README.md", "config.json", "model.safetensors"]


def classifier(**options):
    torch.manual_seed(0)
    norm = ChannelNorm([0.5, 0.4, 0.3], [0.25, 0.2, 0.3])
    return Classifier("resnet20", ["cat", "dog"], norm, color="log", offset_groups=3, **options).eval()


KINDS = {
    "Classifier": classifier,
    "Estimator": lambda: lf.Estimator("cerberus-local", members=2, views=2).eval(),
    "Inpainter": lambda: Inpainter("context-encoder-slim").eval(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_and_back(tmp_path, kind):
    pipeline = KINDS[kind]()
    folder = pipeline.save_pretrained(tmp_path / "model")
    assert sorted(path.name for path in folder.iterdir()) == FILES
    loaded = type(pipeline).from_pretrained(folder)
    assert not loaded.training and loaded.config == pipeline.config
    size = pipeline.image_size or (16, 16)
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(*pipeline.example_inputs(2, size)), pipeline(*pipeline.example_inputs(2, size)), atol=0, rtol=0
        )
    assert type(lf.load(folder)) is type(pipeline)
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "lightfast" and card.data.pipeline_tag == pipeline.hub_task
    assert f"# {kind}" in card.text and "lf.load(" in card.text


def test_what_save_wrote_is_read_too(tmp_path):
    pipeline = classifier(size=16)
    loaded = Classifier.from_pretrained(str(pipeline.save(tmp_path)))
    assert loaded.config == pipeline.config


def test_saved_over_another_model(tmp_path):
    classifier().save(tmp_path)
    (tmp_path / "README.md").write_text("Mine.")
    other = KINDS["Estimator"]()
    other.save_pretrained(tmp_path)
    assert lf.Estimator.from_pretrained(tmp_path).config == other.config
    assert (tmp_path / "README.md").read_text() == "Mine."


def test_another_kind_is_refused(tmp_path):
    folder = classifier().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is a model of the kind Classifier, not Estimator"):
        lf.Estimator.from_pretrained(folder)


def edit(folder, **changes):
    path = folder / "config.json"
    description = json.loads(path.read_text())
    top = {name: changes.pop(name) for name in ("lightfast", "format") if name in changes}
    path.write_text(json.dumps({**description, **top, "config": {**description["config"], **changes}}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "resnet32"}, "holds the weights of another network"),
        ({"offset_groups": None}, "holds the weights of another network"),
        ({"classes": ["a", "b", "c"]}, "holds the weights of another network"),
        ({"model": "resnet21"}, "no network 'resnet21'"),
        ({"lightfast": "Painter"}, "does not describe a model of lightfast"),
        ({"format": 1}, "is in format 1, but this version of lightfast reads format 2"),
        ({"format": "new"}, "is in format 'new'"),
    ],
)
def test_other_architectures_and_formats_are_refused(tmp_path, changes, sentence):
    folder = classifier().save_pretrained(tmp_path)
    edit(folder, **changes)
    with pytest.raises(ValueError, match=sentence):
        Classifier.from_pretrained(folder)


def test_what_is_said_about_a_model_goes_with_it(tmp_path):
    pipeline = classifier()
    pipeline.about = {"trained": {"by": "me"}}
    assert Classifier.from_pretrained(pipeline.save_pretrained(tmp_path)).about == {"trained": {"by": "me"}}


def test_a_download(tmp_path, monkeypatch):
    folder = classifier().save_pretrained(tmp_path / "hub")
    asked = {}

    def download(repo_id, **options):
        asked[repo_id] = options
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", download)
    loaded = Classifier.from_pretrained("someone/model", revision="v1")
    assert loaded.classes == ["cat", "dog"] and asked["someone/model"]["revision"] == "v1"
    assert all(pattern.endswith((".json", ".safetensors")) for pattern in asked["someone/model"]["allow_patterns"])
    with pytest.raises(ValueError, match="'someone/model' is a model of the kind Classifier, not Estimator"):
        lf.Estimator.from_pretrained("someone/model")


def test_without_a_network(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise LocalEntryNotFoundError("no connection")

    with monkeypatch.context() as patched:
        patched.setattr(hub, "snapshot_download", fail)
        with pytest.raises(
            OSError, match=r"there is no folder or file .*model; and the .* Hub does not .*: no connection"
        ):
            Classifier.from_pretrained("someone/model")
    with pytest.raises(OSError, match="the Hugging Face Hub does not give it"):
        Classifier.from_pretrained("someone/other", local_files_only=True, cache_dir=tmp_path)


def test_what_is_uploaded(monkeypatch):
    calls = []

    class Api:
        def __init__(self, token=None):
            calls.append(("token", token))

        def create_repo(self, repo_id, private, exist_ok):
            calls.append(("create", repo_id, private))
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, *, repo_id, folder_path, commit_message, **options):
            files = sorted(path.name for path in Path(folder_path).iterdir())
            calls.append(("upload", repo_id, files, commit_message))
            assert lf.load(folder_path).config == classifier().config
            return "https://hub/commit"

    monkeypatch.setattr(hub_mixin, "HfApi", Api)
    assert classifier().push_to_hub("me/model", private=True, commit_message="Mine") == "https://hub/commit"
    assert calls == [("token", None), ("create", "me/model", True), ("upload", "me/model", FILES, "Mine")]


def test_without_the_package_folders_still_load(tmp_path):
    folder = classifier().save(tmp_path / "model")
    program = f"""
import sys
sys.modules["huggingface_hub"] = None
import lightfast as lf
classifier = lf.Classifier.from_pretrained({str(folder)!r})
for call in (lambda: classifier.save_pretrained("x"), lambda: classifier.push_to_hub("me/model"),
             lambda: lf.Classifier.from_pretrained("me/model")):
    try:
        call()
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.count("pip install lightfast[hub]") == 3
    assert not (tmp_path / "x").exists()
