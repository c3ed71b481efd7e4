"""Classifiers: what the network sees, saving and loading, and files that are not what they should be."""

import copy
import json

import pytest
import torch

from lightfast._fuse import fuse
from lightfast._pipelines.classifier import Classifier
from lightfast._pipelines.estimator import Estimator
from lightfast._pipelines.inpainter import Inpainter
from lightfast._pipelines.load import load, pretrained, pretrained_names
from lightfast._pipelines.pipeline import Pipeline
from lightfast._pipelines.preparation import BALANCES, Preparation
from lightfast.color import ChannelNorm, linear_to_log, srgb_to_linear
from lightfast.light import relight, varying_light
from lightfast.nn._constrained import Constrained

CLASSES = ["cat", "dog", "bird"]


def make(**options):
    torch.manual_seed(0)
    return Classifier("resnet20", CLASSES, ChannelNorm([0.5, 0.4, 0.3], [0.25, 0.2, 0.3]), **options).eval()


@pytest.fixture
def images():
    return torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 0.5 + 0.5


@pytest.fixture
def saved(tmp_path):
    return make().save(tmp_path / "run")


@torch.no_grad()
@pytest.mark.parametrize("options", [{"offset_groups": 3}, {"offset_groups": 3, "scope": "pixel"}, {}])
def test_log_classifiers_do_not_see_the_light(images, options):
    classifier = make(color="log", **options)
    lit = relight(images, 0.6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(classifier(lit), classifier(images), atol=2e-3, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("field", [0, 1, 2])
@pytest.mark.parametrize("groups", [None, 3])
def test_a_field_of_light_is_not_seen(images, field, groups):
    """A gradient in log is a plane there; without a field it is seen."""
    classifier = make(color="log", offset_groups=groups, field=field)
    light = varying_light("log-gradient", 3, 0.6, generator=torch.Generator().manual_seed(0)).maps((16, 16))
    change = (classifier(relight(images, illuminants=light)) - classifier(images)).abs().max()
    assert change < 2e-3 if field else change > 2e-2


@torch.no_grad()
def test_the_original_sees_the_light(images):
    classifier = make()
    lit = relight(images, 0.6, generator=torch.Generator().manual_seed(0))
    assert (classifier(lit) - classifier(images)).abs().max() > 0.05


@torch.no_grad()
@pytest.mark.parametrize("balance", BALANCES)
def test_balance_comes_first(images, balance):
    classifier = make(balance=balance)
    balanced = classifier.prepare.correct(images)
    assert balanced.min() >= 0 and balanced.max() <= 1
    assert not torch.equal(balanced, images)
    torch.testing.assert_close(classifier(images), classifier.network(classifier.prepare.norm(balanced)))


@torch.no_grad()
def test_gray_world_balance_makes_the_mean_gray(images):
    balanced = make(balance="gray-world").prepare.correct(images * 0.6)
    mean = srgb_to_linear(balanced).mean((2, 3))
    torch.testing.assert_close(mean, mean.mean(1, keepdim=True).expand_as(mean), atol=1e-5, rtol=0)


def test_preparation_of_log_is_the_normalised_logarithm_without_its_mean(images):
    norm = ChannelNorm([1.0, 2.0, 3.0], [0.5, 1.0, 2.0])
    prepared = Preparation(norm, "log")(images)
    expected = norm(linear_to_log(srgb_to_linear(images)))
    torch.testing.assert_close(prepared, expected - expected.mean((2, 3), keepdim=True))


def test_a_dark_channel_is_filled_with_the_pattern_of_the_others(images):
    prepare = Preparation(ChannelNorm([0.0] * 3, [1.0] * 3), "log", fill=True)
    dark = images.clone()
    dark[:, 2] = 0
    prepared, whole = prepare(dark), prepare(images)
    torch.testing.assert_close(prepared[:, :2], whole[:, :2])
    torch.testing.assert_close(prepared[:, 2], whole[:, :2].mean(1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"color": "log", "offset_groups": 3, "fill": True, "size": 32},
        {"color": "log", "offset_groups": 3, "scope": "pixel"},
        {"balance": "quasi-unsupervised"},
        {"color": "log", "field": 1},
    ],
)
@torch.no_grad()
def test_saved_and_loaded_is_the_same(tmp_path, images, options):
    classifier = make(**options)
    classifier.about = {"strategy": "mine", "steps": [1, 2]}
    loaded = Classifier.load(classifier.save(tmp_path / "a" / "b"))
    assert not loaded.training
    assert (loaded.config, loaded.about, loaded.classes) == (classifier.config, classifier.about, CLASSES)
    torch.testing.assert_close(loaded(images), classifier(images), rtol=0, atol=0)
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == ["model.json", "model.safetensors"]


@pytest.mark.parametrize(
    "wrong", [torch.rand(3, 8, 8), torch.rand(1, 1, 8, 8), torch.zeros(1, 3, 8, 8, dtype=torch.uint8)]
)
def test_wrong_images_are_refused(wrong):
    with pytest.raises(ValueError, match=r"expected sRGB images \(N, 3, H, W\)"):
        make()(wrong)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"color": "hsv"}, "srgb or log"),
        ({"balance": "white-patch"}, "no color balance 'white-patch'"),
        ({"field": 1}, "from log RGB, not from sRGB"),
        ({"color": "log", "field": -1}, "the order of a field"),
    ],
)
def test_wrong_options_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        make(**options)


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="at least two classes"):
        Classifier("resnet20", ["cat"])


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*model\.json"):
        Classifier.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x80\x04pickle", b"PK\x03\x04zip"])
