"""Training, measuring and reporting on inpainting, on small networks and drawn textures."""

import dataclasses
import json
import math

import pytest
import torch

from lightfast._experiments.data.generated_textures import draw_textures, drawn_textures
from lightfast._experiments.engine import train
from lightfast._experiments.inpainting.evaluation import evaluate_inpainter, worst_stability
from lightfast._experiments.inpainting.experiment import Inpainting
from lightfast._experiments.inpainting.plans import NETWORKS, PLANS
from lightfast._experiments.inpainting.samples import Sampler
from lightfast._experiments.inpainting.task import Adversaries, HoleAugmentation, InpaintingTask
from lightfast._pipelines.inpainter import HoleEncoding, Inpainter, center_mask
from lightfast.color import linear_to_srgb
from lightfast.models._context_encoder import ContextDiscriminator

CPU = torch.device("cpu")
SMALL = {"base": 3, "bottleneck": 9}
USUAL = ["original", "wrapped", "equivariant", "equivariant-free"]
PLAN = (
    PLANS["demo"]
    .with_steps(3)
    .with_values({"batch_size": 4, "log_every": 1, "sheet_every": 2, "checkpoint_every": 2, "warmup": 0})
    .with_values({"held_out": 4, "discriminator": 2, "options": SMALL})
)


@pytest.fixture(scope="module")
def images():
    return drawn_textures(train=16, test=2)


