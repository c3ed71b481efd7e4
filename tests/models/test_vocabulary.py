"""One vocabulary for all networks: the same words in every one, and nothing in them about machines."""

import inspect
import re
from pathlib import Path

import pytest
import torch

from lightfast import models
from lightfast.models._vocabulary import (
    ConventionalVocabulary,
    LiftedVocabulary,
    PixelVocabulary,
    color_vocabulary,
    vocabulary,
)


def words(kind):
    signatures = {name: inspect.signature(value) for name, value in vars(kind).items() if not name.startswith("_")}
    return {
        name: [(p.name, p.default) for p in signature.parameters.values()] for name, signature in signatures.items()
    }


def test_they_have_the_same_words():
    assert words(ConventionalVocabulary) == words(LiftedVocabulary)
    assert words(PixelVocabulary).items() <= words(LiftedVocabulary).items()
    assert set(words(PixelVocabulary)) == {"width", "enter", "unit", "subsample", "max_pool", "classify"}


def test_who_speaks_which():
    assert all(isinstance(make(None), ConventionalVocabulary) for make in (vocabulary, color_vocabulary))
    assert isinstance(vocabulary(3), LiftedVocabulary) and isinstance(color_vocabulary(3), LiftedVocabulary)
    assert isinstance(vocabulary(3, "pixel"), PixelVocabulary)
    with pytest.raises(ValueError, match="3 groups"):
        color_vocabulary(2)
    with pytest.raises(ValueError, match="at each pixel"):
        vocabulary(3, "pixel", constrained=False)


def test_networks_do_not_ask_on_what_machine_they_are():
    asks = re.compile(r"\.is_cuda|\.dtype [!=]=|device\.type [!=]=|backend_of|\.is_available|is_compiling|cpu_count")
    for path in Path(models.__file__).parent.rglob("*.py"):
        assert not asks.search(path.read_text(encoding="utf-8")), path


KEPT = {
    ("cerberus", None): ["stages.0.weight", "squeeze.weight", "first.weight", "second.bias"],
    ("cerberus", 3): ["stages.0.weight", "squeeze.weight", "first.weight", "second.bias"],
    ("cerberus-local", None): ["mix.conv.weight", "stages.0.conv.weight", "light.weight", "confidence.bias"],
    ("cerberus-local", 3): ["mix.conv.weight", "stages.0.conv.weight", "light.weight", "confidence.bias"],
    ("context-encoder-slim", None): ["first.0.weight", "encoder.0.0.bias", "squeeze.1.bias", "last.weight"],
    ("context-encoder-slim", 3): ["first.conv.weight", "encoder.0.conv.bias", "squeeze.norm.bias", "last.conv.weight"],
}


@pytest.mark.parametrize(("name", "groups"), KEPT)
def test_weights_keep_their_names_for_the_sake_of_files(name, groups):
    found = models.create(name, groups).state_dict().keys()
    assert set(KEPT[name, groups]) <= found


@pytest.mark.parametrize("groups", [None, 3])
def test_weights_of_units_with_batch_norm_keep_their_names(groups):
    parts = ("0", "1") if groups is None else ("conv", "norm")
    found = models.create("cerberus-local", groups, norm=True).state_dict().keys()
    assert {f"{stage}.body.{part}.weight" for stage in ("stages.0", "mix") for part in parts} <= found


@pytest.mark.parametrize("groups", [None, 3])
def test_offsets_can_be_left_behind_and_come_back(groups):
    words, images = color_vocabulary(groups), torch.rand(2, 3, 8, 8)
    start = words.enter(keep_offset=True)(images)
    rest = words.without_offset(start)
    plain = rest if groups is None else rest.map
    torch.testing.assert_close(words.with_offset(plain, start), images)
