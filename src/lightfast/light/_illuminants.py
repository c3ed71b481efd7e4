"""One light for each image: von Kries gains, random illuminants, images under another light."""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
from torch import Tensor

from lightfast.color import hsv_to_rgb, linear_to_srgb, srgb_to_linear


def von_kries(linear_images: Tensor, gains: Tensor) -> Tensor:
    """The von Kries model of a change of light: each channel of linear images times its gain, `a_c x_c`.

    Args:
        linear_images: (N, C, ...), linear in light. In log RGB the same change is the offset `-log(a)`.
        gains: (C,) for all images, (N, C) for each, or (N, C, ...) for each pixel. Brought to the images'
            type and device.

    >>> von_kries(torch.ones(1, 3, 1, 1), torch.tensor([[1.0, 0.5, 0.25]])).flatten()
    tensor([1.0000, 0.5000, 0.2500])
    """
    _require_images(linear_images)
    return linear_images * _broadcast("gains", gains, linear_images)


def random_illuminants(
    n: int,
    saturation: float | Tensor,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`n` illuminants of random hue, value 1 and the given saturation in HSV, as linear gains (n, 3).

    The largest channel is 1 and the smallest `1 - saturation`. Saturation 0 is white light, 1 takes a channel
    away.

    Args:
        n: how many.
        saturation: a number in [0, 1], or a tensor (n,) of them. Values of a tensor are checked on the CPU
            only: on other devices the check would make the host wait.
        generator: where the hues come from; by default torch's global generator of the device.
        device: by default the generator's.
        dtype: by default torch's default. Hues are drawn in float32 whatever it is, so all types see the same
            light.

    >>> lights = random_illuminants(5, 0.75, generator=torch.Generator().manual_seed(0))
    >>> lights.amax(1), lights.amin(1)
    (tensor([1., 1., 1., 1., 1.]), tensor([0.2500, 0.2500, 0.2500, 0.2500, 0.2500]))
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    hue = uniform((n,), generator, device)
    hue = hue.to(torch.promote_types(dtype, hue.dtype))
    saturation = saturations(saturation, hue)
    return hsv_to_rgb(torch.stack([hue, saturation, torch.ones_like(hue)], 1)).to(dtype)


def spectral_gains(
    n: int, bands: int, strength: float | Tensor, *, generator: torch.Generator | None = None, waves: int = 4
) -> Tensor:
    """Random smooth spectra of light: a gain for each of any number of bands, (n, bands), of geometric mean 1.

    Their logarithm is a sum of cosines over the bands, `Σ_k a_k cos(π k t)`, `k` from 1 to `waves`, with normal `a_k`
    that fall as `1 / k`, scaled to a standard deviation over the bands of `strength`: at 1, the gains of the brightest
    and the darkest band differ by a factor of about 20.

    Args:
        n: how many.
        bands: over which wavelengths are spread evenly.
        strength: one for all, or (n,). The shape of a spectrum does not depend on it.
        generator: see the module's own words.
        waves: how many cosines; more are less smooth.

    >>> gains = spectral_gains(2, 16, 0.5, generator=torch.Generator().manual_seed(0))
    >>> gains.shape, torch.allclose(gains.log().std(1, correction=0), torch.tensor([0.5, 0.5]))
    (torch.Size([2, 16]), True)
    """
    device = None if generator is None else generator.device
    amplitudes = torch.randn(n, waves, generator=generator, device=device)
    k = torch.arange(1, waves + 1, device=device)
    t = (torch.arange(bands, device=device) + 0.5) / bands
    curves = (amplitudes / k) @ torch.cos(math.pi * k[:, None] * t)
    curves = curves - curves.mean(1, keepdim=True)
    curves = curves / curves.std(1, correction=0, keepdim=True).clamp(min=1e-12)
    return (torch.as_tensor(strength, device=device).reshape(-1, 1) * curves).exp()


@overload
def relight(
    images: Tensor,
    saturation: float | Tensor | None = None,
    *,
    illuminants: Tensor | None = None,
    space: Literal["srgb", "linear"] = "srgb",
    generator: torch.Generator | None = None,
    return_illuminants: Literal[False] = False,
) -> Tensor: ...


@overload
def relight(
    images: Tensor,
    saturation: float | Tensor | None = None,
    *,
    illuminants: Tensor | None = None,
    space: Literal["srgb", "linear"] = "srgb",
    generator: torch.Generator | None = None,
    return_illuminants: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def relight(
    images: Tensor,
    saturation: float | Tensor | None = None,
    *,
    illuminants: Tensor | None = None,
    space: Literal["srgb", "linear"] = "srgb",
    generator: torch.Generator | None = None,
    return_illuminants: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The images under another light: gamma removed, multiplied by the illuminant, gamma restored.

    Nothing is clipped, and nothing is rounded to 8 bits. Illuminants up to 1 keep images in [0, 1] there.

    Args:
        images: (N, 3, H, W), floating point.
        saturation: draw a random illuminant of this saturation for each image, as :func:`random_illuminants`
            does.
        illuminants: or use these: (3,), (N, 3), or (N, 3, H, W) for light that varies, as from
            :func:`gradient_light`. Give exactly one of the two.
        space: "srgb" for images with gamma; "linear" for images without, which are only multiplied.
        generator: where the random hues come from.
        return_illuminants: also return the illuminants, as drawn or as given.

    >>> images = torch.full((2, 3, 4, 4), 0.5)
    >>> relight(images, 0.9).shape
    torch.Size([2, 3, 4, 4])
    >>> red = torch.tensor([1.0, 0.1, 0.1])
    >>> relight(images, illuminants=red)[0, :, 0, 0]
    tensor([0.5000, 0.1576, 0.1576])
    """
    _require_images(images)
    if space not in ("srgb", "linear"):
        raise ValueError(f'space must be "srgb" or "linear", not {space!r}')
    if (saturation is None) == (illuminants is None):
        raise ValueError("give either a saturation, to draw illuminants, or the illuminants themselves")
    if illuminants is None:
        assert saturation is not None
        if images.shape[1] != 3:
            raise ValueError(
                f"random illuminants have 3 channels, but the images' shape is {tuple(images.shape)}: "
                "expected (N, 3, H, W); give illuminants= for other numbers of channels"
            )
        illuminants = random_illuminants(
            len(images), saturation, generator=generator, device=images.device, dtype=images.dtype
        )
    gains = _broadcast("illuminants", illuminants, images)
    relit = linear_to_srgb(srgb_to_linear(images) * gains) if space == "srgb" else images * gains
    return (relit, illuminants) if return_illuminants else relit


def uniform(shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device | str | None) -> Tensor:
    """Uniform float32 numbers in [0, 1), drawn where the generator lives and then moved to the device."""
    if generator is None:
        return torch.rand(shape, dtype=torch.float32, device=device)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float32, device=generator.device)
    return drawn if device is None else drawn.to(device)


def saturations(saturation: float | Tensor, like: Tensor) -> Tensor:
    """The saturation of each illuminant, in the shape, type and device of `like` (n,)."""
    if not isinstance(saturation, Tensor):
        if not 0 <= saturation <= 1:
            raise ValueError(f"saturation must lie in [0, 1], but is {saturation}")
        return torch.full_like(like, saturation)
    if saturation.shape not in ((), like.shape):
        raise ValueError(
            f"saturation must be one number or a tensor of shape ({len(like)},), one for each illuminant, "
            f"but its shape is {tuple(saturation.shape)}"
        )
    if saturation.device.type == "cpu" and not bool(((saturation >= 0) & (saturation <= 1)).all()):
        raise ValueError(
            f"saturation must lie in [0, 1], but goes from {saturation.min():.4g} to {saturation.max():.4g}"
        )
    return saturation.to(like).expand_as(like)


def _broadcast(name: str, gains: Tensor, images: Tensor) -> Tensor:
    """The gains in the images' type, on their device, and in a shape that multiplies them."""
    n, channels, *pixels = images.shape
    shaped = gains[None] if gains.ndim == 1 else gains
    if shaped.ndim == 2:
        shaped = shaped.reshape(*shaped.shape, *(1 for _ in pixels))
    fits = (
        shaped.ndim == images.ndim
        and shaped.shape[1] == channels
        and all(have in (1, want) for have, want in zip(shaped.shape, images.shape, strict=True))
    )
    if not fits:
        raise ValueError(
            f"{name} of shape {tuple(gains.shape)} do not fit images of shape {tuple(images.shape)}: "
            f"expected ({channels},), ({n}, {channels}) or {tuple(images.shape)}"
        )
    return shaped.to(images)


def _require_images(images: Tensor) -> None:
    if not images.is_floating_point():
        raise TypeError(
            f"expected floating point images, but the type is {images.dtype}: "
            "bring 8-bit images to [0, 1] with images / 255"
        )
    if images.ndim < 2:
        raise ValueError(
            f"expected a batch (N, C, H, W), but the shape is {tuple(images.shape)}: "
            "add the missing dimensions, as images[None] does"
        )
