import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightfast._experiments.engine.order import Order, seed_of


@given(samples=st.integers(1, 40), batch=st.integers(1, 50), seed=st.integers(0, 2**40))
def test_every_sample_is_seen_once_an_epoch(samples, batch, seed):
    order = Order(samples, batch, seed)
    steps = -(-3 * samples // batch)
    seen = torch.cat([order.indices(step).flatten() for step in range(steps)])
    for epoch in seen[: 3 * samples].view(3, samples):
        assert sorted(epoch.tolist()) == list(range(samples))


@given(step=st.integers(0, 10**6), processes=st.sampled_from([1, 2, 4]), accumulate=st.sampled_from([1, 2, 3]))
def test_processes_split_the_batch(step, processes, accumulate):
    parts = processes * accumulate
    whole = Order(100, 24, seed=3, parts=parts, own=range(parts))
    shares = [Order(100, 24, 3, parts, range(p * accumulate, (p + 1) * accumulate)) for p in range(processes)]
    torch.testing.assert_close(torch.cat([share.indices(step) for share in shares]), whole.indices(step))
    assert [seed for share in shares for seed in share.seeds(step)] == whole.seeds(step)


def test_an_order_has_no_memory():
    used, fresh = Order(30, 8, seed=1), Order(30, 8, seed=1)
    for step in range(50):
        used.indices(step)
    assert torch.equal(used.indices(17), fresh.indices(17))
    assert not torch.equal(fresh.indices(17), Order(30, 8, seed=2).indices(17))


def test_epochs_and_seeds_differ():
    order = Order(samples=100, batch_size=100, seed=0)
    assert not torch.equal(order.indices(0), order.indices(1))
    assert len({seed for step in range(1000) for seed in order.seeds(step)}) == 1000
    assert all(0 <= seed_of(0, n) < 2**63 for n in range(100))


def test_errors():
    with pytest.raises(ValueError, match="empty"):
        Order(0, 8, seed=0)
    with pytest.raises(ValueError, match="that 3 divides"):
        Order(10, 8, seed=0, parts=3)
