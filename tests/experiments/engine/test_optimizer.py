import pytest
import torch
from torch import nn
from toy import toy_model

from lightfast._experiments.engine import Recipe
from lightfast._experiments.engine.average import ModelAverage
from lightfast._experiments.engine.optimizer import make_optimizer, optimizer_tensors, set_learning_rate
from lightfast._experiments.engine.schedule import average_weight

PLAIN = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.99), weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.99), weight_decay=0.01),
}


@pytest.mark.parametrize("name", PLAIN)
def test_state_made_before_the_first_step_changes_nothing(name):
    recipe = Recipe(steps=1, optimizer=name, nesterov=True, betas=(0.8, 0.99), weight_decay=0.01)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    optimizer, plain = make_optimizer(list(ours.parameters()), recipe), PLAIN[name](theirs.parameters())
    names = set(optimizer_tensors(optimizer))
    set_learning_rate(optimizer, 0.1)
    for step in range(5):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        for layer, stepper in ((ours, optimizer), (theirs, plain)):
            stepper.zero_grad()
            layer(x).square().sum().backward()
            stepper.step()
    assert torch.equal(ours.weight, theirs.weight) and torch.equal(ours.bias, theirs.bias)
    assert names == set(optimizer_tensors(optimizer))


def test_a_model_without_parameters():
    with pytest.raises(ValueError, match="no parameters that can be trained"):
        make_optimizer([], Recipe(steps=1))


def test_moving_average():
    model = toy_model().double()
    average = ModelAverage(model, 0.9)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for step in range(30):
        for tensor in model.state_dict().values():
            tensor += 1 if tensor.dtype == torch.int64 else torch.randn(tensor.shape, dtype=tensor.dtype)
        average.set_step(step)
        average.update()
        weight = torch.tensor(average_weight(0.9, step)).item()
        for name, tensor in model.state_dict().items():
            moved = expected[name] + weight * (tensor - expected[name])
            expected[name] = moved if tensor.is_floating_point() else tensor.clone()
    average.copy_to_model()
    torch.testing.assert_close(model.state_dict(), expected)
    assert average_weight(0.9, 0) == 0.9 and average_weight(0.9, 1000) == pytest.approx(0.1)
