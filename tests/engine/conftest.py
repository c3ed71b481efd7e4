import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """The models are too small for more, and processes that are compared bit by bit must have equally many."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
