"""Tables, figures and the page of a comparison."""

import dataclasses
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from lightfast._experiments.lights import VARYING
from lightfast._experiments.recognition.examples import Example, collect_examples, examples_figure
from lightfast._experiments.recognition.experiment import Recognition
from lightfast._experiments.recognition.pictures import drawn_pictures
from lightfast._experiments.recognition.plans import PLANS
from lightfast._experiments.recognition.report import error_figure, varying_figure
from lightfast._experiments.records import run_folder
from lightfast._experiments.report.figures import DARK, LIGHT
from lightfast._experiments.report.page import Chapter, Picture, page
from lightfast._experiments.report.tables import Table
from lightfast._pipelines.classifier import Classifier
from lightfast.light import LIGHT_KINDS

PICTURES = drawn_pictures(train=8, test=40, size=16)
SATURATIONS = [step / 10 for step in range(11)]


def record(strategy, seed, first, last):
    return {
        "strategy": strategy,
        "title": strategy.capitalize(),
        "seed": seed,
        "parameters": 270_410,
        "saturations": SATURATIONS,
        "errors": [first + (last - first) * saturation for saturation in SATURATIONS],
        "mixed": last,
        "train_seconds": 10.0,
        "evaluate_seconds": 1.0,
        "provenance": {
            "command": "lightfast reproduce recognition",
            "commit": None,
            "date": "2026-01-01T00:00:00+00:00",
            "machine": {"system": "Linux x86_64", "cores": 2, "gpus": []},
            "versions": {"torch": "2.11.0"},
        },
    }


RECORDS = [record("original", 0, 8.0, 40.0), record("original", 1, 9.0, 42.0), record("equivariant", 0, 9.0, 9.5)]
"""As older versions wrote them, without the kinds of light that varies."""


def study(out):
    return Recognition(dataclasses.replace(PICTURES, name="CIFAR-10"), PLANS["paper"], out)


def write_report(out):
    return study(out).write_report(list(study(out).finished().values()))


def summarize(records):
    return study(None).summaries(records)


def with_kinds(entry):
    return entry | {"varying": {kind: entry["mixed"] + number for number, kind in enumerate(LIGHT_KINDS)}}


def finished(out):
    """A finished comparison, with real though untrained networks."""
    for entry in RECORDS:
        run = run_folder(out, (entry["strategy"], entry["seed"]))
        options = {"color": "log", "offset_groups": 3} if entry["strategy"] == "equivariant" else {}
        Classifier("resnet20", PICTURES.classes, **options).save(run)
        (run / "evaluation.json").write_text(json.dumps(entry))
    return out


