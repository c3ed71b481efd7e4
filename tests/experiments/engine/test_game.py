"""Several players: each has its own loss, parameters and optimizer, and all of it is resumed."""

import pytest
import torch
from torch import nn
from toy import state

from lightfast._experiments.engine import GameTask, Player, Recipe, train


class Pair(nn.Module):
    """One that draws numbers, and one that tells them from real ones."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            self.maker = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
            self.critic = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))


class GameOfTwo:
    samples = 40

    def __init__(self):
        self.points = torch.randn(40, 2, generator=torch.Generator().manual_seed(1)) * 0.3 + 1
        self.batches, self.frozen = 0, []

    def to(self, device):
        self.points = self.points.to(device)

    def batch(self, indices, generator):
        self.batches += 1
        noise = torch.randn(len(indices), 4, generator=generator, device=generator.device)
        return {"noise": noise, "real": self.points[indices]}

    def loss(self, model, batch):
        batch["made"] = model.maker(batch["noise"])
        loss = nn.functional.softplus(-model.critic(batch["made"])).mean()
        batch["made"] = batch["made"].detach()
        return loss, {"maker": loss}

    def players(self, model):
        def judge(batch):
            self.frozen.append([p.requires_grad for p in model.maker.parameters()])
            real, made = (model.critic(batch[name]) for name in ("real", "made"))
            loss = nn.functional.softplus(-real).mean() + nn.functional.softplus(made).mean()
            return loss, {"critic": loss}

        return [
            Player(list(model.maker.parameters()), lambda batch: self.loss(model, batch)),
            Player(list(model.critic.parameters()), judge, {"lr": 1e-2, "betas": (0.9, 0.99)}),
        ]


def recipe(**changes):
    how = {"steps": 12, "batch_size": 8, "optimizer": "adam", "lr": 1e-3, "betas": (0.5, 0.999), "weight_decay": 0.0}
    return Recipe(**(how | {"log_every": 3, "checkpoint_every": 4} | changes))


def test_players_take_turns_on_one_batch():
    task, model, logged = GameOfTwo(), Pair(), {}
    assert isinstance(task, GameTask)
    before = state(model)
    train(model, task, recipe(), progress=False, on_log=lambda step, values: logged.update({step: values}))
    assert task.batches == 12, "both players see the same batch"
    assert not any(any(flags) for flags in task.frozen), "what the other moves wants no gradient"
    assert all(parameter.requires_grad for parameter in model.parameters())
    after = state(model)
    assert all(not torch.equal(before[name], after[name]) for name in before if "weight" in name)
    assert set(logged) == {3, 6, 9, 12} and {"loss", "maker", "critic"} <= set(logged[3])
    assert logged[3]["loss"] == pytest.approx(logged[3]["maker"] + logged[3]["critic"], rel=1e-5)


def test_each_player_has_its_own_optimizer():
    still = train(Pair(), GameOfTwo(), recipe(lr=0.0), progress=False)
    fresh = Pair()
    assert torch.equal(still.maker[0].weight, fresh.maker[0].weight)
    assert not torch.equal(still.critic[0].weight, fresh.critic[0].weight)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_game_resumes_bit_by_bit(tmp_path, accumulate):
    how = recipe(accumulate=accumulate, ema=0.9)
    whole = state(train(Pair(), GameOfTwo(), how, progress=False))

    class Stopped(Exception):
        pass

    def stop(step, values):
        if step == 9:
            raise Stopped

    with pytest.raises(Stopped):
        train(Pair(), GameOfTwo(), how, tmp_path, progress=False, on_log=stop)
    resumed = state(train(Pair(), GameOfTwo(), how, tmp_path, resume=True, progress=False))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_run_may_go_without_checkpoints(tmp_path):
    train(Pair(), GameOfTwo(), recipe(checkpoint_every=0), tmp_path, progress=False)
    assert (tmp_path / "log.jsonl").exists() and not list(tmp_path.glob("*.safetensors"))
