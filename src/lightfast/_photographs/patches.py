"""Large holes with texture: patches from elsewhere in the photograph, compared and copied without their light."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch.nn import functional as F

from lightfast.fields import field_map, log_level

__all__ = ["GUESSED", "Guess", "fill_with_texture", "membrane", "textured"]

Guess = Callable[[np.ndarray], np.ndarray]

GUESSED = 0.1
"""The share of a guess in the structure of what is filled in. Set by hand: the packaged network's costs more PSNR the
more it is believed (`benchmarks/holes.py`)."""

# Added before the logarithm, where 1 is the mean; pixels along the shorter side from which a plane is told; and how
# often neighbors are averaged on each scale.
_SOFT, _LOOKED_AT, _AVERAGES = 0.05, 256, 40
# Patches are squares of so many pixels; compared by so many numbers, their main components.
_SIDE, _NUMBERS = 7, 24
_REACH = _SIDE // 2
# Matches are looked for where a hole is not thicker than so many pixels, and from where it is so thin on; on finer
# scales they are taken over. Rounds on each scale, and on the coarsest.
_FINE, _COARSE = 128, 8
_ROUNDS, _FIRST_ROUNDS = 3, 10
# How much the difference of two patches' means counts, against 1 for what is left of them; the most that a copy is
# brightened or darkened, as a logarithm.
_MEANS, _LARGEST = 0.3, 0.5
# What a patch says counts for less by this factor with every pixel that its middle is farther from what is seen; and
# how far from its middle, squared.
_INWARD, _SPREAD = 1.3, 4.0


def fill_with_texture(
    light: np.ndarray,
    missing: np.ndarray,
    hole: np.ndarray,
    guess: Guess | None = None,
    progress: Callable[[float], None] | None = None,
) -> np.ndarray:
    """Linear light (H, W, C) with a hole filled by texture from around it, whatever the light there.

    With `o` the plane that says how bright each channel is where it is seen (:func:`lightfast.fields.log_level`),
    `z = log(x exp(-o) + s)` does not move when light changes by the exponential of a plane over the picture. All that
    is done is done to `z`, and `o` is put back: what is filled in follows such light exactly.

    Args:
        light: linear, of anything where it is missing.
        missing: boolean (H, W), where nothing is seen.
        hole: those of them to fill in.
        guess: from the picture without its light, linear with 1 the brightest, to what may be in the hole: (H, W, C),
            of which a share of :data:`GUESSED` is taken for the structure; the rest is a membrane.
        progress: called with the part that is done, from 0 to 1.
    """
    seen = ~missing
    level = _plane(np.where(missing[..., None], 0, light), seen)
    flat = np.where(missing[..., None], 0, light * np.exp(-level))
    top = flat[seen].max(0)
    # What differs by rounding alone must not choose other patches.
    z = (np.round(np.log(flat + _SOFT) * 2**20) / 2**20).astype(np.float32)
    start = membrane(z, missing)
    if guess is not None:
        said = np.log(np.clip(guess((flat / top.max()).astype(np.float32)) * top.max(), 0, top) + _SOFT)
        start = np.where(hole[..., None], (1 - GUESSED) * start + GUESSED * said, start).astype(np.float32)
    z, _ = textured(start, missing, hole, progress)
    filled = np.clip(np.exp(z.astype(np.float64)) - _SOFT, 0, top) * np.exp(level)
    return np.where(hole[..., None], filled, light)


def _plane(light: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """How bright each channel is, as the logarithm of the exponential of a plane, (H, W, C)."""
    height, width = seen.shape
    # Every so manyth pixel says enough. Those in the middle of squares have the positions of a smaller picture.
    step = max(1, min(height, width) // _LOOKED_AT)
    step -= 1 - step % 2
    some = tuple(slice(step // 2, length // step * step, step) for length in (height, width))
    few = torch.from_numpy(np.ascontiguousarray(light[some].transpose(2, 0, 1)))[None].double()
    found = log_level(few, 1, torch.from_numpy(np.ascontiguousarray(seen[some]))[None, None])
    # What the squares leave over at the end lies beyond 1.
    places = [(np.arange(length) + 0.5) / (length // step * step) * 2 - 1 for length in (height, width)]
    corners = field_map(found, 1, (2, 2))[0].numpy()
    middle, down = corners.mean((1, 2)), corners[:, 1].mean(1) - corners[:, 0].mean(1)
    across = corners[:, :, 1].mean(1) - corners[:, :, 0].mean(1)
    return middle + down * places[0][:, None, None] + across * places[1][:, None]


def membrane(z: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """The picture with what is missing as a membrane spanned by what is seen: each pixel the mean of its neighbors.

    From coarse to fine; on each scale, neighbors are averaged a number of times, which is fewer where it is fine.
    """
    if not missing.any():
        return z
    if min(z.shape[:2]) < 4 or missing.all():
        seen = z[~missing]
        return np.where(missing[..., None], seen.mean(0) if len(seen) else 0, z).astype(z.dtype)
    counts = _blocks(~missing[..., None]).sum(2)
    sums = _blocks(np.where(missing[..., None], 0, z)).sum(2)
    coarse = membrane((sums / np.maximum(counts, 1)).astype(np.float32), counts[..., 0] == 0)
    image = torch.from_numpy(np.ascontiguousarray(coarse.transpose(2, 0, 1)))[None]
    start = F.interpolate(image, scale_factor=2, mode="bilinear", align_corners=False)[0, :, : z.shape[0], : z.shape[1]]
    z = np.where(missing[..., None], start.permute(1, 2, 0).numpy(), z)
    rows, columns = (np.flatnonzero(missing.any(axis)) for axis in (1, 0))
    part = slice(max(0, rows[0] - 1), rows[-1] + 2), slice(max(0, columns[0] - 1), columns[-1] + 2)
    inner = torch.from_numpy(np.ascontiguousarray(z[part].transpose(2, 0, 1)))[None]
    gone = torch.from_numpy(np.ascontiguousarray(missing[part]))
    weights = torch.tensor([[0.0, 0.25, 0.0], [0.25, 0.0, 0.25], [0.0, 0.25, 0.0]]).expand(z.shape[2], 1, 3, 3)
    for _ in range(_AVERAGES if _thickness(missing) <= _FINE else _AVERAGES // 5):
        mean = F.conv2d(F.pad(inner, (1, 1, 1, 1), mode="replicate"), weights, groups=z.shape[2])
        inner = torch.where(gone, mean, inner)
    z[part] = inner[0].permute(1, 2, 0).numpy()
    return z


def textured(
    z: np.ndarray, missing: np.ndarray, hole: np.ndarray, progress: Callable[[float], None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A picture whose hole is made of patches from around it, and where each pixel of the hole was taken from.

    From coarse scales to fine ones, every patch that touches the hole looks for the one most like it among those that
    are seen (PatchMatch: what neighbors found, and chance), and each missing pixel becomes the mean of what the patches
    over it say (Wexler et al. 2007). Patches are compared with their means apart, which count for less, and are copied
    with the mean of the place: in log RGB that is texture without its light, and the light of the place put back.

    Args:
        z: log RGB (H, W, C), float32, whole: in the hole, a first guess that says what goes where.
        missing: boolean (H, W), where nothing is seen.
        hole: those of them to fill in; the others are neither used nor changed.
        progress: called with the part that is done, from 0 to 1.

    Returns:
        z (H, W, C), and row and column (2, H, W) of each pixel's source; outside of the hole, its own.
    """
    scales = [(z, missing, hole)]
    while _thickness(scales[-1][2]) > _COARSE and min(scales[-1][0].shape[:2]) >= 4 * _SIDE:
        scales.append(_halved(*scales[-1]))
    found: np.ndarray | None = None
    work = [(_ROUNDS if _thickness(hole) <= _FINE else 1) * hole.sum() for _, _, hole in scales]
    random = np.random.default_rng(0)
    for number in reversed(range(len(scales))):
        matcher = _Matcher(*scales[number], random)
        if not matcher.allowed.any():
            continue
        first = found is None
        if found is not None:
            matcher.take_over(found)
        if first or _thickness(scales[number][2]) <= _FINE:
            if not first:
                matcher.vote()
            matcher.learn()
            for _ in range(_FIRST_ROUNDS if first else _ROUNDS):
                matcher.search()
                matcher.vote()
        if number == 0:
            matcher.vote(sharp=True)
        found, z = matcher.places(), matcher.z
        if progress is not None:
            progress(sum(work[number:]) / sum(work))
    return (scales[0][0], np.indices(missing.shape)) if found is None else (z, found)


