"""Mistakes that newcomers make, and what they are told: what is wrong with theirs, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import lightfast as lf
from lightfast._atomic import replacing

NET = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU())
GRAY = torch.zeros(1, 1, 32, 32)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: lf.convert(NET, (1, 3, 32, 32)), r"pass torch.zeros\(1, 3, 32, 32\), not \(1, 3, 32, 32\)"),
        (lambda: lf.certify(NET, (1, 3, 16, 16)), r"pass torch.zeros\(1, 3, 16, 16\)"),
        (lambda: lf.certify(NET, ()), r"pass torch.zeros\(1, 3, 32, 32\), not nothing"),
        (lambda: lf.certify(NET, torch.tensor(1.0)), "what the network is called with"),
        (
            lambda: lf.models.create("resnet50", num_classes=5),
            "resnet50 takes offset_groups, classes, scope, constrained and field, but no num_classes; the number of "
            "classes is classes=",
        ),
        (lambda: lf.models.create("resnet51", num_classes=5), "there is no network 'resnet51'"),
        (lambda: lf.models.create("resnet20")(GRAY), "a gray image has no colors that light could change"),
        (lambda: lf.wrap(NET)(GRAY), "a gray image has no colors that light could change"),
        (lambda: lf.pretrained("resnet20-cifar10")(GRAY), r"expected sRGB images \(N, 3, H, W\)"),
        (lambda: lf.Groups.even(2, 3), "at least 3 features, one for each of 3 groups, but there are 2$"),
        (lambda: lf.Groups.even(6, 0), "at least one group, not 0"),
        (
            lambda: lf.assert_equivariant(lf.models.create("resnet20").eval(), torch.rand(1, 3, 32, 32)),
            r"the output of CifarResNet, \(1, 10\), cannot follow the offsets of 3 groups. .* say expect='invariant'",
        ),
        (lambda: lf.wrap("resnet20"), "expected a network, as torch.nn.Module is, and not 'resnet20'"),
        (lambda: lf.export(NET, "net.onnx"), r"a Sequential does not say .* export lf.Classifier\(network, classes\)"),
    ],
)
def test_it_says_what_to_do(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()


def test_scores_that_divide_into_groups_are_said_to_be_invariant() -> None:
    scores = nn.Sequential(lf.wrap(nn.Sequential(nn.Conv2d(3, 6, 1), nn.Flatten(), nn.Linear(24, 9))))
    with pytest.raises(AssertionError, match=r"not equivariant: .* it is invariant, .* say expect='invariant'"):
        lf.assert_equivariant(scores, torch.randn(2, 3, 2, 2))
    with pytest.raises(AssertionError, match=r"tolerance 1e-10$"):
        lf.assert_equivariant(nn.ReLU(), torch.randn(2, 3))


def test_the_kind_of_a_model_needs_no_article(tmp_path: Path) -> None:
    lf.pretrained("illuminant").save(tmp_path)
    text = (tmp_path / "model.json").read_text()
    (tmp_path / "model.json").write_text(text.replace('"size": 64', '"size": "x"', 1))
    with pytest.raises(ValueError, match="does not describe a model of the kind Estimator: size must be"):
        lf.load(tmp_path)


def test_photo_commands_speak_of_what_was_asked(tmp_path: Path, run: Callable[..., tuple[Any, str, str]]) -> None:
    gray = tmp_path / "gray.jpg"
    Image.fromarray(np.linspace(0, 255, 48 * 64).reshape(48, 64).astype(np.uint8)).save(gray)
    code, _, said = run("classify", tmp_path)
    assert code == 2
    assert f"{tmp_path} is a folder: name the photographs in it, such as {tmp_path}/*.jpg" in said
    code, out, said = run("inpaint", gray, "--box", "10,10,16,16")
    assert (code, said) == (0, "") and "1 hole filled" in out
    code, _, said = run("balance", gray, "-o", tmp_path / "out")
    assert code == 1 and "a gray picture has no red, green and blue to balance" in said


def test_no_object_and_no_number_of_the_system_is_named(
    tmp_path: Path, run: Callable[..., tuple[Any, str, str]]
) -> None:
    nothing = tmp_path / "nothing.jpg"
    nothing.write_text("x")
    for command in (["balance", nothing, "-o", tmp_path / "out"], ["classify", nothing]):
        code, _, said = run(*command)
        assert code != 0 and f"{nothing} cannot be read as" in said and "object at" not in said
    code, _, said = run("balance", nothing, "-o", nothing)
    assert (code, said.strip()) == (2, f"lightfast: {nothing}: file exists")


def test_a_folder_that_is_gone_is_an_error_of_the_system_whoever_writes(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as met, replacing(tmp_path / "gone" / "model.safetensors") as partial:
        save_file({"weight": torch.zeros(3)}, partial)
    assert met.value.filename == str(tmp_path / "gone" / "model.safetensors")
