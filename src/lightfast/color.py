"""Color spaces on the way from an image file to log RGB, where a change of light is an offset.

`sRGB --srgb_to_linear--> linear RGB --linear_to_log--> log RGB --ChannelNorm--> network`,
or `log RGB --FromLog--> network`, if that was trained on sRGB.

Images are floating point with the colors on dimension 1: (N, 3, H, W), or (N, 3) for single colors. The
functions that act on each number by itself take any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

__all__ = [
    "EPSILON",
    "SRGB_TO_XYZ",
    "ChannelNorm",
    "FromLog",
    "hsv_to_rgb",
    "light_of_temperature",
    "linear_to_log",
    "linear_to_srgb",
    "log_to_linear",
    "srgb_to_linear",
    "srgb_to_log",
    "temperature_of_light",
]

EPSILON = 2e-4
"""Linear values below this are clipped before the logarithm: 2/3 of the first step of 8-bit sRGB."""

SRGB_TO_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
"""From linear sRGB to CIE XYZ; white, (1, 1, 1), is D65."""

_POWER = 12.0
"""The least that is as good as any, on images that a network was trained on: `benchmarks/choose_level.py`."""

_BRIGHTEST = 4.0
"""Linear light beyond which a picture from log RGB is cut: sRGB of it is about 1.8."""

# IEC 61966-2-1: where the straight piece of the curve ends, on the sRGB side and on the linear side.
_SRGB_KNEE = 0.04045
_LINEAR_KNEE = 0.0031308


def srgb_to_linear(srgb: Tensor) -> Tensor:
    """Remove the gamma of sRGB (IEC 61966-2-1), number by number.

    `x / 12.92` up to 0.04045, `((x + 0.055) / 1.055) ** 2.4` above; any shape. The curve goes on above 1, and
    negative values mirror positive ones, `f(-x) = -f(x)`, so that every real value survives the way there and
    back.

    >>> srgb_to_linear(torch.tensor([0.0, 0.5, 1.0, -0.5]))
    tensor([ 0.0000,  0.2140,  1.0000, -0.2140])
    """
    _require_float(srgb)
    size = srgb.abs()
    # Clamped so that the branch not taken stays smooth: `where` would turn its infinite gradient into NaN.
    curved = ((size.clamp(min=_SRGB_KNEE) + 0.055) / 1.055) ** 2.4
    return torch.where(size <= _SRGB_KNEE, srgb / 12.92, srgb.sign() * curved)


def linear_to_srgb(linear: Tensor) -> Tensor:
    """Apply the gamma of sRGB (IEC 61966-2-1), number by number: the inverse of :func:`srgb_to_linear`.

    `12.92 x` up to 0.0031308, `1.055 x ** (1 / 2.4) - 0.055` above; any shape. The curve goes on above 1, and
    negative values mirror positive ones. Nothing is clipped or rounded.

    >>> linear_to_srgb(torch.tensor([0.0, 0.2140, 1.0, -0.2140]))
    tensor([ 0.0000,  0.5000,  1.0000, -0.5000])
    """
    _require_float(linear)
    size = linear.abs()
    curved = 1.055 * size.clamp(min=_LINEAR_KNEE) ** (1 / 2.4) - 0.055
    return torch.where(size <= _LINEAR_KNEE, linear * 12.92, linear.sign() * curved)


def linear_to_log(linear: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Log RGB, `log(1 / max(x, epsilon))`, number by number; any shape.

    In log RGB a gain `a` on a channel is the offset `-log(a)`, as long as no value is clipped. Values at or
    below `epsilon`, negative ones too, all become `log(1 / epsilon)`, with gradient 0 below it.

    >>> linear_to_log(torch.tensor([0.5, 0.25, 0.0]))
    tensor([0.6931, 1.3863, 8.5172])
    """
    _require_float(linear)
    if not epsilon > 0:
        raise ValueError(f"epsilon must be above 0, since log(1 / 0) is infinite; got {epsilon}")
    return -linear.clamp(min=epsilon).log()


