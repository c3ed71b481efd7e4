"""The pictures that the project draws."""

import pytest
import torch

from lightfast._experiments.data.generated import CLASSES, draw


def test_shapes_types_and_classes():
    images, labels = draw(100, size=16)
    assert (images.shape, images.dtype) == ((100, 3, 16, 16), torch.uint8)
    assert (labels.shape, labels.dtype) == ((100,), torch.int64)
    assert set(labels.tolist()) == set(range(len(CLASSES)))


def test_the_seed_decides():
    images, labels = draw(20, seed=3, size=12)
    again, same = draw(20, seed=3, size=12)
    other, _ = draw(20, seed=4, size=12)
    assert torch.equal(images, again) and torch.equal(labels, same)
    assert not torch.equal(images, other)


def test_more_pictures_start_with_the_same():
    assert torch.equal(draw(1500, size=8)[0][:1000], draw(1000, size=8)[0])


def test_torch_random_state_is_left_alone():
    before = torch.get_rng_state()
    draw(3, size=8)
    assert torch.equal(before, torch.get_rng_state())


def test_neither_color_nor_shape_alone_tells_the_class():
    images, labels = draw(3000, seed=0, size=16)
    middle = images[:, :, 6:10, 6:10].float().mean((2, 3))
    named = middle.argmax(1)
    color_right = (named == labels % 3).float().mean()
    assert color_right > 0.7, "red objects should mostly be red in the middle"
    centers = torch.stack([images[labels == label].float().mean((0, 2, 3)) for label in range(len(CLASSES))])
    by_mean_color = torch.cdist(images.float().mean((2, 3)), centers).argmin(1)
    assert (by_mean_color == labels).float().mean() < 0.5


def test_none_at_all():
    images, labels = draw(0)
    assert len(images) == len(labels) == 0


@pytest.mark.parametrize(("count", "size"), [(-1, 16), (1, 4)])
def test_impossible_wishes(count, size):
    with pytest.raises(ValueError, match="at least 8 pixels"):
        draw(count, size=size)
