"""`lightfast bench speedrun`: an attempt from the first step to its table."""

import json

import pytest
import torch

from lightfast._experiments.recognition.pictures import drawn_pictures
from lightfast._experiments.recognition.speedrun import Attempt, Mirrored, attempt, recipe_for
from lightfast._experiments.recognition.speedrun_report import write_speedrun_report


@pytest.fixture(scope="module")
def record():
    how = Attempt("resnet9-narrow", "equivariant", epochs=2, batch_size=16)
    said = []
    made = attempt(how, drawn_pictures(48, 24), torch.device("cpu"), target=0.0, say=said.append)
    assert len(said) == 1 and "2 epochs" in said[0]
    return made


def test_an_attempt_is_timed_and_judged_under_four_lights(record):
    assert record["steps"] == 6 and record["reached"]
    assert list(record["errors"]) == ["S = 0", "S = 0.9", "log-gradient", "gradient"]
    assert 0 < record["seconds"] <= record["seconds"] + record["capture_seconds"]
    assert record["warmup_seconds"] > 0 and record["evaluation_seconds"] > 0
    assert [line["step"] for line in record["curve"]] == [3, 6]
    assert json.loads(json.dumps(record)) == record


def test_its_report(record, tmp_path):
    slower = {**record, "seconds": record["seconds"] + 1, "seed": 1}
    missed = {**record, "seconds": 0.001, "reached": False, "seed": 2}
    table = write_speedrun_report(tmp_path, [slower, record, missed])
    assert f"{record['seconds']:.1f} s of training, by resnet9-narrow, equivariant, 2 epochs, seed 0." in table
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert "no attempt got there" in write_speedrun_report(tmp_path, [missed])


def test_the_recipe_follows_the_device():
    on_gpu, on_cpu = (recipe_for(Attempt(epochs=30), 50_000, torch.device(kind)) for kind in ("cuda", "cpu"))
    assert on_gpu.steps == on_cpu.steps == 2930 and on_gpu.warmup == 586
    assert on_gpu.graph and on_gpu.precision == "bfloat16" and not on_cpu.graph and on_cpu.precision == "float32"


def test_mirrored_scores_do_not_change_when_an_image_is_mirrored():
    network = Mirrored(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.LazyLinear(2)))
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(network(x), network(x.flip(3)))


@pytest.mark.parametrize(
    ("values", "sentence"), [({"strategy": "original"}, "light can fool"), ({"warmup": 1.5}, "share")]
)
def test_wrong_values_are_refused(values, sentence):
    with pytest.raises(ValueError, match=sentence):
        Attempt(**values)
