import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from toy import PROCESSES, SHARED, ToyTask, shared_recipe, state, toy_model

import lightfast as lf
from lightfast._experiments.engine import CHECKPOINT, sync_batch_norm, train
from lightfast._experiments.engine.checkpoint import read_header


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """The folder in which several processes have trained the shared cases."""
    out = tmp_path_factory.mktemp("launched")
    script = [str(Path(__file__).with_name("toy.py")), "shared", str(out)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={PROCESSES}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *script], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("case", SHARED)
def test_several_processes_are_as_one(launched, case):
    options, data, _, accumulate = SHARED[case]
    model, last = toy_model(**options).double(), {}
    task = ToyTask(**data, dtype=torch.float64)
    train(model, task, shared_recipe(accumulate), progress=False, on_log=lambda step, values: last.update(values))
    for rank in range(PROCESSES):
        found = load_file(launched / f"{case}-{rank}.safetensors")
        # The moments are merged in another order, and the norm of the gradient is float64's: rounding remains.
        torch.testing.assert_close(found, state(model), rtol=1e-7, atol=1e-9)
    assert read_header(launched / case / CHECKPOINT)["step"] == 25
    lines = [json.loads(line) for line in (launched / case / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10, 15, 20, 25]
    assert {name: lines[-1][name] for name in last} == pytest.approx(last, rel=1e-5)


def test_the_players_of_a_game_stay_together(launched):
    first, *others = (load_file(launched / f"game-{rank}.safetensors") for rank in range(PROCESSES))
    # Each process sees other samples, so only averaged gradients leave the same weights everywhere.
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)


def test_several_processes_resume_to_the_same_bits(launched):
    assert read_header(launched / "parts" / CHECKPOINT)["step"] == 25
    for rank in range(PROCESSES):
        whole, parts = (load_file(launched / f"{name}-{rank}.safetensors") for name in ("whole", "parts"))
        assert all(torch.equal(whole[name], parts[name]) for name in whole)
    logs = [(launched / name / "log.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    losses = [[json.loads(line)["loss"] for line in log] for log in logs]
    assert losses[0] == losses[1]


def test_in_one_process_batch_norm_stays_itself():
    model = nn.Sequential(nn.BatchNorm1d(3), lf.nn.BatchNorm2d(3))
    with sync_batch_norm(model) as inside:
        assert inside is model and [type(layer) for layer in model] == [nn.BatchNorm1d, lf.nn.BatchNorm2d]


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, lf.nn.BatchNorm2d])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_shared_moments_are_batch_norm(monkeypatch, kind, momentum):
    # One process that believes to be two: the second adds nothing, so the batch is its own.
    monkeypatch.setattr("lightfast._experiments.engine.processes._many_processes", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda tensor: None)
    plain, shared = (kind(6, momentum=momentum).double() for _ in range(2))
    nn.init.uniform_(plain.weight)
    shared.load_state_dict(plain.state_dict())
    for _ in range(3):
        values, results = torch.randn(4, 6, 3, 3, dtype=torch.float64) + 5, []
        for layer, context in ((plain, nullcontext()), (shared, sync_batch_norm(shared))):
            x = values.clone().requires_grad_()
            with context:
                y = layer(x)
            y.square().sum().backward()
            results.append((y, x.grad, layer.weight.grad))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs)
    assert type(shared) is kind
    torch.testing.assert_close(shared.state_dict(), plain.state_dict())