@pytest.fixture(scope="module")
def study(images, tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    study = Inpainting(images, PLAN, out, USUAL, progress=False, say=lambda text: None)
    study.run()
    dataclasses.replace(study, only=Inpainting.parse_runs("equivariant:1")).run()
    return study


def small(kind="equivariant"):
    return PLAN.inpainter(NETWORKS[kind], 0)


def test_a_batch_has_a_hole_and_what_was_there(images):
    task = InpaintingTask(images.train, HoleEncoding("log"), HoleAugmentation(flip=False, smallest_part=1.0))
    batch = task.batch(torch.arange(3), torch.Generator().manual_seed(0))
    assert batch.seen.shape == (3, 3, 128, 128) and batch.filled is None
    torch.testing.assert_close(batch.real, images.train[:3, :, 32:96, 32:96] / 255)
    hole = batch.seen[:, :, 39:89, 39:89]
    assert torch.equal(hole, hole[:, :, :1, :1].expand_as(hole)), "the hole is one color"
    assert batch.seen[:, :, 32:39].std() > 0.05, "its border is seen"


def test_the_loss_weighs_the_border(images):
    task = InpaintingTask(images.train, HoleEncoding("log"), HoleAugmentation(), adversarial=0.0)
    assert task.weight.shape == (1, 1, 64, 64)
    assert int((task.weight == 10).sum()) == 64 * 64 - 50 * 50 and int((task.weight == 1).sum()) == 50 * 50
    model = Adversaries(small().network, ContextDiscriminator(2)).eval()
    batch = task.batch(torch.arange(2), torch.Generator().manual_seed(0))
    with torch.no_grad():
        loss, values = task.loss(model, batch)
        filled = linear_to_srgb(task.encoding.decode(model.generator(batch.seen), batch.taken))
    wanted = (task.weight * (filled - batch.real) ** 2).mean()
    torch.testing.assert_close(loss, wanted)
    assert {"reconstruction", "adversarial"} == set(values)


@pytest.mark.parametrize("hole", ["center", "random"])
def test_holes_stay_inside(images, hole):
    task = InpaintingTask(images.train, HoleEncoding("srgb"), HoleAugmentation(hole=hole))
    batch = task.batch(torch.arange(8), torch.Generator().manual_seed(0))
    flat = (batch.seen == batch.seen[:, :, 60:61, 60:61]).all(1)
    assert not flat[:, :39].all(2).any()
    with pytest.raises(ValueError, match="center or random"):
        HoleAugmentation(hole="square")
    with pytest.raises(ValueError, match="expected uint8 images"):
        InpaintingTask(images.train.float(), HoleEncoding("srgb"), HoleAugmentation())


def test_training_lowers_the_loss(images):
    torch.manual_seed(0)
    inpainter = Inpainter("context-encoder", options={"base": 6, "bottleneck": 30}, constrained=False)
    task = InpaintingTask(images.train, inpainter.encoding, HoleAugmentation(smallest_part=1.0, flip=False))
    log = {}
    recipe = PLAN.with_values({"steps": 24, "lr": 2e-3, "log_every": 6, "batch_size": 8}).recipe
    model = Adversaries(inpainter.network, ContextDiscriminator(2))
    train(model, task, recipe, progress=False, on_log=lambda step, values: log.update({step: values}))
    assert log[24]["reconstruction"] < 0.8 * log[6]["reconstruction"]
    assert {"loss", "reconstruction", "adversarial", "discriminator"} == set(log[6])


def test_numbers_are_what_they_say(images):
    inpainter = small().eval()
    found = evaluate_inpainter(inpainter, images.tests["Textures"], saturations=(0.0, 0.5, 0.8, 1.0), batch_size=4)
    with torch.no_grad():
        real = images.tests["Textures"] / 255
        filled = inpainter(real, center_mask())
    errors = (filled - real)[:, :, 39:89, 39:89].flatten(1)
    assert found.psnr[0] == pytest.approx(float((-10 * errors.square().mean(1).log10()).mean()), abs=1e-3)
    assert found.l1[0] == pytest.approx(100 * float(errors.abs().mean()), abs=1e-3)
    assert found.l2[0] == pytest.approx(100 * float(errors.square().mean()), abs=1e-3)
    assert found.images == 2 and found.stability[0] is None and found.stability[-1] is None
    assert worst_stability(found.saturations, found.stability) > 100
    assert math.isnan(worst_stability((0.0,), (None,)))


def test_the_original_is_not_stable(images):
    original = evaluate_inpainter(small("original"), images.tests["Textures"], saturations=(0.8,))
    wrapped = evaluate_inpainter(small("wrapped"), images.tests["Textures"], saturations=(0.8,))
    assert original.stability[0] < 40 and wrapped.stability[0] > 100


@pytest.mark.parametrize("kind", ["wrapped", "wrapped-plane", "equivariant-plane-free"])
def test_planes_are_stable_under_a_gradient(images, kind):
    found = evaluate_inpainter(small(kind), images.tests["Textures"], saturations=(0.8,))
    assert found.stability[0] > 100
    assert (found.varying["log-gradient"]["stability"] > 100) == ("plane" in kind)
    assert found.varying["halves"]["stability"] < found.varying["log-gradient"]["stability"]


def test_a_study_leaves_everything_in_its_folder(study):
    run = study.out / "runs" / "equivariant-0"
    assert {"model.safetensors", "model.json", "evaluation.json", "log.jsonl", "held-out.jsonl", "samples"} <= {
        path.name for path in run.iterdir()
    }
    assert not list(study.out.rglob("checkpoint*")) and (run / "samples" / "000002.png").stat().st_size > 1000
    assert json.loads((run / "held-out.jsonl").read_text())["step"] == 2
    record = json.loads((run / "evaluation.json").read_text())
    assert record["seed"] == 0 and record["tests"]["Textures"]["images"] == 2 and "command" in record["provenance"]
    assert Inpainter.load(run).about["kind"] == "equivariant"


def test_what_is_there_is_not_done_again(study):
    path = study.out / "runs" / "original-0" / "evaluation.json"
    before, said = path.stat().st_mtime_ns, []
    dataclasses.replace(study, seeds=1, say=said.append).run()
    assert path.stat().st_mtime_ns == before and "4 of 4 runs are in" in said[0]
    other = dataclasses.replace(study, plan=PLAN.with_steps(5))
    with pytest.raises(ValueError, match="other settings"):
        other.run()


def test_the_report_has_means_and_spreads(study):
    table = study.write_report(study.run())
    results = json.loads((study.out / "results.json").read_text())
    assert list(results["summary"]) == USUAL
    found = results["summary"]["equivariant"]
    assert found["seeds"] == 2 and len(found["spread"]["tests"]["Textures"]["psnr"]) == 11
    assert found["mean"]["tests"]["Textures"]["stability"][0] is None
    assert results["summary"]["original"]["seeds"] == 1 and len(results["runs"]) == 5
    assert "soft shadow" in table and "divided out pixel by pixel" in table
    assert "Context Encoder, equivariant" in table and "±" in table and "Published" not in table
    assert (study.out / "table.md").read_text() == table
    with pytest.raises(ValueError, match="no finished runs"):
        study.write_report([])


def test_the_report_has_pictures_unless_they_are_photographs_to_leave_out(study, images):
    records = study.run()
    dataclasses.replace(study, photographs=False).write_report(records)
    assert {"table.md", "results.json", "psnr.png", "filled.png", "square.png", "report.html"} <= {
        path.name for path in study.out.iterdir()
    }
    page = (study.out / "report.html").read_text()
    assert "The same images under other light" in page and "http" not in page.split("</style>")[1].replace("https", "")
    for name in ("filled.png", "square.png"):
        (study.out / name).unlink()
    pictures = dataclasses.replace(images, photographs=True)
    dataclasses.replace(study, data=pictures, photographs=False).write_report(records)
    assert not (study.out / "filled.png").exists()
    assert "The same images under other light" not in (study.out / "report.html").read_text()


def test_networks_as_users_type_them():
    assert Inpainting.choose("all") == USUAL
    for text, sentence in (("orignal", "no network 'orignal'"), (" ", "no network was named")):
        with pytest.raises(ValueError, match=sentence):
            Inpainting.choose(text)


def test_plans_change_by_name():
    plan = PLANS["best"].with_values({"hole": "random", "lr": 1e-3, "border": 5.0}).with_steps(10)
    assert (plan.augmentation.hole, plan.recipe.lr, plan.border, plan.recipe.steps) == ("random", 1e-3, 5.0, 10)
    assert json.loads(json.dumps(plan.to_dict()))["recipe"]["betas"] == [0.5, 0.999]
    with pytest.raises(ValueError, match="no 'speed'"):
        plan.with_values({"speed": 9})


def test_no_sheets_are_made_where_none_are_wanted(tmp_path):
    sampler = Sampler(Inpainter("context-encoder-slim"), draw_textures(2, seed=0), tmp_path, every=0)
    sampler(5, {})
    assert not list(tmp_path.iterdir())
