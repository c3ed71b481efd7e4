"""From a name to a model: the package, folders and files, the Hub; in this order, and by every way in."""

from pathlib import Path

import pytest
import torch

import lightfast as lf
from lightfast._pipelines import hub

PACKAGED = {
    "illuminant": lf.Estimator,
    "context-encoder-slim": lf.Inpainter,
    "resnet20-cifar10": lf.Classifier,
    "resnet20-cifar10-original": lf.Classifier,
}


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(0)
    return lf.Classifier("resnet20", ["cat", "dog"]).eval()


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Nothing here is to be looked for on the Hub, unless a test says so."""

    def refuse(name, **options):
        raise AssertionError(f"asked the Hub for {name}")

    monkeypatch.setattr(hub, "snapshot_download", refuse)


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_names_go_to_the_package_by_every_way(name):
    kind = PACKAGED[name]
    for model in (lf.load(name), lf.pretrained(name), kind.load(name), kind.from_pretrained(name)):
        assert type(model) is kind and not model.training


def test_the_package_comes_first_and_a_path_is_a_path(classifier, tmp_path, monkeypatch):
    classifier.save(tmp_path / "illuminant")
    monkeypatch.chdir(tmp_path)
    assert isinstance(lf.load("illuminant"), lf.Estimator)
    for path in ("./illuminant", Path("illuminant"), tmp_path / "illuminant"):
        assert isinstance(lf.load(path), lf.Classifier)


def test_folders_and_files_come_before_the_hub(classifier, tmp_path, monkeypatch):
    classifier.save(tmp_path / "owner" / "name")
    classifier.save(tmp_path, "mine")
    monkeypatch.chdir(tmp_path)
    images = torch.rand(1, 3, 32, 32)
    for name in ("owner/name", "mine.json", "mine.safetensors", str(tmp_path / "owner" / "name" / "model.json")):
        assert torch.equal(lf.load(name)(images), classifier(images))


def test_then_the_hub_is_asked(classifier, tmp_path, monkeypatch):
    folder = classifier.save_pretrained(tmp_path / "there")
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **options: str(folder))
    assert lf.load("owner/name").classes == ["cat", "dog"]


@pytest.mark.parametrize("name", ["resnet21", "./nowhere", "no/such/name", "/nowhere/at/all", Path("owner/name")])
def test_what_is_nowhere_is_answered_with_all_that_was_looked_for(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as caught:
        lf.load(name)
    sentence = str(caught.value)
    assert all(packaged in sentence for packaged in PACKAGED) and "OWNER/NAME" in sentence
    assert f"there is no folder or file {tmp_path / name}" in sentence


def test_another_kind_is_refused():
    with pytest.raises(ValueError, match="'illuminant' is a model of the kind Estimator, not Classifier"):
        lf.Classifier.load("illuminant")
