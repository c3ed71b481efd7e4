"""Gray world and shades of gray."""

import pytest
import torch

from lightfast.constancy import gray_world, shades_of_gray


@pytest.mark.parametrize("estimate", [gray_world, shades_of_gray])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
class TestBoth:
    def test_unit_norm_and_type(self, estimate, dtype):
        lights = estimate(torch.rand(4, 3, 6, 5, dtype=dtype))
        assert lights.dtype == dtype and lights.shape == (4, 3)
        torch.testing.assert_close(lights.norm(dim=1), torch.ones(4, dtype=dtype))

    def test_the_light_multiplies_the_estimate(self, estimate, dtype):
        images, light = torch.rand(2, 3, 6, 5, dtype=dtype), torch.tensor([1.0, 0.5, 0.1], dtype=dtype)
        expected = estimate(images) * light
        expected = expected / expected.norm(dim=1, keepdim=True)
        torch.testing.assert_close(estimate(images * light[:, None, None]), expected)

    def test_exposure_does_not_matter(self, estimate, dtype):
        images = torch.rand(2, 3, 6, 5, dtype=dtype)
        for factor in (1e-12, 1e12):
            torch.testing.assert_close(estimate(factor * images), estimate(images))

    def test_a_mask_is_as_good_as_cutting(self, estimate, dtype):
        images, mask = torch.rand(2, 3, 6, 8, dtype=dtype), torch.zeros(2, 1, 6, 8, dtype=torch.bool)
        mask[..., :5] = True
        torch.testing.assert_close(estimate(images, mask), estimate(images[..., :5].contiguous()))

    def test_black_is_taken_for_white_light(self, estimate, dtype):
        torch.testing.assert_close(
            estimate(torch.zeros(1, 3, 2, 2, dtype=dtype)), torch.full((1, 3), 3**-0.5, dtype=dtype)
        )

    def test_gradients_are_finite_even_with_a_dark_channel(self, estimate, dtype):
        images = torch.rand(2, 3, 4, 4, dtype=dtype)
        images[:, 2] = 0
        images.requires_grad_()
        estimate(images).sum().backward()
        assert images.grad is not None and bool(images.grad.isfinite().all())

    @pytest.mark.parametrize("shape", [(3, 4, 4), (2, 1, 4, 4)])
    def test_wrong_shapes_are_refused(self, estimate, dtype, shape):
        with pytest.raises(ValueError, match="linear images"):
            estimate(torch.rand(shape, dtype=dtype))

    def test_wrong_masks_are_refused(self, estimate, dtype):
        with pytest.raises(ValueError, match="expected a mask of shape"):
            estimate(torch.rand(1, 3, 4, 4, dtype=dtype), torch.ones(1, 4, 4))


def test_gray_world_is_the_mean():
    images = torch.rand(3, 3, 7, 7)
    mean = images.mean((2, 3))
    torch.testing.assert_close(gray_world(images), mean / mean.norm(dim=1, keepdim=True))


def test_shades_of_gray_is_the_minkowski_mean():
    images = torch.rand(3, 3, 7, 7, dtype=torch.float64)
    mean = (images**6).mean((2, 3)) ** (1 / 6)
    torch.testing.assert_close(shades_of_gray(images, p=6), mean / mean.norm(dim=1, keepdim=True))


def test_exponents_below_one_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        shades_of_gray(torch.rand(1, 3, 2, 2), p=0.5)