def test_foreign_weights_are_refused(saved, content):
    (saved / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="is not a complete safetensors file"):
        Classifier.load(saved)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_truncated_weights_are_refused(saved, share):
    path = saved / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="is not a complete safetensors file"):
        Classifier.load(saved)


def test_weights_of_another_network_are_refused(tmp_path, saved):
    other = make(color="log", offset_groups=3).save(tmp_path / "other")
    (saved / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="weights of another network"):
        Classifier.load(saved)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "does not describe a model of lightfast"),
        ('{"lightfast": "Painter"}', "does not describe a model of lightfast"),
        ('{"lightfast": "Classifier"}', "is in format None"),
        ('{"lightfast": "Classifier", "format": 2}', "it does not say model, classes"),
        ('{"lightfast": "Classifier", "format": 2, "config": []}', "must be a table of names and values"),
    ],
)
def test_foreign_descriptions_are_refused(saved, content, sentence):
    (saved / "model.json").write_text(content)
    with pytest.raises(ValueError, match=sentence):
        Classifier.load(saved)


def test_an_unknown_network_in_the_description_is_named(saved):
    edit(saved, model="resnet9000")
    with pytest.raises(ValueError, match="resnet9000"):
        load(saved)


def edit(folder, **changes):
    path = folder / "model.json"
    description = json.loads(path.read_text())
    path.write_text(json.dumps({**description, "config": {**description["config"], **changes}}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"size": "big"}, "size must be a whole number or null, but is 'big'"),
        ({"size": True}, "size must be a whole number or null, but is True"),
        ({"offset_groups": 3.0}, "offset_groups must be a whole number or null, but is 3.0"),
        ({"fill": 1}, "fill must be true or false, but is 1"),
        ({"model": None}, "model must be text, but is None"),
        ({"classes": "cat"}, "classes must be a list, each text, but is 'cat'"),
        ({"classes": ["cat", 3]}, r"classes must be a list, each text, but is \['cat', 3\]"),
        ({"color": "hsv"}, "color must be 'srgb' or 'log' or null, but is 'hsv'"),
        ({"balance": "white-patch"}, "balance must be 'gray-world' or .* or null"),
        ({"details": {}, "norm": 1}, "it says 'details', 'norm', but there is only model, classes, color"),
    ],
)
def test_wrong_values_in_the_description_are_named(saved, changes, sentence):
    edit(saved, **changes)
    with pytest.raises(ValueError, match=f"does not describe a model of the kind Classifier: {sentence}"):
        load(saved)


@pytest.mark.parametrize("softness", ["0.1", None, True, float("nan"), float("inf")])
def test_numbers_are_numbers(tmp_path, softness):
    folder = Estimator("cerberus", size=16).save(tmp_path)
    edit(folder, softness=softness)
    with pytest.raises(ValueError, match="softness must be a number, but is"):
        load(folder)


