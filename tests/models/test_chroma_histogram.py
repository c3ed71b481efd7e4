"""The histogram of chroma: what it counts, and exact equivariance."""

import pytest
import torch

import lightfast as lf
from lightfast.functional import add_offset
from lightfast.models._chroma_histogram import ChromaHistogram


def _network(**options):
    torch.manual_seed(0)
    network = ChromaHistogram(**options)
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return network.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_estimates_follow_offsets(dtype):
    network = _network().to(dtype)
    x, offset = torch.randn(3, 3, 24, 32, dtype=dtype), 5 * torch.randn(3, 3, dtype=dtype)
    moved = network(add_offset(x, offset, 3))
    torch.testing.assert_close(moved, network(x) + offset, atol=5e-5 if dtype == torch.float32 else 1e-11, rtol=0)


def test_a_prior_is_multiplied_onto_the_map():
    network, made_for_it, x = _network(spread=True), _network(spread=True, prior=True), torch.randn(3, 3, 24, 32)
    for each in (network, made_for_it):
        torch.testing.assert_close(each(x, lambda answers: answers.new_full(answers.shape[:2], 3.0)), each(x))
        place = each(x)[:, :3] + torch.tensor([0.4, 0.0, -0.2])
        narrow = each(x, lambda answers, place=place: -1e4 * (answers - place[:, None])[..., ::2].square().sum(2))
        torch.testing.assert_close(narrow[:, :3], place, atol=0.03, rtol=0)


def test_a_prior_is_seen_by_networks_that_are_made_for_it():
    network, x = _network(prior=True), torch.randn(3, 3, 24, 32)
    seen = []
    network.down[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network(x)
    network(x, lambda answers: -answers.square().sum(2))
    assert torch.equal(seen[0][:, :5], seen[1][:, :5]) and seen[0][:, 5].std() < 1e-6 < 1e-3 < seen[1][:, 5].std()


def test_it_is_proven_equivariant():
    assert lf.certify(_network(), torch.randn(2, 3, 16, 16)).equivariant


def test_the_answer_depends_on_colors_and_not_on_their_places():
    """Blocks of 2x2 pixels are what is counted; where they lie matters for differences between neighbors alone."""
    network = _network()
    x = torch.randn(1, 3, 8, 8).repeat_interleave(2, 2).repeat_interleave(2, 3)
    with torch.no_grad():
        first, mirrored = (network._maps(image)[:, :2] for image in (x, x.flip(3)))
        torch.testing.assert_close(first, mirrored, atol=1e-4, rtol=0)
        assert (network(x + 0.5 * torch.randn_like(x)) - network(x)).abs().max() > 1e-3


def test_a_histogram_counts_everything_once():
    network = ChromaHistogram(bins=16, channels=(4, 8), reach=1.0)
    red, blue = torch.tensor([0.3, -5.0]), torch.tensor([-0.2, 5.0])
    colors = torch.stack([red, torch.zeros(2), blue])[None]
    counts = network._histogram(colors, torch.tensor([[1.0, 3.0]]))
    torch.testing.assert_close(counts.sum(), torch.tensor(1.0))
    inside = counts[0, 1:, :-1]
    centers = network.centers
    torch.testing.assert_close(inside.sum(), torch.tensor(0.25))
    torch.testing.assert_close((inside.sum(1) * centers[1:]).sum() / 0.25, torch.tensor(0.3))
    torch.testing.assert_close((inside.sum(0) * centers[:-1]).sum() / 0.25, torch.tensor(-0.2))
    torch.testing.assert_close(counts[0, 0, -1], torch.tensor(0.75))


def test_every_parameter_learns_and_images_have_a_gradient():
    network, x = ChromaHistogram(), torch.randn(4, 3, 32, 32, requires_grad=True)
    network(x).square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ChromaHistogram(None), "3 groups"),
        (lambda: ChromaHistogram(bins=20), "halved"),
        (lambda: ChromaHistogram()(torch.rand(1, 4, 8, 8)), r"\(N, 3, H, W\)"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
