import os

import pytest
import torch
from safetensors.torch import save_file

from lightfast._experiments.engine import CheckpointError
from lightfast._experiments.engine.checkpoint import load_checkpoint, read_header, save_checkpoint


def tensors(fill=1.0):
    return {"model.weight": torch.full((3, 2), fill), "meter.loss": torch.tensor(fill), "count": torch.tensor(7)}


def test_round_trip(tmp_path):
    path = tmp_path / "c.safetensors"
    saved = tensors() | {"view": torch.arange(6).view(2, 3).t(), "half": torch.ones(2, dtype=torch.bfloat16)}
    save_checkpoint(path, saved, {"step": 3, "values": [1.5, None]})
    loaded = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    assert load_checkpoint(path, loaded) == {"step": 3, "values": [1.5, None]}
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    assert os.listdir(tmp_path) == ["c.safetensors"]


def test_tensors_that_share_memory(tmp_path):
    shared = torch.zeros(4)
    save_checkpoint(tmp_path / "c", {"one": shared, "two": shared[:2]}, {})
    load_checkpoint(tmp_path / "c", {"one": torch.ones(4), "two": torch.ones(2)})


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 40, -1])
def test_truncated(tmp_path, keep):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, tensors(), {"step": 1})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="not a whole checkpoint") as error:
        read_header(path)
    assert str(path) in str(error.value)


def test_foreign(tmp_path):
    torch.save(tensors(), tmp_path / "pickled")
    with pytest.raises(CheckpointError, match="pickled is not a whole checkpoint"):
        read_header(tmp_path / "pickled")
    save_file(tensors(), tmp_path / "weights")
    with pytest.raises(CheckpointError, match="weights is a safetensors file, but not a checkpoint"):
        read_header(tmp_path / "weights")


def test_another_architecture_changes_nothing(tmp_path):
    path = tmp_path / "c"
    save_checkpoint(path, tensors(), {})
    other = {"model.weight": torch.zeros(3, 3), "meter.loss": torch.zeros(()), "model.bias": torch.zeros(3)}
    with pytest.raises(CheckpointError, match="another model") as error:
        load_checkpoint(path, other)
    for line in ("model.bias is missing there", "count is not in this one", r"(3, 2) there and (3, 3) in this one"):
        assert line in str(error.value)
    assert all(not tensor.any() for tensor in other.values())


@pytest.mark.parametrize("where", ["_experiments.engine.checkpoint.save_file", "_atomic._flush", "_atomic.os.replace"])
def test_an_interrupted_save_leaves_the_one_before(tmp_path, monkeypatch, where):
    path = tmp_path / "c"
    save_checkpoint(path, tensors(1.0), {"step": 1})

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"lightfast.{where}", fail)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(path, tensors(2.0), {"step": 2})
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["c"]
    loaded = tensors(0.0)
    assert load_checkpoint(path, loaded) == {"step": 1}
    assert torch.equal(loaded["model.weight"], torch.ones(3, 2))
    save_checkpoint(path, tensors(3.0), {"step": 3})
    assert read_header(path) == {"step": 3} and os.listdir(tmp_path) == ["c"]
