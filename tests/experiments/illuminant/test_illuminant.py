"""Illuminant estimation: splits, batches, training, and a whole study in its folder."""

import dataclasses
import json
import statistics

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lightfast._experiments.data.generated_scenes import draw_scenes
from lightfast._experiments.data.lit_scenes import join_scenes
from lightfast._experiments.engine import Recipe, train
from lightfast._experiments.illuminant.evaluation import added_lights, estimates_under_light, mean_light, measure
from lightfast._experiments.illuminant.experiment import Illuminant
from lightfast._experiments.illuminant.plans import NETWORKS, PLANS, IlluminantPlan
from lightfast._experiments.illuminant.protocols import PROTOCOLS, held_out_scenes, splits_of
from lightfast._experiments.illuminant.task import (
    IlluminantTask,
    SceneAugmentation,
    _mixing,
    _Others,
    _prior,
    _through_log_sensors,
    even_weights,
)
from lightfast._experiments.records import keep_settings
from lightfast._pipelines.estimator import Estimator, SceneEncoding
from lightfast.metrics import recovery_error, reproduction_error

EVERYTHING = SceneAugmentation(
    smallest_part=0.3, exposure=1.0, black=0.02, sensor=0.1, log_sensor=0.1, mix=0.5, erase=0.5
)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def scenes():
    return draw_scenes(scenes=18, cameras=3, size=(16, 24))


@pytest.fixture(scope="module")
def sets():
    """Two data sets, of which the second has two cameras and images of another size."""
    first = draw_scenes(scenes=6, cameras=2, size=(16, 24))
    second = dataclasses.replace(draw_scenes(scenes=4, cameras=2, seed=1, size=(20, 20)), name="others", set_names=())
    return join_scenes([first, second])


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name != "leave-one-set-out"])
def test_splits_test_every_image_once_and_never_train_on_it(scenes, protocol):
    splits = splits_of(scenes, protocol)
    tested = torch.cat([split.test for split in splits]).tolist()
    assert len(set(tested)) == len(tested)
    assert sorted(tested) == list(range(len(scenes))) or protocol == "new-camera"
    for split in splits:
        assert not set(split.train.tolist()) & set(split.test.tolist())
        train_scenes, test_scenes = (set(scenes.scenes[part].tolist()) for part in (split.train, split.test))
        train_cameras, test_cameras = (set(scenes.cameras[part].tolist()) for part in (split.train, split.test))
        train_shown, test_shown = (set(scenes.shown[part].tolist()) for part in (split.train, split.test))
        if protocol == "scene-disjoint":
            assert not train_scenes & test_scenes
        elif protocol == "content-disjoint":
            assert not train_shown & test_shown
        elif protocol == "new-camera":
            assert not train_shown & test_shown and not train_cameras & test_cameras
        elif protocol == "leave-one-camera-out":
            assert not train_cameras & test_cameras and len(test_cameras) == 1
        elif protocol == "per-camera":
            assert train_cameras == test_cameras and len(test_cameras) == 1
    assert len({split.name for split in splits}) == len(splits)


def test_sets_are_left_out_whole(sets):
    first, second = splits_of(sets, "leave-one-set-out")
    assert (first.name, second.name) == ("without-drawn-scenes", "without-others")
    assert sorted(first.train.tolist()) == second.test.tolist() == list(range(12, 20))
    assert second.train.tolist() == first.test.tolist() == list(range(12))
    (only,) = splits_of(sets, "leave-one-set-out", tested=["others"])
    assert torch.equal(only.test, second.test) and torch.equal(only.train, second.train)


@pytest.mark.parametrize("protocol", ["leave-one-camera-out", "content-disjoint", "new-camera", "per-camera"])
def test_other_sets_are_added_to_training_and_never_tested(sets, protocol):
    alone = splits_of(sets.subset(range(12)), protocol)
    together = splits_of(sets, protocol, tested=["drawn scenes"])
    assert [split.name for split in together] == [split.name for split in alone]
    for ours, whole in zip(alone, together, strict=True):
        assert torch.equal(ours.test, whole.test)
        assert whole.train.tolist() == [*ours.train.tolist(), *range(12, 20)]
    with pytest.raises(ValueError, match="no data set 'NUS'; there are drawn scenes, others"):
        splits_of(sets, protocol, tested=["NUS"])