@pytest.fixture
def folder(tmp_path):
    """One to change."""
    return finished(tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """One to look at, with its report, and the tables that it has."""
    out = finished(tmp_path_factory.mktemp("written"))
    return out, write_report(out)


def test_everything_is_written(written):
    folder, table = written
    names = {path.name for path in folder.iterdir()}
    assert {"results.json", "table.md", "errors.png", "examples.png", "report.html"} <= names
    assert (folder / "table.md").read_text() == table
    results = json.loads((folder / "results.json").read_text())
    assert results["summary"]["original"]["mean"]["errors"][0] == 8.5 and results["summary"]["original"]["seeds"] == 2
    assert results["summary"]["equivariant"]["spread"] is None
    assert len(results["runs"]) == 3 and {"command", "commit", "versions", "machine"} <= results["report"].keys()


def test_light_that_varies_has_a_table_and_a_figure_where_it_was_measured(folder, written):
    assert "hard edge" not in written[1] and not (written[0] / "varying.png").exists()
    for entry in RECORDS[:2]:
        path = run_folder(folder, (entry["strategy"], entry["seed"])) / "evaluation.json"
        path.write_text(json.dumps(with_kinds(entry)))
    table = write_report(folder)
    head, _, *rows = table[table.rindex("| Strategy") :].splitlines()
    assert all(title in head for title in VARYING.values())
    assert len(rows) == 1 and rows[0].startswith("| Original") and "45.00 ± 1.41" in rows[0]
    assert (folder / "varying.png").exists() and "hard edge" in (folder / "report.html").read_text()
    results = json.loads((folder / "results.json").read_text())["summary"]
    assert list(results["original"]["mean"]["varying"]) == list(LIGHT_KINDS)
    assert "varying" not in results["equivariant"]["mean"] and results["equivariant"]["mean"]["mixed"] == 9.5


def test_a_strategy_with_older_and_newer_records_has_what_all_have():
    (summary,) = summarize([RECORDS[0], with_kinds(RECORDS[1])])
    assert set(summary.mean) == {"saturations", "errors", "mixed"}


def test_every_kind_of_light_has_a_name_in_tables():
    assert tuple(VARYING) == LIGHT_KINDS


def test_the_page_stands_alone(written):
    html = (written[0] / "report.html").read_text()
    assert not re.search(r"(src|href)=[\"'](?!data:)", html) and "url(" not in html and "@import" not in html
    assert html.count("<picture>") == 2 and "prefers-color-scheme: dark" in html
    assert "8.50 ± 0.71" in html and "Published" in html
    assert "from 8.5 % errors in white light to 37.8 %" in html


def test_without_the_two_networks_there_are_no_examples(folder):
    for path in run_folder(folder, ("equivariant", 0)).iterdir():
        path.unlink()
    write_report(folder)
    assert not (folder / "examples.png").exists() and (folder / "report.html").exists()


def test_nothing_to_report(tmp_path):
    with pytest.raises(ValueError, match="no finished runs"):
        write_report(tmp_path)


def test_means_and_spreads():
    original, equivariant = summarize(RECORDS)
    assert (original.at("errors", 0), original.seeds) == (8.5, 2)
    assert original.spread["errors"][-1] == pytest.approx(2**0.5)
    assert equivariant.spread is None and equivariant.text("mixed") == "9.50"
    assert equivariant.ours and not original.ours


def test_tables_are_rectangles(written):
    for table in re.findall(r"(?:^\|.*\n)+", written[1], re.MULTILINE):
        assert len({len(line) for line in table.splitlines()}) == 1


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_figures_are_images_on_the_paper_of_their_theme(theme):
    answers = [[("cat", 0.7), ("dog", 0.3)]] * 2
    example = Example("cat", [torch.rand(3, 4, 4)] * 2, {"original": answers, "equivariant": answers})
    summaries = summarize([with_kinds(entry) for entry in RECORDS])
    drawn = [draw(summaries, "A title", theme) for draw in (error_figure, varying_figure)]
    for png in (*drawn, examples_figure([example, example], theme)):
        pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
        assert min(pixels.shape[:2]) > 500
        paper = tuple(int(theme.paper[place : place + 2], 16) for place in (1, 3, 5))
        assert tuple(pixels[0, 0]) == paper and pixels[::7, ::7].std() > 5


def test_examples_show_what_networks_say():
    original = Classifier("resnet20", PICTURES.classes).eval()
    equivariant = Classifier("resnet20", PICTURES.classes, color="log", offset_groups=3).eval()
    both = {"original": original, "equivariant": equivariant}
    examples = collect_examples(both, PICTURES.test_images, PICTURES.test_labels, count=3)
    assert len(examples) == 3 and len({example.truth for example in examples}) == 3
    for example in examples:
        assert len(example.images) == len(example.answers["original"]) == len(example.answers["equivariant"]) == 5
        assert example.images[0].shape == (3, 16, 16)
        first, last = dict(example.answers["equivariant"][0]), dict(example.answers["equivariant"][-1])
        assert list(first) == list(last) and first == pytest.approx(last, abs=0.02)
        assert list(first.values()) == sorted(first.values(), reverse=True)


def test_text_is_escaped():
    html = page("<b>", "a & b", [Chapter("h", ["<script>", Table([["x", "y"], ["<i>", "1"]]), Picture(b"", b"", '"')])])
    assert "<script>" not in html and "<i>" not in html and "<b>" not in html and 'alt="&quot;"' in html