def test_what_the_description_leaves_out_is_the_default(saved):
    path = saved / "model.json"
    description = json.loads(path.read_text())
    del description["config"]["field"], description["about"]
    path.write_text(json.dumps(description))
    assert load(saved).config["field"] == 0 and load(saved).about == {}


def test_configurations_are_the_constructors_arguments():
    classifier = Classifier("resnet20", ("cat", "dog"), color="log", size=32)
    assert classifier.config == {
        **{"model": "resnet20", "classes": ["cat", "dog"], "color": "log", "offset_groups": None, "scope": "image"},
        **{"constrained": True, "balance": None, "fill": False, "field": 0, "size": 32},
    }
    assert Classifier.from_config(classifier.config).config == classifier.config
    again = copy.deepcopy(classifier)
    assert again.config == classifier.config and again.config is not classifier.config

    class Named(Classifier):
        def __init__(self, name: str) -> None:
            super().__init__("resnet20", [name, "other"])

    try:
        assert Named("cat").config == {"name": "cat"} and Named.from_config({"name": "cat"}).classes == ["cat", "other"]
    finally:
        del Pipeline.kinds["Named"]


def test_another_kind_of_pipeline_is_refused(saved):
    class Nothing(Pipeline):
        pass

    try:
        with pytest.raises(ValueError, match="is a model of the kind Classifier, not Nothing"):
            Nothing.load(saved)
    finally:
        del Pipeline.kinds["Nothing"]


def test_unknown_pretrained_models_list_what_exists():
    there = "context-encoder-slim, illuminant, resnet20-cifar10, resnet20-cifar10-original"
    with pytest.raises(ValueError, match=f"no pretrained model 'resnet21'; there are: {there}"):
        pretrained("resnet21")


@pytest.mark.parametrize("name", pretrained_names())
def test_pretrained_models_load(name):
    assert not pretrained(name).training
    assert not any(parameter.requires_grad for parameter in pretrained(name).parameters())


LOADED = {
    "classifier": lambda: make(color="log", offset_groups=3),
    "local": lambda: make(color="log", offset_groups=3, scope="pixel"),
    "balanced": lambda: make(balance="quasi-unsupervised"),
    "cerberus": lambda: Estimator("cerberus", size=16),
    "inpainter": lambda: Inpainter("context-encoder-slim"),
}


@pytest.fixture(params=LOADED)
def loaded(request, tmp_path):
    return load(LOADED[request.param]().save(tmp_path))


def test_loaded_pipelines_are_as_fast_without_no_grad(loaded):
    inputs = loaded.example_inputs(2, loaded.image_size or (16, 16))
    first = loaded(*inputs)
    assert not first.requires_grad
    layers = [layer for layer in loaded.modules() if isinstance(layer, Constrained)]
    kept = [layer._kept._kept for layer in layers]
    assert all(each is not None and each.made for each in kept)
    before = [dict(each.made) for each in kept]
    assert torch.equal(loaded(*inputs), first)
    with torch.no_grad():
        assert torch.equal(loaded(*inputs), first)
    for layer, made in zip(layers, before, strict=True):
        now = layer._kept._kept.made
        assert now.keys() == made.keys() and all(now[kind] is made[kind] for kind in made), "projected again"


def test_loaded_pipelines_can_be_trained_on(loaded):
    inputs = loaded.eval().example_inputs(2, loaded.image_size or (16, 16))
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    network = loaded.networks if isinstance(loaded, Estimator) else loaded.network
    before = {name: value.clone() for name, value in network.named_parameters()}
    trained = copy.deepcopy(loaded).train()
    assert all(parameter.requires_grad for parameter in trained.parameters())
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    trained(*inputs).square().sum().backward()
    optimizer.step()
    after = dict((trained.networks if isinstance(trained, Estimator) else trained.network).named_parameters())
    assert any(not torch.equal(value, before[name]) for name, value in after.items())
    assert all(parameter.requires_grad for parameter in trained.eval().parameters())
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_what_the_user_froze_stays_frozen(saved):
    classifier = load(saved)
    classifier.requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in classifier.train().parameters())
    classifier = load(saved).train()
    classifier.network.stem.requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in classifier.eval().train().network.stem.parameters())
    assert not any(parameter.requires_grad for parameter in fuse(load(saved)).train().parameters())
