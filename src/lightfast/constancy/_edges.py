"""Estimators from the brightest pixels, from edges, and from the colors along the brightest direction."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from lightfast.constancy._statistics import check_images, shades_of_gray, unit


def white_patch(linear_images: Tensor, mask: Tensor | None = None) -> Tensor:
    """White patch (Land 1977): the largest value of each channel is the light. Shapes as :func:`max_rgb`.

    >>> white_patch(torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]).reshape(1, 3, 2, 1))
    tensor([[0.6000, 0.8000, 0.0000]])
    """
    return max_rgb(linear_images, mask, percentile=100)


def max_rgb(linear_images: Tensor, mask: Tensor | None = None, percentile: float = 99) -> Tensor:
    """Max-RGB, robust: the light is a high percentile of each channel, between pixels interpolated linearly.

    Args:
        linear_images: (N, 3, H, W), linear in light.
        mask: (N, 1, H, W), true where a pixel counts; all of them by default.
        percentile: 100 is white patch.

    Returns:
        Illuminants (N, 3) of norm 1.

    >>> images = torch.linspace(0, 1, 64).view(8, 8) * torch.tensor([[[[0.4]], [[0.8]], [[0.4]]]])
    >>> [round(number, 1) for number in max_rgb(images, percentile=100)[0].tolist()]
    [0.4, 0.8, 0.4]
    """
    if not 0 <= percentile <= 100:
        raise ValueError(f"a percentile lies between 0 and 100, but this is {percentile}")
    check_images(linear_images, mask)
    values = linear_images.clamp(min=0).flatten(2)
    if mask is None:
        counted = values.new_full((len(values), 1), values.shape[2])
    else:
        # Pixels that do not count are put below all others, where the percentile does not look.
        values = values.masked_fill(~mask.bool().flatten(2), -1)
        counted = mask.bool().flatten(1).sum(1, keepdim=True).to(values.dtype)
    ordered = values.sort(2).values
    place = values.shape[2] - 1 - (counted - 1).clamp(min=0) * (1 - percentile / 100)
    below = place.floor().long()[:, None].expand(-1, 3, 1)
    above = (below + 1).clamp(max=values.shape[2] - 1)
    high = torch.lerp(
        ordered.gather(2, below), ordered.gather(2, above), (place - place.floor())[:, None].expand(-1, 3, 1)
    )
    return unit(high[..., 0].clamp(min=0))


def gray_edge(
    linear_images: Tensor, mask: Tensor | None = None, order: int = 1, p: float = 1, sigma: float = 1
) -> Tensor:
    """Gray edge (van de Weijer et al. 2007): the Minkowski mean of the derivatives has the color of the light.

    First order: `|∇x| = sqrt(x_u² + x_v²)`. Second: `sqrt(x_uu² + 4 x_uv² + x_vv²)`. Derivatives are of the image
    smoothed by a Gaussian, with the border repeated. Where they reach into masked pixels they do not count.

    Args:
        linear_images: (N, 3, H, W), linear in light.
        mask: (N, 1, H, W), true where a pixel counts; all of them by default.
        order: 1 or 2.
        p: exponent of the mean.
        sigma: of the Gaussian, in pixels.

    Returns:
        Illuminants (N, 3) of norm 1.

    >>> ramp = torch.arange(8.0).expand(1, 3, 8, 8) * torch.tensor([3.0, 4.0, 0.0]).reshape(1, 3, 1, 1)
    >>> gray_edge(ramp).round(decimals=3)
    tensor([[0.6000, 0.8000, 0.0000]])
    """
    if order not in (1, 2):
        raise ValueError(f"gray edge has order 1 or 2, not {order}")
    if not sigma > 0:
        raise ValueError(f"sigma must be above 0, since derivatives are of the smoothed image; got {sigma}")
    check_images(linear_images, mask)
    kernels = _gaussian_derivatives(sigma, linear_images.dtype, linear_images.device)
    reach = len(kernels[0]) // 2
    if mask is not None:
        # A hole that is far brighter or darker than its surround must not make an edge that is later left out anyway.
        linear_images = linear_images * mask.to(linear_images.dtype)
    x = F.pad(linear_images, (reach,) * 4, mode="replicate")

    def derivative(down: int, across: int) -> Tensor:
        columns, rows = kernels[down].reshape(1, 1, -1, 1), kernels[across].reshape(1, 1, 1, -1)
        y = F.conv2d(F.conv2d(x.flatten(0, 1)[:, None], columns), rows)
        return y.unflatten(0, (-1, 3))[:, :, 0]

    if order == 1:
        squares = derivative(0, 1).square() + derivative(1, 0).square()
    else:
        squares = derivative(0, 2).square() + 4 * derivative(1, 1).square() + derivative(2, 0).square()
    strength = (squares + torch.finfo(squares.dtype).tiny).sqrt()
    if mask is not None:
        holes = F.max_pool2d((~mask.bool()).to(strength.dtype), 2 * reach + 1, 1, reach) > 0
        mask = torch.where(holes.all(3, keepdim=True).all(2, keepdim=True), mask.bool(), ~holes)
    return shades_of_gray(strength, mask, p=p)


def principal_color(linear_images: Tensor, mask: Tensor | None = None, share: float = 3.5) -> Tensor:
    """PCA of bright and dark pixels (Cheng et al. 2014): the first principal direction of their colors is the light.

    Pixels are ordered by how far they reach along the mean color; the `share` per cent at either end are kept, and the
    light is the eigenvector of `Σ x xᵀ` with the largest eigenvalue.

    Args:
        linear_images: (N, 3, H, W), linear in light.
        mask: (N, 1, H, W), true where a pixel counts; all of them by default.
        share: per cent of the pixels at either end; the published value is 3.5.

    Returns:
        Illuminants (N, 3) of norm 1.

    >>> principal_color(torch.tensor([3.0, 4.0, 0.0]).reshape(1, 3, 1, 1))
    tensor([[0.6000, 0.8000, 0.0000]])
    """
    if not 0 < share <= 50:
        raise ValueError(f"the share of pixels at either end lies above 0 and up to 50 per cent, but is {share}")
    check_images(linear_images, mask)
    x = linear_images.clamp(min=0).flatten(2)
    valid = torch.ones_like(x[:, 0], dtype=torch.bool) if mask is None else mask.bool().flatten(1)
    counted = valid.sum(1, keepdim=True)
    mean = (x * valid[:, None]).sum(2) / counted.clamp(min=1)
    along = (x * unit(mean)[:, :, None]).sum(1).detach().masked_fill(~valid, math.inf)
    rank = along.argsort(1).argsort(1)
    ends = (counted * (share / 100)).ceil().clamp(min=1)
    kept = ((rank < ends) | (rank >= counted - ends)) & valid
    chosen = x * kept[:, None]
    # Brought to a largest value of 1, products neither overflow nor vanish.
    chosen = chosen / chosen.amax((1, 2), keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    scatter = (chosen @ chosen.transpose(1, 2)).to(torch.float64)
    # Repeated squaring of a matrix of trace 1 leaves the first eigenvector's projector. Unlike that of an
    # eigendecomposition, its gradient is finite where other eigenvalues coincide.
    projector = scatter / scatter.diagonal(dim1=1, dim2=2).sum(1)[:, None, None].clamp(min=1e-300)
    for _ in range(12):
        projector = projector @ projector
        projector = projector / projector.diagonal(dim1=1, dim2=2).sum(1)[:, None, None].clamp(min=1e-300)
    return unit((projector @ unit(mean.to(torch.float64))[:, :, None])[..., 0].to(x.dtype))


def _gaussian_derivatives(sigma: float, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """A Gaussian and its first two derivatives, sampled, and exact for polynomials of degree 0, 1 and 2."""
    reach = max(1, round(3 * sigma))
    u = torch.arange(-reach, reach + 1, dtype=torch.float64)
    smooth = torch.exp(-(u**2) / (2 * sigma**2))
    smooth = smooth / smooth.sum()
    slope = u * smooth
    slope = slope / (slope * u).sum()
    bend = (u**2 - (u**2 * smooth).sum()) * smooth
    bend = bend * 2 / (bend * u**2).sum()
    return [kernel.to(device, dtype) for kernel in (smooth, slope, bend)]