def srgb_to_log(images: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Log RGB from sRGB, number by number: what a network that is to follow light sees.

    `log(1 / max(f(x), epsilon))` with `f` the curve of :func:`srgb_to_linear`; any shape. Light that multiplies linear
    RGB by gains `a_c` adds `-log(a_c)` to the result.

    Args:
        images: sRGB in [0, 1], or uint8, which is divided by 255.
        epsilon: as in :func:`linear_to_log`.

    >>> from lightfast.light import relight
    >>> images, light = torch.rand(2, 3, 4, 4) / 2 + 0.5, torch.tensor([1.0, 0.5, 0.2])
    >>> change = srgb_to_log(relight(images, illuminants=light)) - srgb_to_log(images)
    >>> torch.allclose(change, -light.log()[:, None, None].expand_as(change), atol=1e-4)
    True
    >>> srgb_to_log(torch.tensor([188, 137, 0], dtype=torch.uint8))
    tensor([0.6874, 1.3857, 8.5172])
    """
    return linear_to_log(srgb_to_linear(images / 255 if images.dtype == torch.uint8 else images), epsilon)


def log_to_linear(log: Tensor) -> Tensor:
    """Linear RGB from log RGB, `exp(-y)`, number by number; any shape.

    The inverse of :func:`linear_to_log` above its `epsilon`.

    >>> log_to_linear(torch.tensor([0.0, 0.6931]))
    tensor([1.0000, 0.5000])
    """
    _require_float(log)
    return torch.exp(-log)


def hsv_to_rgb(hsv: Tensor, dim: int = 1) -> Tensor:
    """RGB from hue, saturation and value, which lie along `dim` (three numbers); same shape out as in.

    Hue is in turns: 0 red, 1/3 green, 2/3 blue, and around again. With `k = (6 h + n_c) mod 6` and
    `n = (5, 3, 1)`, channel `c` is `v - v s clamp(min(k, 4 - k), 0, 1)`.

    >>> hsv_to_rgb(torch.tensor([[0.0, 1.0, 1.0], [0.5, 0.5, 1.0]]))
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 1.0000, 1.0000]])
    """
    _require_float(hsv)
    if not -hsv.ndim <= dim < hsv.ndim or hsv.shape[dim] != 3:
        raise ValueError(
            f"expected hue, saturation and value along dimension {dim}, but the shape is {tuple(hsv.shape)}: "
            "say with dim= where the three lie"
        )
    hue, saturation, value = hsv.unbind(dim)

    def channel(n: int) -> Tensor:
        k = (6 * hue + n).remainder(6)
        return value - value * saturation * torch.minimum(k, 4 - k).clamp(0, 1)

    return torch.stack([channel(5), channel(3), channel(1)], dim)


# Robertson's isotemperature lines (J. Opt. Soc. Am. 58, 1968; that of 325 as Lindbloom corrected it): mired, which is a
# million over the temperature, u and v of the black body in CIE 1960, and the slope of the line through it.
_ISOTHERMS = torch.tensor(
    [
        (0, 0.18006, 0.26352, -0.24341), (10, 0.18066, 0.26589, -0.25479), (20, 0.18133, 0.26846, -0.26876),
        (30, 0.18208, 0.27119, -0.28539), (40, 0.18293, 0.27407, -0.30470), (50, 0.18388, 0.27709, -0.32675),
        (60, 0.18494, 0.28021, -0.35156), (70, 0.18611, 0.28342, -0.37915), (80, 0.18740, 0.28668, -0.40955),
        (90, 0.18880, 0.28997, -0.44278), (100, 0.19032, 0.29326, -0.47888), (125, 0.19462, 0.30141, -0.58204),
        (150, 0.19962, 0.30921, -0.70471), (175, 0.20525, 0.31647, -0.84901), (200, 0.21142, 0.32312, -1.0182),
        (225, 0.21807, 0.32909, -1.2168), (250, 0.22511, 0.33439, -1.4512), (275, 0.23247, 0.33904, -1.7298),
        (300, 0.24010, 0.34308, -2.0637), (325, 0.24792, 0.34655, -2.4681), (350, 0.25591, 0.34951, -2.9641),
        (375, 0.26400, 0.35200, -3.5814), (400, 0.27218, 0.35407, -4.3633), (425, 0.28039, 0.35577, -5.3762),
        (450, 0.28863, 0.35714, -6.7262), (475, 0.29685, 0.35823, -8.5955), (500, 0.30505, 0.35907, -11.324),
        (525, 0.31320, 0.35968, -15.628), (550, 0.32129, 0.36011, -23.325), (575, 0.32931, 0.36038, -40.770),
        (600, 0.33724, 0.36051, -116.45),
    ],
    dtype=torch.float64,
)  # fmt: skip
_MIRED = (10.0, 600.0)
_TINT_SCALE = 3000.0


def temperature_of_light(light: Tensor, to_xyz: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Correlated color temperature, in kelvin, and tint of lights.

    The temperature is that of the black body on the same isotemperature line in the CIE 1960 diagram, interpolated
    between Robertson's lines; the tint is 3000 times the distance to it, above 0 for green and below for magenta light.
    Adobe's DNG software development kit counts both so, and programs that develop raw files show such numbers. D65 has
    6502 K by this table and a tint of about 10. Temperatures end at 1667 and 100000 K.

    Args:
        light: (..., 3), linear; its brightness does not matter.
        to_xyz: (3, 3), from its colors to CIE XYZ; those of sRGB by default.

    Returns:
        Two tensors (...), float64. :func:`light_of_temperature` takes them back to the light.

    >>> temperature, tint = temperature_of_light(torch.tensor([1.0, 1.0, 1.0]))
    >>> round(float(temperature)), round(float(tint))
    (6502, 10)
    """
    x, y, z = (light.double() @ _xyz_matrix(to_xyz, light).T).unbind(-1)
    total = (x + 15 * y + 3 * z).clamp(min=1e-12)
    u, v = 4 * x / total, 6 * y / total
    low, high = (torch.full_like(u, end) for end in _MIRED)
    # Lines do not cross where light is, so a light lies on one side of all colder ones and on the other of all warmer.
    for _ in range(50):
        middle = (low + high) / 2
        there_u, there_v, across_u, across_v = _isotherm(middle)
        warmer = (v - there_v) * across_u - (u - there_u) * across_v > 0
        low, high = torch.where(warmer, middle, low), torch.where(warmer, high, middle)
    there_u, there_v, across_u, across_v = _isotherm(low)
    return 1e6 / low, -_TINT_SCALE * ((u - there_u) * across_u + (v - there_v) * across_v)