class _Matcher:
    """Patches that touch a hole, and for each of them the most similar one that is seen.

    Positions are row and column of a patch's middle.
    """

    def __init__(self, z: np.ndarray, missing: np.ndarray, hole: np.ndarray, random: np.random.Generator) -> None:
        self.z, self.hole, self.random = z, hole, random
        self.size = np.array(missing.shape)[:, None]
        self.allowed = _sources(missing)
        self.at = np.stack(np.nonzero(_grown(hole, _REACH)))
        self.number = np.full(missing.shape, -1)
        self.number[tuple(self.at)] = np.arange(self.at.shape[1])
        self.known = np.stack(np.nonzero(self.allowed))
        if self.known.size:
            self.source = self.known[:, random.integers(0, self.known.shape[1], self.at.shape[1])]
        self.distance: np.ndarray | None = None

    def take_over(self, found: np.ndarray) -> None:
        """Start with what was found at half the scale."""
        coarse = np.minimum(self.at // 2, np.array(found.shape[1:])[:, None] - 1)
        source = 2 * found[:, coarse[0], coarse[1]] + self.at % 2
        self.source = np.where(self._is_allowed(source), source, self.source)

    def places(self) -> np.ndarray:
        """Row and column (2, H, W) of the middle of the patch that each position was matched with."""
        places = np.indices(self.hole.shape)
        places[:, self.at[0], self.at[1]] = self.source
        return places

    def learn(self) -> None:
        """Main components of the patches that are seen, by which patches are compared."""
        some = self.known[:, self.random.integers(0, self.known.shape[1], min(self.known.shape[1], 4000))]
        views = sliding_window_view(self.z, (_SIDE, _SIDE), (0, 1))
        patches = views[some[0] - _REACH, some[1] - _REACH].reshape(some.shape[1], self.z.shape[2], -1)
        rest = (patches - patches.mean(2, keepdims=True)).reshape(some.shape[1], -1).astype(np.float64)
        _, components = np.linalg.eigh(rest.T @ rest)
        filters = components[:, -_NUMBERS:].T.reshape(_NUMBERS, self.z.shape[2], _SIDE, _SIDE)
        self.filters = torch.from_numpy(np.ascontiguousarray(filters, np.float32))
        self.features = self._described(self.z)

    def search(self) -> None:
        """Look for better matches: next to those of neighbors, and at random ever closer."""
        first, last = self.at.min(1), self.at.max(1) + 1
        wanted = self._described(self.z, (slice(first[0], last[0]), slice(first[1], last[1])))
        wanted = wanted[self.at[0] - first[0], self.at[1] - first[1]]
        self.distance = self._compared(wanted, self.source)
        for step in (8, 3, 1):
            for shift in ((0, step), (0, -step), (step, 0), (-step, 0)):
                self._try(wanted, self._from_neighbor(np.array(shift)[:, None]))
        radius = int(self.size.max())
        while radius >= 1:
            self._try(wanted, self.source + self.random.integers(-radius, radius + 1, self.source.shape))
            radius //= 2

    def vote(self, sharp: bool = False) -> None:
        """Make each missing pixel the mean of what the matched patches over it say.

        Patches that match better, and that are nearer to what is seen, count for more; `sharp`: the nearest almost
        alone.
        """
        weight = np.ones(self.at.shape[1], np.float32)
        if not sharp and _thickness(self.hole) <= _FINE:
            weight = _INWARD ** -_depth(self.hole)[tuple(self.at)].astype(np.float32)
        if self.distance is not None:
            weight *= np.exp(-self.distance / (np.quantile(self.distance, 0.75) + 1e-6)) + 1e-6
        means = _box_mean(self.z)
        bias = np.clip(means[tuple(self.at)] - means[tuple(self.source)], -_LARGEST, _LARGEST)
        padded = np.pad(self.hole, _REACH)
        total, weights = np.zeros((*padded.shape, self.z.shape[2]), np.float32), np.zeros(padded.shape, np.float32)
        reach = 1 if sharp else _REACH
        for down in range(-reach, reach + 1):
            for across in range(-reach, reach + 1):
                near = weight * np.float32(np.exp(-(down**2 + across**2) / (1.0 if sharp else _SPREAD)))
                place = (self.at[0] + down + _REACH, self.at[1] + across + _REACH)
                total[place] += near[:, None] * (self.z[self.source[0] + down, self.source[1] + across] + bias)
                weights[place] += near
        inner = slice(_REACH, -_REACH)
        mean = total[inner, inner] / np.maximum(weights[inner, inner], 1e-30)[..., None]
        self.z = np.where(self.hole[..., None], mean, self.z)

    def _described(self, z: np.ndarray, part: tuple[slice, slice] | None = None) -> np.ndarray:
        """Numbers (h, w, K) for the patch about each position of a part of the picture."""
        padded = np.pad(z, ((_REACH, _REACH), (_REACH, _REACH), (0, 0)), mode="reflect")
        if part is not None:
            padded = padded[tuple(slice(each.start, each.stop + 2 * _REACH) for each in part)]
        image = torch.from_numpy(np.ascontiguousarray(padded.transpose(2, 0, 1)))[None]
        numbers = [F.conv2d(image, self.filters), _MEANS * _SIDE * F.avg_pool2d(image, _SIDE, 1)]
        return np.ascontiguousarray(torch.cat(numbers, 1)[0].permute(1, 2, 0).numpy())

    def _from_neighbor(self, shift: np.ndarray) -> np.ndarray:
        number = self.number[tuple(np.clip(self.at + shift, 0, self.size - 1))]
        return np.where(number >= 0, self.source[:, number] - shift, self.source)

    def _is_allowed(self, source: np.ndarray) -> np.ndarray:
        inside = ((source >= 0) & (source < self.size)).all(0)
        return inside & self.allowed[tuple(np.where(inside, source, 0))]

    def _compared(self, wanted: np.ndarray, source: np.ndarray) -> np.ndarray:
        away = self.features[tuple(source)] - wanted
        return np.einsum("ij,ij->i", away, away)

    def _try(self, wanted: np.ndarray, source: np.ndarray) -> None:
        assert self.distance is not None
        allowed = np.flatnonzero(self._is_allowed(source))
        distance = self._compared(wanted[allowed], source[:, allowed])
        better = distance < self.distance[allowed]
        taken = allowed[better]
        self.source[:, taken] = source[:, taken]
        self.distance[taken] = distance[better]


def _box_mean(z: np.ndarray) -> np.ndarray:
    """Means over the patch about each pixel, (H, W, C)."""
    image = torch.from_numpy(np.ascontiguousarray(z.transpose(2, 0, 1)))[None]
    return F.avg_pool2d(F.pad(image, (_REACH,) * 4, mode="reflect"), _SIDE, 1)[0].permute(1, 2, 0).numpy()


def _depth(hole: np.ndarray) -> np.ndarray:
    """How many times the rim of a hole is to be taken away until a pixel is gone."""
    depth = np.zeros(hole.shape, int)
    rows, columns = (np.flatnonzero(hole.any(axis)) for axis in (1, 0))
    part = depth[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    left = hole[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    while left.any():
        part += left
        left = ~_grown(np.pad(~left, 1, constant_values=True), 1)[1:-1, 1:-1]
    return depth


def _sources(missing: np.ndarray) -> np.ndarray:
    """Where the middle of a patch may be that is seen as a whole."""
    allowed = ~_grown(missing, _REACH)
    allowed[:_REACH] = allowed[-_REACH:] = allowed[:, :_REACH] = allowed[:, -_REACH:] = False
    return allowed


def _grown(mask: np.ndarray, by: int) -> np.ndarray:
    """A mask with the squares of `by` pixels in every direction about its pixels."""
    for axis in (0, 1):
        padded = np.pad(mask, [(by, by) if axis == own else (0, 0) for own in (0, 1)])
        mask = np.asarray(sliding_window_view(padded, 2 * by + 1, axis).any(-1))
    return mask


def _thickness(hole: np.ndarray) -> int:
    """The smaller side of the rectangle around a hole."""
    return int(min(np.ptp(np.flatnonzero(hole.any(axis))) + 1 for axis in (0, 1)))


def _blocks(values: np.ndarray) -> np.ndarray:
    """(H, W, C) in squares of 2x2, (H/2, W/2, 4, C); the last row and column are repeated if they are alone."""
    even = np.pad(values, [(0, values.shape[0] % 2), (0, values.shape[1] % 2), (0, 0)], mode="edge")
    rows, columns = even.shape[0] // 2, even.shape[1] // 2
    return even.reshape(rows, 2, columns, 2, -1).swapaxes(1, 2).reshape(rows, columns, 4, -1)


def _halved(z: np.ndarray, missing: np.ndarray, hole: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means over 2x2 pixels; missing is what has one missing."""
    gone, within = (np.asarray(_blocks(mask[..., None]).any(2))[..., 0] for mask in (missing, hole))
    return _blocks(z).mean(2).astype(np.float32), gone, within
