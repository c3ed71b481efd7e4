"""`lightfast bench`: what is measured, what is written, and what is said of what cannot be."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from lightfast._backends.native import backend as native
from lightfast._experiments.speed import growth, steps
from lightfast._experiments.speed import run as bench_run
from lightfast._experiments.speed.aims import aims_for
from lightfast._experiments.speed.compare import Comparison, comparisons, measure
from lightfast._experiments.speed.growth import Setting
from lightfast._experiments.speed.launches import LAUNCHED, launches
from lightfast._experiments.speed.levers import LEVERS, Lever, _work, levers
from lightfast._experiments.speed.report import speed_tables
from lightfast._experiments.speed.subjects import LARGE, SUBJECTS, VARIANTS, Subject, build, parse_subject
from lightfast._experiments.speed.timing import Pace, Work, interleaved, peak_memory
from lightfast.cli import main

CPU = torch.device("cpu")
TINY = Subject("resnet20", 2, 16)


def test_rounds_are_interleaved_and_bounded():
    calls = []
    works = {name: Work(lambda name=name: calls.append(name), CPU, graph=False) for name in "ab"}
    samples = interleaved(works, Pace(seconds=0, rounds=(3, 9), shortest=0))
    assert {name: len(values) for name, values in samples.items()} == {"a": 3, "b": 3}
    assert "".join(calls)[-6:] == "ababab"


def test_peak_memory_counts_activations_gradients_and_weights():
    layer = torch.nn.Linear(1000, 1000, bias=False)
    x = torch.randn(500, 1000)

    def step():
        layer(x).square().sum().backward()

    step()
    # The weight, its gradient, the output and the gradient of the output, and what is passed between them.
    assert 4e6 + 4e6 + 2e6 + 2e6 <= peak_memory(step, layer, CPU) <= 2e7


@pytest.mark.parametrize("subject", dict.fromkeys((s.network, s.size) for s in SUBJECTS["cpu"]), ids=lambda key: key[0])
def test_same_widths_are_those_of_ours(subject):
    with torch.device("meta"):
        made = [build(Subject(subject[0], 1, subject[1]), name) for name in ("plain", "same-widths", "ours")]
    widths = [[m.out_channels for m in network.modules() if isinstance(m, torch.nn.Conv2d)] for network in made]
    # Cerberus's squeezing convolution of 16 features has no width to choose.
    differing = [a != b for a, b in zip(widths[1], widths[2], strict=True)]
    assert sum(differing) == (subject[0] == "cerberus") and widths[0] != widths[1]


def test_all_comparisons_come_in_order_of_importance():
    parts = comparisons(SUBJECTS["cuda"], ["bfloat16", "float32"], compiled=True)
    assert parts[0].subject == Subject("resnet20", 128, 32) and parts[0].precision == "bfloat16"
    assert [part.compiled for part in parts].index(True) == len(parts) - 2
    plan = bench_run._plan(bench_run.Request(CPU, Path()))
    names = [part if isinstance(part, str) else part.title for part in plan]
    # The large ones take longest and come last, after the compilers.
    assert names.index("levers") == 9 and names[-2:] == [
        f"resnet20, 1024 x 32 px, {p}" for p in ("float32", "bfloat16")
    ]
    assert names[-3] == "resnet20, 128 x 32 px, bfloat16, compiled"


@pytest.mark.parametrize("device", SUBJECTS)
def test_a_single_image_is_measured_of_every_network_in_inference(device):
    single = [part for part in comparisons(SUBJECTS[device], ["float32"], compiled=False) if part.subject.batch == 1]
    assert {part.subject.network for part in single} == {subject.network for subject in SUBJECTS[device]}
    for part in single:
        assert part.subject.modes == ("inference",) and part.variants == ("plain", "same-widths", "ours", "fused")


def test_compilers_that_are_named_are_measured_alone():
    part = comparisons([TINY], ["float32"], compiled=True, variants=["ours", "ours-compiled"])[-1]
    assert part.variants == ("plain", "ours", "ours-compiled")
    assert not any(part.compiled for part in comparisons([TINY], ["float32"], compiled=True, variants=["ours"]))


@pytest.fixture
def records(monkeypatch):
    """A comparison in which one variant fails."""

    def failing(subject, name):
        if name == "fused":
            raise RuntimeError("no such thing\nand more")
        return build(subject, name)

    monkeypatch.setattr(steps, "build", failing)
    part, pace = Comparison(TINY, "float32", ("plain", "ours", "fused")), Pace(0.0, (2, 2))
    return measure(part, CPU, pace, say=lambda text: None)


def test_a_failure_is_reported_by_name(records):
    training, inference = records
    assert training["failed"] == {} and inference["failed"] == {"fused": "RuntimeError: no such thing"}
    assert set(training["variants"]) == set(inference["variants"]) == {"plain", "ours"}
    ours = training["variants"]["ours"]
    low, middle, high = ours["milliseconds"]
    assert 0 < low <= middle <= high and len(ours["samples"]) == 2
    assert 0.7 < ours["memory"] / training["variants"]["plain"]["memory"] < 1.3


def test_aims_are_stricter_where_they_were_set_anew():
    def limits(device, network, batch):
        return {aim.title: aim.limit for aim in aims_for(device, network, batch)}

    for batch in (1, 64, 128):
        assert limits("cpu", "resnet20", batch)["inference, ours / plain"] == 1.15
    assert limits("cpu", "resnet20", 64)["training, ours / plain"] == 1.15
    assert limits("cpu", "resnet20", 1024)["inference, ours / plain"] == 1.25
    assert limits("cpu", "resnet50", 4)["training, ours / plain"] == 1.40
    assert limits("cuda", "resnet20", 128)["training, eager, ours / plain"] == 1.25
    assert limits("cuda", "resnet50", 64)["inference, eager, ours / plain"] == 1.10
    for device in SUBJECTS:
        assert limits(device, "resnet20", 128)["inference, ours-compiled / plain-compiled"] == 1.10


def test_what_is_aimed_at_with_compilers_and_in_eager_mode_is_in_the_table():
    def variant(milliseconds):
        return {"samples": [milliseconds] * 3, "milliseconds": [milliseconds] * 3, "ratio": None, "memory": 10}

    names = ("plain", "ours", "plain-compiled", "ours-compiled")
    base = {"network": "resnet20", "batch": 128, "size": 32, "precision": "bfloat16", "mode": "training", "failed": {}}
    compiled = {"compiled": True, "variants": dict(zip(names, map(variant, (4.0, 4.0, 2.0, 3.0)), strict=True))}
    ways = {"plain": {"eager": {"milliseconds": [1, 1, 1], "to_plain": [1, 1, 1]}}}
    ways["ours"] = {"eager": {"milliseconds": [1, 1.2, 2], "to_plain": [1.1, 1.2, 1.3]}}
    results = {
        "hardware": "", "device": "cuda", "skipped": [], "levers": [], "growth": [],
        "comparisons": [{**base, **compiled}], "launches": [{**base, "title": "small", "variants": ways}],
    }  # fmt: skip
    lines = [line for line in speed_tables(results).splitlines() if "≤" in line]
    assert len(lines) == 2
    assert "with compilers: training, ours-compiled / plain-compiled | ≤ 1.10 |     1.50 |  no |" in lines[0]
    assert "| small: training, eager, ours / plain " in lines[1] and lines[1].endswith("| ≤ 1.25 |     1.20 | yes |")


def lightfast(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["lightfast", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as left:
        code = left.code
    captured = capsys.readouterr()
    return code or 0, captured.out, captured.err


def test_the_command_writes_numbers_tables_and_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(
        growth.AXES,
        "cpu",
        {
            "batch": {n: Setting(n, 4, 6, 6, 3) for n in (1, 2)},
            "groups": {g: Setting(2, 4, 6, 6, 1, g) for g in (1, 2, 3, 6)},
        },
    )
    command = [
        "bench", "--device", "cpu", "--networks", "resnet20:2,resnet20:1", "--variants", "ours,straightforward",
        "--each", 0, "--no-compiled", "--out", tmp_path,
    ]  # fmt: skip
    code, out, err = lightfast(monkeypatch, capsys, *command, "--precisions", "float32")
    assert code == 0, err
    assert "| Training" in out and "| Inference" in out and "straightforward" in out
    assert {"results.json", "table.md", "ratios.png", "growth.png"} == {path.name for path in tmp_path.iterdir()}
    results = json.loads((tmp_path / "results.json").read_text())
    assert [record["mode"] for record in results["comparisons"]] == ["training", "inference", "inference"]
    assert "Inference of a single image" in out
    assert "bench" in results["runs"][0]["command"] and results["runs"][0]["versions"]["torch"]
    assert [record["axis"] for record in results["growth"]] == ["batch", "groups"]
    assert [record["mode"] for record in results["levers"]] == ["training", "inference"]
    assert "passes in C" in out and "projected weights kept" in out
    assert "training, straightforward / ours | ≥ 1.40 |" in out

    code, _, err = lightfast(monkeypatch, capsys, *command, "--resume")
    assert code == 0, err
    again = json.loads((tmp_path / "results.json").read_text())
    assert again["comparisons"][:3] == results["comparisons"] and again["growth"] == results["growth"]
    assert [record["precision"] for record in again["comparisons"]] == ["float32"] * 3 + ["bfloat16"] * 3
    assert [record["run"] for record in again["comparisons"]] == [0, 0, 0, 1, 1, 1] and len(again["runs"]) == 2


def test_what_there_was_no_time_for_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_run, "_COMPILE_SECONDS", {"cpu": 1e9})
    monkeypatch.setattr(bench_run, "measure", lambda part, device, pace, say: [])
    request = bench_run.Request(
        CPU, tmp_path, networks=["resnet20:2"], precisions=["float32"], growth=False, levers=False
    )
    assert "- resnet20, 2 x 32 px, float32, compiled: there was no time left" in bench_run.run(request)


def test_profiles_come_after_all_that_is_measured(tmp_path, monkeypatch):
    """Once torch's profiler has run, launches may be slower."""
    monkeypatch.setattr(bench_run, "growth", lambda *arguments: [])
    said = []
    request = bench_run.Request(
        CPU, tmp_path, networks=["resnet20:2"], precisions=["float32"], variants=["ours"], each=0, compiled=False,
        levers=False, profile=True,
    )  # fmt: skip
    bench_run.run(request, said.append)
    assert [text.startswith("where the time") for text in said] == [False] * 3 + [True] * 2
    profile = (tmp_path / "profile.md").read_text()
    assert profile.count(", training, ") == 2 and "| aten::" in profile
    bench_run.run(dataclasses.replace(request, resume=True), said.append)
    assert len(said) == 6 and said[-1].startswith("growth")