def test_errors_are_given_for_each_set_and_drift_for_each_light(sets):
    lights = added_lights(sets, (0.0, 0.5))
    estimates = torch.stack([F.normalize(torch.ones(20, 3) * light) for light in lights])
    found = measure(sets, estimates, lights)
    for number, name in enumerate(sets.set_names):
        alone = measure(
            sets.subset(torch.where(sets.sets == number)[0]), estimates[:1, sets.sets == number], lights[:1]
        )
        assert found["recovery"][0]["sets"][name] == alone["recovery"][0]
    assert found["drift"][0] == 0 and found["drift"][1] < 1e-3
    estimates[1, 7] = torch.tensor([1.0, 0.0, 0.0])
    assert measure(sets, estimates, lights)["drift"][1] > 10


def test_a_study_over_sets_says_what_was_added(tmp_path, sets):
    values = {"size": 16, "views": 1, "batch_size": 4, "confidence": 0.02}
    plan = PLANS["demo"].with_steps(1).with_values(values)

    def table(protocol, tested=""):
        study = Illuminant(
            sets, plan, tmp_path / protocol, ["general"], progress=False, say=str, protocol=protocol, tested=tested
        )
        return study.write_report(study.run())

    every = table("leave-one-set-out")
    assert "others: recovery error" in every and "Drift" in every
    some = table("leave-one-camera-out", "others")
    assert "camera-b" in some and "drawn scenes: recovery" not in some
    assert "drawn scenes added" in (tmp_path / "leave-one-camera-out" / "report.html").read_text()


def test_scenes_are_held_out_whole_and_in_equal_parts():
    numbers = torch.arange(40).repeat(3)
    parts = held_out_scenes(numbers, 4, seed=1)
    assert parts.bincount().tolist() == [30] * 4
    assert all(len(parts[numbers == scene].unique()) == 1 for scene in range(40))


def test_an_unknown_protocol_is_refused(scenes):
    with pytest.raises(ValueError, match="scene-disjoint"):
        splits_of(scenes, "random")
    with pytest.raises(ValueError, match="does not suit"):
        splits_of(draw_scenes(scenes=3, cameras=1), "leave-one-camera-out")


