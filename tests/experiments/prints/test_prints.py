"""Prints that are learned under one lamp: reading them, training on them, and the report."""

import json

import numpy as np
import pytest
import torch

from lightfast._experiments.data.error import DataError
from lightfast._experiments.data.prints import drawn_prints, load_prints
from lightfast._experiments.plan import choose_plan
from lightfast._experiments.prints.experiment import PrintsStudy
from lightfast._experiments.records import Run
from lightfast._photographs.photo import Photo

pytestmark = pytest.mark.usefixtures("one_thread")

HEAD = "file,camera,scene,fold,kind,print,light,r,g,b\n"


def _folder(tmp_path):
    pixels = np.zeros((20, 24, 3), np.uint16)
    pixels[4:16, 6:20] = (30_000, 20_000, 10_000)
    pixels[9, 9] = 0
    Photo(pixels).save(tmp_path / "0.png")
    Photo(np.full((20, 24, 3), 500, np.uint16)).save(tmp_path / "1.png")
    rows = [
        "0.png,A,1,1,lab_printouts,7,2,3,4,0\n",
        "1.png,A,1,1,lab_printouts,7,1,0,0,2\n",
        "1.png,A,1,1,field,,,1,0,0\n",
    ]
    (tmp_path / "index.csv").write_text(HEAD + "".join(rows))
    return tmp_path


def test_prints_are_cut_out_of_what_is_masked(tmp_path):
    prints = load_prints(_folder(tmp_path), 8)
    expected = torch.tensor([30_000, 20_000, 10_000]) / 65535
    torch.testing.assert_close(prints.images[0], expected[:, None, None].expand(3, 8, 8))
    torch.testing.assert_close(prints.images[1], torch.full((3, 8, 8), 500 / 65535))
    assert prints.lamps_of("A") == ["1", "2"] and prints.prints.tolist() == [7, 7]
    assert prints.of("A", "1").tolist() == [1] and prints.of("A").tolist() == [0, 1]
    torch.testing.assert_close(prints.illuminants[0], torch.tensor([0.6, 0.8, 0.0]))


def test_folders_without_prints_are_named(tmp_path):
    (tmp_path / "index.csv").write_text(HEAD + "a.png,A,1,1,field,,,1,1,1\n")
    with pytest.raises(DataError, match=r"index\.csv names no images of the kind lab_printouts"):
        load_prints(tmp_path)
    (tmp_path / "index.csv").write_text("file\na.png\n")
    with pytest.raises(DataError, match="no column camera, scene"):
        load_prints(tmp_path)


def test_drawn_prints_differ_by_their_lamps_alone():
    prints = drawn_prints(count=3, lamps=2, size=16)
    assert prints.images.shape == (12, 3, 16, 16) and prints.images.min() > 0 and prints.images.max() == 1
    one, other = (-prints.images[prints.of("First", lamp)].log() for lamp in ("1", "2"))
    difference = one - other
    # Light, fall-off and noise: almost a plane of each channel.
    from lightfast.fields import remove_field

    assert remove_field(difference, 3, 1)[0].std() < 0.06 < remove_field(difference, 3, 0)[0].std()


def _study(tmp_path, *strategies, seeds=1, **more):
    device = torch.device("cpu")
    plan = choose_plan(PrintsStudy.recipes(None), "demo", device, steps=2, settings=["batch_size=4"])
    prints = drawn_prints(count=3, lamps=2, size=16)
    return PrintsStudy(prints, plan, tmp_path, strategies, seeds, size=16, progress=False, say=lambda _: None, **more)


def test_every_pair_of_lamps_is_in_the_report(tmp_path):
    study = _study(tmp_path, "original", "wrapped-plane")
    records = study.run()
    assert len(records) == 2 * 4
    text = study.write_report(records)
    summary = json.loads((tmp_path / "results.json").read_text())["summary"]["original"]
    pairs = summary["mean"]["pairs"]
    assert {camera: sorted(errors) for camera, errors in pairs.items()} == {
        "First": ["1 → 2", "2 → 1"],
        "Second": ["1 → 2", "2 → 1"],
    }
    mean = np.mean([error for errors in pairs.values() for error in errors.values()])
    assert summary["mean"]["mean"] == pytest.approx(mean, abs=1e-3)
    assert "hardest pair" in text and "Wrapped, plane" in text and (tmp_path / "lamps.png").exists()


def test_cameras_can_follow_one_another(tmp_path):
    first = _study(tmp_path, "original", camera="First")
    records = first.run()
    assert [record["camera"] for record in records] == ["First"] * 2
    assert "Second" not in first.write_report(records)
    records = _study(tmp_path, "original").run()
    assert len(records) == 4
    with pytest.raises(ValueError, match="all lamps of a camera yet"):
        first.report(records[:1])


def test_only_prints_that_were_learned_are_asked_for(tmp_path):
    study = _study(tmp_path, "original")
    lost = study.data.of("First", "1")[0]
    prints = study.data.prints.clone()
    prints[lost] = prints[lost + 1]
    object.__setattr__(study.data, "prints", prints)
    pipeline = study.make(Run("original", 0, "First-1"), tmp_path).pipeline
    assert len(pipeline.classes) == 3
    assert study.measure(Run("original", 0, "First-1"), pipeline)["images"] == {"1": 3, "2": 2}


@pytest.mark.parametrize("kind", PrintsStudy.kinds)
def test_strategies_on_log_rgb_cannot_be_fooled(tmp_path, kind):
    study, strategy = _study(tmp_path, kind), PrintsStudy.kinds[kind]
    pipeline = study.make(Run(kind, 0, "First-1"), tmp_path).pipeline.double().eval()
    linear = 0.2 + 0.3 * study.data.images[:2].double()
    across = torch.linspace(-0.3, 0.3, 16, dtype=torch.float64)
    from lightfast.color import linear_to_srgb

    light = torch.tensor([1.5, 1.0, 0.5])[:, None, None] * (across * strategy.field).exp()
    before, after = (pipeline(linear_to_srgb(x)) for x in (linear, linear * light))
    assert ((before - after).abs().max() < 1e-6) == (strategy.color == "log")


def test_other_cameras_are_named(tmp_path):
    with pytest.raises(ValueError, match="no camera 'Third'; there are First, Second"):
        PrintsStudy.load(None, {"size": 16, "camera": "Third"})