def test_processor_time_is_for_one_thread(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    with pytest.raises(ValueError, match="OMP_NUM_THREADS=1"):
        bench_run.run(bench_run.Request(CPU, tmp_path, processor_time=True))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bench", "--networks", "vgg16"], "is not NETWORK or NETWORK:BATCH"),
        (["bench", "--networks", "resnet20:many"], "is not NETWORK or NETWORK:BATCH"),
        (["bench", "--precisions", "int8"], "a precision is float32 or bfloat16"),
        (["bench", "--variants", "faster"], "no variant faster"),
        (["bench", "speedrun", "--network", "vgg16"], "no network vgg16"),
        (["bench", "speedrun", "--epochs", "many"], "epochs are numbers above 0"),
        (["bench", "speedrun", "--strategy", "original"], "light can fool"),
        (["bench", "speedrun", "--set", "speed=9"], "no speed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_answered_with_a_sentence(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, err = lightfast(monkeypatch, capsys, *arguments, "--device", "cpu")
    assert code == 2 and sentence in err and "Traceback" not in err
    assert not list(tmp_path.iterdir())


EVERY_LEVER = [lever for kind in LEVERS.values() for lever in kind]


@pytest.mark.parametrize("lever", EVERY_LEVER, ids=lambda lever: lever.name)
def test_what_a_lever_replaces_is_there(lever):
    for owner, name in lever.without:
        assert callable(getattr(owner, name, None)), (
            f"{owner} has no {name}: it was renamed, and the lever does nothing"
        )


def test_levers_are_put_back():
    def places():
        return [getattr(owner, name) for lever in EVERY_LEVER for owner, name in lever.without]

    before = places()
    levers(Subject("resnet20", 2, 8), "float32", CPU, Pace(0.0, (1, 1)))
    assert places() == before


class Calls:
    """Which passes in C a network in use calls the first time, and how often it projects weights after that."""

    def __init__(self, monkeypatch, lever):
        self.passes, self.projections = set(), 0
        named, fit = native._named, native.Native.fit_weight

        def noted(name, dtype, last):
            self.passes.add(name)
            return named(name, dtype, last)

        def counted(*arguments):
            self.projections += 1
            return fit(*arguments)

        monkeypatch.setattr(native, "_named", noted)
        work = _work(Subject("resnet20", 2, 8), "float32", CPU, "inference", lever)
        monkeypatch.setattr(native.Native, "fit_weight", counted)
        work.once()


@pytest.mark.parametrize(
    ("lever", "passes", "projects"),
    [
        (None, {"infer_norm"}, False),
        ("passes in C", set(), False),
        ("all of it image by image", {"moments", "apply"}, False),
        ("projected weights kept", {"infer_norm"}, True),
    ],
)
def test_levers_of_the_cpu_take_effect(monkeypatch, lever, passes, projects):
    if native._passes() is None:
        pytest.skip("there are no passes in C")
    named = {each.name: each for each in LEVERS["cpu"]}
    calls = Calls(monkeypatch, named.get(lever, Lever("none")))
    assert calls.passes & {"infer_norm", "moments", "apply"} == passes
    assert (calls.projections > 0) == projects


def test_launches_are_measured_in_every_way_that_there_is():
    subjects = Subject("resnet20", 2, 8), Subject("resnet20", 1, 8)
    training, inference, single = records = launches(subjects, "float32", CPU, Pace(0.0, (2, 2)))
    assert [record["mode"] for record in records] == ["training", "inference", "inference"]
    assert list(training["variants"]) == ["plain", "ours"]
    assert list(inference["variants"]) == list(single["variants"]) == ["plain", "ours", "fused"]
    for record in records:
        assert all(set(ways) == {"graph", "eager"} for ways in record["variants"].values())
        assert record["variants"]["plain"]["eager"]["to_plain"] == [1, 1, 1]
        ours, base = (record["variants"][name]["eager"] for name in ("ours", "plain"))
        # Of two samples, quartiles of ratios lie between those of the fastest to the slowest.
        low, high = ours["milliseconds"][0] / base["milliseconds"][2], ours["milliseconds"][2] / base["milliseconds"][0]
        assert 0.5 * low < ours["to_plain"][1] < 2 * high
    results = {"hardware": "", "device": "cpu", "comparisons": [], "skipped": [], "levers": [], "growth": []}
    table = speed_tables({**results, "launches": records})
    assert "| resnet20, 2 x 8 px, float32: training, ours" in table and "| callable" in table


# Torch's `make_graphed_callables` brings it about by itself, for the plain network too.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
@pytest.mark.gpu
def test_a_graph_for_each_pass_on_a_gpu():
    training, _ = launches([Subject("resnet20", 4, 32)], "bfloat16", torch.device("cuda"), Pace(0.0, (2, 2)))
    assert set(training["variants"]["ours"]) == {"graph", "callable", "eager"}


def test_subjects_as_users_type_them():
    assert [subject.batch for subject in parse_subject("resnet20", "cuda")] == [128, 1, 1024]
    assert [subject.batch for subject in parse_subject("resnet20", "cpu")] == [128, 64, 1]
    assert parse_subject("resnet20:1024", "cpu") == list(LARGE["cpu"])
    assert set(LAUNCHED) <= set(SUBJECTS["cuda"])
    assert set(VARIANTS) >= {"plain", "straightforward", "ours", "fused"}


def test_threads_are_told_apart(monkeypatch, tmp_path):
    found = set()
    for threads in (1, 2):
        monkeypatch.setattr("torch.get_num_threads", lambda threads=threads: threads)
        found.add(bench_run._begin(bench_run.Request(CPU, tmp_path), tmp_path / "results.json")["hardware"])
    one, two = sorted(found)
    assert one.endswith(", 1 thread") and two.endswith(", 2 threads")


@pytest.mark.slow
def test_compilers_are_measured_too():
    part = comparisons([TINY], ["float32"], compiled=True)[-1]
    training, inference = measure(part, CPU, Pace(0.0, (2, 2)), say=lambda text: None)
    for record in (training, inference):
        assert record["failed"] == {}
        fused = {"fused-compiled"} if record["mode"] == "inference" else set()
        assert set(record["variants"]) == {"plain", "ours", "plain-compiled", "ours-compiled"} | fused