@pytest.mark.parametrize("color", ["log", "linear"])
def test_the_same_seed_gives_the_same_batch(scenes, color):
    task = IlluminantTask(scenes, SceneEncoding(color, 16), EVERYTHING)
    indices = torch.tensor([3, 1, 4, 1])
    first, second, other = (task.batch(indices, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert first[0].shape == (4, 3, 16, 16) and first[0].isfinite().all()
    assert torch.equal(first[0], second[0]) and not torch.equal(first[0], other[0])
    assert (first[1] is None) == (color == "linear")
    assert torch.equal(first[2], scenes.illuminants[indices])


def test_a_task_trains_on_the_chosen_scenes_alone(scenes):
    task = IlluminantTask(scenes, SceneEncoding(size=16), SceneAugmentation(), chosen=torch.tensor([7, 2]))
    assert task.samples == 2
    assert torch.equal(task.batch(torch.tensor([1]), torch.Generator())[2], scenes.illuminants[[2]])


def test_white_stays_white_through_augmentation():
    """A white wall under any light is a balanced image in which nothing may be left to find."""
    scenes = draw_scenes(scenes=6, cameras=1)
    wall = dataclasses.replace(scenes, images=scenes.illuminants[:, :, None, None].expand(-1, -1, 32, 48) * 0.3)
    task = IlluminantTask(wall, SceneEncoding(size=16), dataclasses.replace(EVERYTHING, exposure=0.0, black=0.0))
    encoded, offset, *_ = task.batch(torch.arange(6), torch.Generator().manual_seed(0))
    light = F.normalize((-(encoded.mean((2, 3)) + offset)).exp())
    torch.testing.assert_close(light, torch.full((6, 3), 3**-0.5), atol=1e-4, rtol=0)


def test_the_loss_is_that_of_the_estimate(scenes):
    """The balanced image's estimate, brought back to the light, has the angles that the loss says."""
    plain = SceneAugmentation(smallest_part=1, mirror=False, turn=False)
    for color, groups in (("log", 3), ("linear", None)):
        estimator = Estimator("cerberus", offset_groups=groups, color=color, size=16)
        task = IlluminantTask(scenes, estimator.encoding, plain, recovery=0.0)
        with torch.no_grad():
            _, values = task.loss(estimator.networks[0], task.batch(torch.arange(54), torch.Generator()))
            estimates = estimator(scenes.images)
        truth = scenes.illuminants
        torch.testing.assert_close(
            values["reproduction"], reproduction_error(estimates, truth).mean(), atol=0.05, rtol=0.01
        )
        torch.testing.assert_close(values["recovery"], recovery_error(estimates, truth).mean(), atol=0.05, rtol=0.01)


def test_training_lowers_the_error(scenes):
    torch.manual_seed(0)
    estimator = Estimator("cerberus-local", size=16)
    before = reproduction_error(estimator(scenes.images), scenes.illuminants).mean()
    task = IlluminantTask(scenes, estimator.encoding, SceneAugmentation(smallest_part=0.6))
    recipe = Recipe(80, batch_size=16, optimizer="adamw", lr=3e-3, schedule="cosine", warmup=10)
    train(estimator.networks[0], task, recipe, progress=False)
    with torch.no_grad():
        after = reproduction_error(estimator(scenes.images), scenes.illuminants).mean()
    assert after < 0.8 * before


def test_errors_of_an_oracle_are_nothing_and_of_gray_world_do_not_move(scenes):
    lights = added_lights(scenes, (0.0, 0.9))
    truth = torch.stack([F.normalize(scenes.illuminants * light) for light in lights])
    found = measure(scenes, truth, lights)
    assert found["recovery"][1]["all"]["p95"] < 1e-2
    assert set(found["reproduction"][0]["cameras"]) == set(scenes.camera_names)
    from lightfast.constancy import gray_world

    gray = measure(scenes, estimates_under_light(gray_world, scenes, torch.arange(54), lights), lights)
    first, last = (place["all"]["median"] for place in gray["reproduction"])
    assert first == pytest.approx(last, abs=1e-3) and first > 0.5


def test_the_mean_of_lights_follows_the_light():
    lights = [F.normalize(torch.rand(4, 3) + 0.1) for _ in range(3)]
    gain = torch.tensor([1.0, 0.3, 0.02])
    moved = mean_light([F.normalize(light * gain, dim=-1) for light in lights])
    torch.testing.assert_close(moved, F.normalize(mean_light(lights) * gain, dim=-1), atol=1e-6, rtol=0)


def test_a_study_is_written_resumed_and_refused_with_other_settings(tmp_path, scenes):
    plan = PLANS["demo"].with_steps(2).with_values({"size": 16, "views": 1, "batch_size": 8})
    said = []

    def study(**changes):
        values = {"chosen": ["original", "equivariant"], "plan": plan, **changes}
        return Illuminant(scenes, out=tmp_path, progress=False, say=said.append, **values)

    assert not study(seconds=-1.0).run() and "6 runs are left" in said[-1]
    assert len(study().run()) == 6
    last = study(chosen=["equivariant"], seeds=2)
    table = last.write_report(last.run())
    results = json.loads((tmp_path / "results.json").read_text())
    found = results["summary"]
    assert {"gray-world", "original", "equivariant", "equivariant-ensemble"} <= set(found)
    assert found["equivariant"]["seeds"] == 2 and len(results["runs"]) == 9 and "estimates" not in results["runs"][0]
    medians = [place["all"]["median"] for place in found["equivariant"]["mean"]["reproduction"]]
    assert max(medians) - min(medians) < 2e-3
    assert "ensemble of 2" in table and (tmp_path / "table.md").read_text() == table
    for name in ("errors.png", "corrected.png", "report.html"):
        assert (tmp_path / name).stat().st_size > 1000
    models = {path.parent.name for path in tmp_path.rglob("model.json")}
    assert models == {"original.fold-1.0", "equivariant.fold-1.0"}, "only what the report shows is kept"
    said.clear()
    records = study().run()
    assert said == [f"6 of 6 runs are in {tmp_path} already"]
    assert study().write_report(records) == table, "the same from disk as from memory"
    with pytest.raises(ValueError, match="other settings"):
        study(plan=plan.with_values({"lr": 0.5})).run()


def test_runs_of_before_are_read(tmp_path, scenes):
    """A file for each, named by network, split and seed, as they were kept first."""
    split = splits_of(scenes, "pooled")[0]
    estimates = F.normalize(torch.rand(11, len(split.test), 3), dim=-1)
    about = {"parameters": 5, "train_seconds": 1.0, "trained_together": 1, "steps": 2, "provenance": {}}
    (tmp_path / "runs").mkdir()
    arrays = {"estimates": estimates.numpy(), "test": split.test.numpy(), "about": np.array(json.dumps(about))}
    np.savez_compressed(tmp_path / "runs" / "local-wrapped.fold-1.3.npz", **arrays)
    ((run, record),) = Illuminant(scenes, PLANS["demo"], tmp_path).finished().items()
    assert run == ("local-wrapped", 3, "fold-1") and record["parameters"] == 5
    assert torch.equal(record["estimates"], estimates) and torch.equal(record["test"], split.test)


def test_several_protocols_share_what_they_can(tmp_path, scenes):
    parts = Illuminant(scenes, PLANS["demo"], tmp_path, protocol="all", seconds=5.0).parts()
    assert [part.out.name for part in parts] == [name for name in PROTOCOLS if name != "leave-one-set-out"]
    assert len({part.started for part in parts}) == 1 and all(part.classical is parts[0].classical for part in parts)
    with pytest.raises(ValueError, match="the protocol is one of pooled"):
        Illuminant(scenes, PLANS["demo"], tmp_path, protocol="random")


def train_estimator(scenes, plan, out, kind, members):
    said = Illuminant(scenes, plan, out, members=members, progress=False).train_one(kind, 0)
    assert f"{out / 'model'}.safetensors" in said
    return Estimator.load(out).eval()


def test_an_estimator_of_several_members_is_trained(tmp_path, scenes):
    plan = PLANS["demo"].with_steps(2).with_values({"size": 16, "batch_size": 4})
    estimator = train_estimator(scenes, plan, tmp_path, "local", 2)
    assert estimator.config["members"] == 2 and estimator.about["data"] == scenes.name
    assert estimator.about["kind"] == "local" and "command" in estimator.about["provenance"]
    first, second = (network.state_dict() for network in estimator.networks)
    assert any(not torch.equal(first[key], second[key]) for key in first)


def test_log_sensors_are_matrices_about_white_or_about_the_mean_color_alike(scenes):
    """All that a network sees and has to find is relative to the mean color; both ways give the same of it."""
    images = scenes.images[:4].clamp(min=0.05) / scenes.illuminants[:4, :, None, None]
    seen = _through_log_sensors(images, 0.1, torch.Generator().manual_seed(0)).log().flatten(2)
    matrix = _mixing(images, 0.1, torch.Generator().manual_seed(0))
    torch.testing.assert_close(matrix.sum(2), torch.ones(4, 3))
    logs = images.log().flatten(2)
    mean = logs.mean(2, keepdim=True)
    about_mean = mean + matrix @ (logs - mean)
    white_there = mean - matrix @ mean
    torch.testing.assert_close(about_mean - white_there, seen, atol=1e-4, rtol=0)
    assert (seen - logs).abs().mean() > 0.01
    gains = torch.rand(4, 3, 1) + 0.5
    relit = mean + gains + matrix @ (logs + gains - (mean + gains))
    torch.testing.assert_close(relit, about_mean + gains, atol=1e-4, rtol=0)


def test_weights_make_cameras_and_lights_even(scenes):
    few = torch.cat([torch.arange(18), torch.arange(18, 24)])
    weights = even_weights(scenes, few, 1.0)
    shares = torch.stack([weights[:18].sum(), weights[18:].sum()])
    torch.testing.assert_close(shares[0], shares[1], rtol=0.2, atol=0)
    assert even_weights(scenes, few, 0.0).eq(1).all()
    rare = dataclasses.replace(scenes, illuminants=scenes.illuminants.clone())
    rare.illuminants[:] = torch.tensor([0.5, 0.7, 0.5])
    rare.illuminants[3] = torch.tensor([0.9, 0.4, 0.1])
    assert even_weights(rare, torch.arange(18), 0.5).argmax() == 3


def test_an_epoch_has_every_scene_as_often_as_it_weighs(scenes):
    weights = torch.ones(54)
    weights[5], weights[7] = 4.0, 0.0
    task = IlluminantTask(scenes, SceneEncoding(size=16), SceneAugmentation(), weights=weights)
    drawn = task._weighed(torch.randperm(54), torch.Generator().manual_seed(0)).bincount(minlength=54)
    assert drawn.sum() == 54 and drawn[7] == 0 and 3 <= drawn[5] <= 5 and drawn[:5].max() <= 2


def test_the_expected_error_is_learned(scenes):
    """Half of the scenes are given a wrong light, at random; a network that sees which is unsure of them."""
    plan = PLANS["demo"].with_values({"size": 16, "confidence": 1.0, "lr": 0.02})
    estimator = plan.estimator("statistics", 0)
    encoding, plain = estimator.encoding, SceneAugmentation(smallest_part=1, mirror=False, turn=False)
    wrong = torch.arange(54) % 2 == 0
    images, lights = scenes.images.clone(), scenes.illuminants.clone()
    images[wrong, :, :4] = images.amax()
    lights[wrong] = F.normalize(lights[wrong] * (0.5 * torch.randn(27, 3)).exp())
    spoilt = dataclasses.replace(scenes, images=images, illuminants=lights)
    task = IlluminantTask(spoilt, encoding, plain, confidence=1.0)
    train(estimator.networks[0], task, dataclasses.replace(plan.recipe, steps=60, batch_size=54), progress=False)
    with torch.no_grad():
        spread = estimator.eval().confident(images)[1]
    assert spread[wrong].median() > 1.5 * spread[~wrong].median()


def test_a_student_learns_what_its_teacher_says(scenes, tmp_path):
    plan = PLANS["demo"].with_values({"size": 16, "views": 1, "distill": 1.0, "batch_size": 16, "lr": 0.01})
    teacher = plan.estimator("statistics", 3)
    # A teacher that is far from the truth.
    torch.nn.init.constant_(teacher.networks[0].light.bias[:1], 0.5)
    teacher.save(tmp_path / "teacher")
    study = Illuminant(scenes, plan, tmp_path / "student", progress=False, teacher=str(tmp_path / "teacher"), members=1)
    study.train_one("local", 0)
    student = Estimator.load(tmp_path / "student")
    assert student.about["teacher"] == str(tmp_path / "teacher")
    with torch.no_grad():
        wanted = teacher.eval()(scenes.images)
        error = reproduction_error(student(scenes.images), wanted).mean()
    assert error < 0.5 * reproduction_error(scenes.illuminants, wanted).mean()


def test_confident_networks_are_calibrated_on_other_splits_and_know_their_camera(scenes, tmp_path):
    plan = PLANS["demo"].with_steps(2).with_values({"size": 16, "views": 1, "batch_size": 8, "confidence": 0.02})
    study = Illuminant(
        scenes, plan, tmp_path, ["general"], progress=False, say=str, protocol="per-camera", photographs=False
    )
    study.write_report(study.run())
    found = json.loads((tmp_path / "results.json").read_text())["summary"]
    assert {"general", "general-for-camera", "general-prior"} <= set(found)
    assert 0.5 < found["general"]["mean"]["calibration"] < 2
    errors = [found[name]["mean"]["recovery"][0]["all"]["mean"] for name in ("general", "general-prior")]
    assert errors[1] < errors[0], "drawn lights are like each other"
    trained = Illuminant(
        scenes, plan, tmp_path / "one", progress=False, calibrated=str(tmp_path / "results.json"), members=2
    )
    trained.train_one("general", 0)
    factors = Estimator.load(tmp_path / "one").calibration
    names = ["histogram", "histogram", "statistics", "statistics", "general"]
    assert factors == tuple(found[name]["mean"]["calibration"] for name in names)
    with pytest.raises(ValueError, match="how far to believe local"):
        dataclasses.replace(trained, out=tmp_path / "two").train_one("local", 0)


def test_networks_go_on_from_other_sets_to_a_camera_with_its_prior(sets, tmp_path):
    values = {"size": 16, "views": 1, "batch_size": 4, "dropout": 0.0}
    shared = {"progress": False, "say": str, "photographs": False, "tested": "others"}
    plan = PLANS["known-cameras"].with_steps(2).with_values(values)
    before = Illuminant(sets, plan, tmp_path / "before", ["general"], protocol="leave-one-set-out", **shared)
    before.write_report(before.run())
    plan = PLANS["one-camera"].with_steps(2).with_values({**values, "lr": 0.0})
    study = Illuminant(
        sets, plan, tmp_path / "after", ["general"], protocol="per-camera", start=str(before.out), **shared
    )
    for split in study.splits():
        train = study._splits[split].train
        assert sets.sets[train].unique().tolist() == [1] and len(sets.cameras[train].unique()) == 1
    records = study.run()
    start = Estimator.load(before.out / "runs" / "statistics.without-others.0")
    for record in records:
        test = record["test"]
        if record["network"] == "statistics":
            assert "known" not in record
            wanted = estimates_under_light(start, sets, test, added_lights(sets)[:1])[0]
            assert reproduction_error(record["estimates"][0], wanted).max() < 0.1, "at a rate of 0 nothing moves"
        else:
            assert reproduction_error(record["known"], record["estimates"][0]).max() > 0.05
    study.write_report(records)
    for out in (before.out, study.out):
        found = json.loads((out / "results.json").read_text())["summary"]
        assert "general-prior-inside" in found and "statistics-prior-inside" not in found
    refused = {
        "on that one alone": {"protocol": "leave-one-camera-out", "tested": ""},
        "name it as tested": {"protocol": "leave-one-set-out", "tested": ""},
        "belongs to": {"plan": plan.with_values({"size": 32})},
        "goes on with networks": {"start": ""},
        "no study to go on with": {"start": str(tmp_path)},
        "networks of other data sets": {"start": str(tmp_path / "another"), "out": study.out},
        "finish that study": {"start": str(tmp_path / "another")},
    }
    keep_settings(tmp_path / "another", {"plan": "another"}, write=True)
    for number, (said, values) in enumerate(refused.items()):
        with pytest.raises(ValueError, match=said):
            dataclasses.replace(study, **({"out": tmp_path / str(number)} | values)).run()


def test_cameras_with_a_single_fold_are_estimated_as_if_nothing_was_known(sets, tmp_path):
    alone = dataclasses.replace(sets, folds=torch.where(sets.cameras == 0, 0, sets.folds))
    plan = PLANS["known-cameras"].with_steps(1).with_values({"size": 16, "views": 1, "batch_size": 4})
    study = Illuminant(alone, plan, tmp_path, ["histogram"], protocol="pooled", progress=False, say=str)
    for record in study.run():
        first = alone.cameras[record["test"]] == 0
        assert torch.equal(record["known"][first], record["estimates"][0][first])
        assert torch.equal(record["known_spread"][first], record["spread"][first])
        assert (record["known"][~first] != record["estimates"][0][~first]).any(1).all()


def test_a_prior_is_for_networks_that_say_how_sure_they_are():
    with pytest.raises(ValueError, match="set a confidence"):
        PLANS["best"].with_values({"prior": True})


def test_an_image_is_learned_with_what_others_of_its_camera_say(sets):
    plan = PLANS["known-cameras"].with_values({"size": 16})
    network = plan.estimator("histogram", 0).networks[0].eval()
    encoding, plain = SceneEncoding("log", size=16), SceneAugmentation(1.0, mirror=False, turn=False)

    def loss(scenes):
        task, generator = IlluminantTask(scenes, encoding, plain, prior=True), torch.Generator().manual_seed(0)
        batch = task.batch(torch.arange(len(scenes)), generator)
        everything_known = (*batch[:5], torch.ones_like(batch[5]))
        return batch[4], task.loss(network, everything_known)[1]["reproduction"]

    met, error = loss(sets)
    own, cameras = sets.illuminants[:, None], [sets.illuminants[sets.cameras == camera] for camera in sets.cameras]
    assert met.shape == (len(sets), 96, 3)
    for number, camera in enumerate(cameras):
        others = camera[(camera != own[number]).any(1)]
        assert torch.equal(met[number].unique(dim=0), others.unique(dim=0)), "all others, and not its own"
    same = F.normalize(torch.stack([camera[0] for camera in cameras]))
    _, told = loss(
        dataclasses.replace(sets, illuminants=same, images=sets.images * (same / sets.illuminants)[..., None, None])
    )
    assert told < 0.5 * error, "where a camera has one light, the others tell it"


def test_some_images_are_learned_as_those_of_a_camera_that_nobody_knows(sets):
    plan = PLANS["known-cameras"].with_values({"size": 16})
    network = plan.estimator("histogram", 0).networks[0].eval()
    encoding = SceneEncoding("log", size=16)
    task, generator = IlluminantTask(sets, encoding, SceneAugmentation(), prior=True), torch.Generator().manual_seed(0)
    shares, seen = [], None
    for _ in range(20):
        batch = task.batch(torch.arange(len(sets)), generator)
        shares.append(float(batch[5].mean()))
        seen = batch
    assert 0.75 < statistics.fmean(shares) < 0.95
    encoded, offset, lights, _, met, known = seen
    answers = network(encoded, _prior(met, known, lights, offset))
    without = network(encoded)
    assert torch.equal(answers[known == 0], without[known == 0]) and len(known.unique()) == 2
    assert (answers - without)[known == 1].abs().amax(1).min() > 0


@pytest.mark.parametrize("count", [2, 5, 96, 98, 140, 301])
def test_other_images_of_a_camera_are_not_seen_twice(count):
    others = _Others.by(torch.zeros(count, dtype=torch.int64))
    found = others.of(torch.arange(count), torch.Generator().manual_seed(0))
    for own, these in enumerate(found.tolist()):
        assert own not in these and len({*these}) == min(96, count - 1)
    with pytest.raises(ValueError, match="but one image"):
        _Others.by(torch.tensor([0, 0, 1]))


def test_another_black_level_moves_channels_by_shares_of_their_mean(scenes):
    encoding, generator = SceneEncoding("linear", size=16), torch.Generator().manual_seed(0)
    plain = SceneAugmentation(smallest_part=1.0, mirror=False, turn=False)
    indices = torch.arange(54)
    seen = [
        IlluminantTask(scenes, encoding, how).batch(indices, generator)[0]
        for how in (plain, dataclasses.replace(plain, black=0.02))
    ]
    moved = (seen[1] - seen[0]).mean((2, 3)) / seen[0].mean((2, 3))
    assert (seen[1] >= 0).all() and 0.005 < moved.std() < 0.04
    assert (moved[:, 0] - moved[:, 1]).std() > 0.005


def test_parts_are_trained_alone_and_answer_together(tmp_path, scenes):
    plan = PLANS["best"].with_steps(2).with_values({"size": 16, "batch_size": 4})
    study = Illuminant(scenes, plan, tmp_path, ["general"], progress=False, say=lambda _: None)
    study.write_report(study.run())
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names == [f"{part}.fold-{fold}.0" for part in ("histogram", "statistics") for fold in (1, 2, 3)]
    methods = json.loads((tmp_path / "results.json").read_text())["summary"]
    assert {"histogram", "statistics", "general"} <= set(methods) and "joint" not in methods
    parts = [methods[name]["parameters"] for name in ("histogram", "statistics")]
    assert methods["general"]["parameters"] == sum(parts)
    estimator = train_estimator(scenes, plan, tmp_path / "general", "general", 2)
    assert [type(network).__name__ for network in estimator.networks] == ["ChromaHistogram"] * 2 + [
        "ColorStatistics"
    ] * 2
    assert estimator.networks[2].light.in_features == 256


def test_networks_have_values_of_their_own_unless_they_are_given():
    plan = PLANS["best"]
    assert plan.plan_for("histogram").augmentation.smallest_part == 0.1
    assert plan.plan_for("wrapped").augmentation == plan.augmentation
    given = plan.with_values({"smallest_part": 0.7})
    assert given.plan_for("histogram").augmentation.smallest_part == 0.7
    assert given.plan_for("statistics").augmentation.mix == 0.3
    apart = dataclasses.replace(plan, own={"histogram": {"softness": 0.5}})
    with pytest.raises(ValueError, match="own cannot be set"):
        plan.with_values({"own": {}})
    with pytest.raises(ValueError, match="mapping"):
        plan.with_values({"options": 3})
    with pytest.raises(ValueError, match="same size and softness"):
        apart.estimator("general", 0)


def test_plans_take_other_values_and_refuse_unknown_ones():
    plan = PLANS["best"].with_values({"sensor": 0.2, "lr": 0.5, "size": 32})
    assert (plan.augmentation.sensor, plan.recipe.lr, plan.size) == (0.2, 0.5, 32)
    assert json.loads(json.dumps(plan.to_dict()))["augmentation"]["sensor"] == 0.2
    assert plan.augmentation_for("original").sensor == 0
    with pytest.raises(ValueError, match="no 'color'"):
        plan.with_values({"color": 1})
    with pytest.raises(ValueError, match="local"):
        Illuminant.choose("resnet")
    assert Illuminant.choose("all") == list(NETWORKS)
    with pytest.raises(ValueError, match="no network was named"):
        Illuminant.choose(" ")
    assert isinstance(plan, IlluminantPlan)