def light_of_temperature(
    temperature: float | Tensor, tint: float | Tensor = 0.0, to_xyz: Tensor | None = None
) -> Tensor:
    """Lights (..., 3) of a color temperature and a tint, of norm 1: the inverse of :func:`temperature_of_light`.

    Channels that would be negative, since the light lies outside the colors' gamut, are 0.

    >>> light = light_of_temperature(2856)  # an incandescent lamp
    >>> (light / light[1]).round(decimals=2)
    tensor([2.2300, 1.0000, 0.2800], dtype=torch.float64)
    """
    temperature, tint = (torch.as_tensor(value, dtype=torch.float64) for value in (temperature, tint))
    u, v, across_u, across_v = _isotherm((1e6 / temperature).clamp(*_MIRED))
    u, v = u - across_u * tint / _TINT_SCALE, v - across_v * tint / _TINT_SCALE
    xyz = torch.stack([1.5 * u, v, 2 - 0.5 * u - 5 * v], -1)
    light = (xyz @ _xyz_matrix(to_xyz, xyz).inverse().T).clamp(min=0)
    return torch.nn.functional.normalize(light, dim=-1)


def _isotherm(mired: Tensor) -> tuple[Tensor, ...]:
    """Of the black body, u and v, and the direction of the line of its temperature, of norm 1."""
    table = _ISOTHERMS.to(mired.device)
    place = torch.searchsorted(table[:, 0].contiguous(), mired.contiguous()).clamp(1, len(table) - 1)
    before, after = table[place - 1], table[place]
    share = ((mired - before[..., 0]) / (after[..., 0] - before[..., 0]))[..., None]
    u, v = torch.lerp(before[..., 1:3], after[..., 1:3], share).unbind(-1)
    first, second = (
        torch.nn.functional.normalize(torch.stack([torch.ones_like(line[..., 3]), line[..., 3]], -1), dim=-1)
        for line in (before, after)
    )
    return u, v, *torch.nn.functional.normalize(torch.lerp(first, second, share), dim=-1).unbind(-1)


def _xyz_matrix(to_xyz: Tensor | None, like: Tensor) -> Tensor:
    return torch.as_tensor(SRGB_TO_XYZ if to_xyz is None else to_xyz, dtype=torch.float64, device=like.device)


class ChannelNorm(nn.Module):
    """Normalize each channel with a fixed mean and standard deviation, `(x - mean_c) / std_c`.

    An offset Δ of the input becomes Δ / std at the output: the response is `G D` with `D = diag(1 / std)`. It
    stays scaled through an equivariant network, so one that answers with light or pixels ends with
    :meth:`inverse` (or a product with `std`, a buffer like `mean`), and then follows Δ itself.

    Shapes: (N, C, ...) to the same, for any C. The arithmetic is done in the wider type of the input and the
    buffers, so float32 buffers keep a bfloat16 input from losing its small differences.

    Args:
        mean: the mean of each channel, C numbers.
        std: the standard deviation of each channel, C numbers above 0.

    >>> norm = ChannelNorm(mean=[1.0, 2.0, 3.0], std=[1.0, 2.0, 4.0])
    >>> norm(torch.tensor([[2.0, 4.0, 7.0]]))
    tensor([[1., 1., 1.]])
    >>> norm.inverse(torch.tensor([[1.0, 1.0, 1.0]]))
    tensor([[2., 4., 7.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> None:
        super().__init__()
        mean, std = (_channel_numbers(name, numbers) for name, numbers in (("mean", mean), ("std", std)))
        if mean.shape != std.shape:
            raise ValueError(f"mean has {len(mean)} channels and std has {len(std)}: give as many of each")
        # On the meta device, where models from files are tried first, there are no numbers.
        numbers = [] if std.is_meta else std.tolist()
        constant = [c for c, number in enumerate(numbers) if not 0 < number < float("inf")]
        if constant:
            raise ValueError(
                f"std must be above 0 and finite, but is {std[constant].tolist()} in channels {constant}: "
                "leave a constant channel out, or give it a std of 1"
            )
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        batches: Tensor | Iterable[Tensor],
        transform: Callable[[Tensor], Tensor] | None = None,
        chunk: int = 256,
    ) -> ChannelNorm:
        """The normalization that gives the data mean 0 and (population) standard deviation 1 in each channel.

        It comes on the CPU, in the default type; move it as any module.

        Args:
            batches: one tensor (N, C, ...) or any iterable of them, read once. uint8 stands for [0, 1]: it is
                divided by 255.
            transform: applied before the statistics are taken, such as the way from sRGB to log RGB.
            chunk: how many images are held as floating point at a time.

        >>> images = torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8)
        >>> norm = ChannelNorm.fit(images, srgb_to_log)
        >>> norm(srgb_to_log(images)).mean((0, 2, 3)).abs() < 1e-5
        tensor([True, True, True])
        """
        count, mean, squares = 0, torch.zeros(()), torch.zeros(())
        for values in _float_chunks(batches, chunk):
            values = values if transform is None else transform(values)
            flat = values.movedim(1, 0).flatten(1)
            if count and len(flat) != len(mean):
                raise ValueError(f"a batch has {len(flat)} channels, but the ones before it have {len(mean)}")
            new, new_mean = flat.shape[1], flat.mean(1, keepdim=True)
            new_squares = (flat - new_mean).square().sum(1)
            # Merged as Chan, Golub and LeVeque do: sums of squares about a common origin would cancel.
            difference = new_mean[:, 0].cpu().double() - mean
            mean = mean + difference * (new / (count + new))
            squares = squares + new_squares.cpu().double() + difference.square() * (count * new / (count + new))
            count += new
        if not count:
            raise ValueError("no statistics without data: the batches hold no values")
        return cls(mean, (squares / count).sqrt())

    def forward(self, x: Tensor) -> Tensor:
        """`(x - mean) / std`, (N, C, ...) to the same."""
        mean, std = self._like(x)
        return (x - mean) / std

    def inverse(self, y: Tensor) -> Tensor:
        """`y std + mean`, (N, C, ...) to the same: the input that :meth:`forward` takes to `y`."""
        mean, std = self._like(y)
        return y * std + mean

    def _like(self, x: Tensor) -> tuple[Tensor, Tensor]:
        channels = len(self.std)
        if x.ndim < 2 or x.shape[1] != channels:
            raise ValueError(f"expected (N, {channels}, ...), but the shape is {tuple(x.shape)}")
        shape = (1, channels) + (1,) * (x.ndim - 2)
        return self.mean.view(shape), self.std.view(shape)

    def extra_repr(self) -> str:
        """Mean and std, rounded to be read."""
        return ", ".join(
            f"{name}=[{', '.join(f'{number:.4g}' for number in numbers.tolist())}]"
            for name, numbers in (("mean", self.mean), ("std", self.std))
        )


class FromLog(nn.Module):
    """Normalized sRGB, from log RGB: `(srgb(exp(m - l(z) - z)) - mean) / std`.

    `l` is how bright each channel of an image is, the log of the power mean of its linear light `exp(-z)`,
    `l(z) = log(mean(exp(-p z))) / p`, as in shades of gray (Finlayson and Trezzi 2004): the brightest pixels, often
    white or lamps, count most. So the picture that comes out is as bright, in each channel, as usual images are: it is
    the one in their light, whatever light it was taken in. An offset that is added to a channel of `z` changes nothing.

    With it a trained network needs no log RGB of its own: `lf.wrap(nn.Sequential(FromLog(norm), network))` ignores the
    color of the light without any training.

    Args:
        norm: mean and standard deviation of sRGB that the network was trained with.
        images: log RGB of usual images, (N, 3, H, W), whose mean level is `m`; without them, `m` is that of normally
            distributed sRGB of the mean and deviation of `norm`.
        power: `p`.

    Shapes: (N, 3, H, W), unchanged.

    >>> to_srgb, z = FromLog(ChannelNorm([0.5] * 3, [0.25] * 3)), torch.rand(1, 3, 4, 4)
    >>> torch.allclose(to_srgb(z), to_srgb(z + torch.tensor([0.0, 1.0, 2.0]).reshape(3, 1, 1)), atol=1e-5)
    True
    """

    usual: Tensor

    def __init__(self, norm: ChannelNorm, images: Tensor | None = None, power: float = _POWER) -> None:
        super().__init__()
        if len(norm.mean) != 3:
            raise ValueError(f"sRGB has three channels, but this normalization has {len(norm.mean)}")
        if not power > 0:
            raise ValueError(f"the power of a mean of brightness is above 0, not {power}")
        self.norm, self.power = ChannelNorm(norm.mean.detach().clone(), norm.std.detach().clone()), power
        usual = self._level_of(self.norm) if images is None else self._level(images).mean(0)
        self.register_buffer("usual", usual.to(self.norm.mean.dtype).reshape(3, 1, 1))

    def forward(self, z: Tensor) -> Tensor:
        wide = z if z.dtype == torch.float64 else z.float()
        linear = (self.usual - self._level(wide)[..., None, None] - wide).exp().clamp(max=_BRIGHTEST)
        return self.norm(linear_to_srgb(linear)).to(z.dtype)

    def _level(self, z: Tensor) -> Tensor:
        """`l(z)`, of log RGB (N, 3, H, W): (N, 3)."""
        z = z.flatten(2)
        # About the brightest pixel, so that no power of it overflows.
        brightest = z.amin(2, keepdim=True)
        return (self.power * (brightest - z)).exp().mean(2).log() / self.power - brightest[..., 0]

    def _level_of(self, norm: ChannelNorm) -> Tensor:
        """The level of normally distributed sRGB, cut to [0, 1]: (3,)."""
        values = torch.linspace(0, 1, 1001, dtype=norm.mean.dtype, device=norm.mean.device)[:, None]
        shares = torch.softmax(-((values - norm.mean) / norm.std).square() / 2, 0)
        return (shares * srgb_to_linear(values) ** self.power).sum(0).log() / self.power


def _channel_numbers(name: str, numbers: Sequence[float] | Tensor) -> Tensor:
    tensor = torch.as_tensor(numbers).detach().to(torch.get_default_dtype(), copy=True)
    if tensor.ndim != 1:
        raise ValueError(f"{name} needs one number per channel, but its shape is {tuple(tensor.shape)}")
    return tensor


def _float_chunks(batches: Tensor | Iterable[Tensor], chunk: int) -> Iterable[Tensor]:
    for batch in [batches] if isinstance(batches, Tensor) else batches:
        if batch.ndim < 2:
            raise ValueError(f"expected batches of (N, C, ...), but the shape is {tuple(batch.shape)}")
        for part in batch.split(chunk):
            if part.numel() == 0:
                continue
            if part.dtype == torch.uint8:
                yield part / 255
            else:
                _require_float(part)
                yield part.to(torch.promote_types(part.dtype, torch.float32))


def _require_float(values: Tensor) -> None:
    if not values.is_floating_point():
        raise TypeError(
            f"expected floating point values, but the type is {values.dtype}: "
            "bring 8-bit images to [0, 1] with images / 255"
        )
