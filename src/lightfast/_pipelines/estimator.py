"""Illuminant estimation in one module: from a linear image of any size to the color of its light."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast import models
from lightfast._pipelines.light_plane import Windows
from lightfast._pipelines.pipeline import Pipeline
from lightfast._pipelines.resample import area_weights
from lightfast.constancy._camera import FEWEST, LightPrior
from lightfast.constancy._statistics import check_images
from lightfast.light import relight

__all__ = ["Estimator", "SceneEncoding"]

EstimatorColor = Literal["linear", "log"]

_DIHEDRAL = 8
_WINDOWS = Windows()
_WINDOWS_KNOWN = Windows(7, 0.25, stiffness=0.02)
"""With a prior, smaller ones are sure enough, and the plane may be less stiff (results/illuminant/several-lights)."""

_UNSURE = "this estimator does not say how sure it is: train its networks with confidence above 0"


class SceneEncoding(nn.Module):
    """From linear images of any size to what a network sees, and from its answer back to light.

    Images are resampled by area to a square, whatever their shape: sides are squeezed, not cut. Pixels that are masked,
    or 0 in all channels, count for nothing; where nothing is left they are filled with the image's mean color.

    `linear`: divided by the mean over pixels and channels, so that exposure does not matter. `log`: with `m_c` the mean
    of channel `c` over the pixels, `log(1 / (x_c / m_c + softness))`, which no gain of a channel can change; the
    network's answer is brought back by `log(1 / m_c)`. Softness keeps noise and errors of the black level from being
    stretched by the logarithm; because it is relative to the mean, light of any saturation is followed exactly.

    Args:
        color: what the network sees: `linear` or `log` RGB.
        size: of the square.
        softness: for log RGB.
    """

    def __init__(self, color: EstimatorColor = "log", size: int = 64, softness: float = 0.01) -> None:
        super().__init__()
        if color not in ("linear", "log"):
            raise ValueError(f"an estimator sees linear or log colors, not {color!r}")
        if not softness > 0:
            raise ValueError(f"softness must be above 0, since black has no logarithm; got {softness}")
        self.color, self.size, self.softness = color, size, softness

    def reduce(self, images: Tensor, mask: Tensor | None = None, boxes: Tensor | None = None) -> Tensor:
        """Resample by area and fill what is masked: (N, 3, H, W) to (N, 3, size, size).

        Args:
            images: linear.
            mask: (N, 1, H, W), true where a pixel counts.
            boxes: (N, 4), the part of each image to take: first and last row, first and last column, in pixels.
        """
        height, width = images.shape[2:]
        images = images.to(torch.promote_types(images.dtype, torch.float32)).clamp(min=0)
        valid = (images > 0).any(1, keepdim=True)
        valid = valid if mask is None else valid & mask.bool()
        if boxes is None:
            rows = area_weights(images.new_zeros(1), images.new_full((1,), height), self.size, height)
            columns = area_weights(images.new_zeros(1), images.new_full((1,), width), self.size, width)
        else:
            rows = area_weights(boxes[:, 0], boxes[:, 1], self.size, height)
            columns = area_weights(boxes[:, 2], boxes[:, 3], self.size, width)
        counted = torch.cat([images * valid, valid.to(images.dtype)], 1)
        sums = rows[:, None] @ counted @ columns[:, None].transpose(2, 3)
        light, weight = sums[:, :3], sums[:, 3:]
        mean = light.sum((2, 3), keepdim=True) / weight.sum((2, 3), keepdim=True).clamp(min=1e-6)
        # A cell of which next to nothing is left would be the rounding of its neighbors.
        seen = weight > 0.02 * weight.amax((2, 3), keepdim=True)
        return torch.where(seen, light / weight.clamp(min=1e-6), mean)

    def encode(self, reduced: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the network sees, (N, 3, S, S), and the log RGB (N, 3) of the mean color to add to its answer."""
        tiny = torch.finfo(reduced.dtype).tiny
        if self.color == "linear":
            return reduced / reduced.mean((1, 2, 3), keepdim=True).clamp(min=tiny), None
        mean = reduced.mean((2, 3), keepdim=True).clamp(min=tiny)
        return -(reduced / mean + self.softness).log(), -mean.flatten(1).log()

    def decode(self, answer: Tensor, offset: Tensor | None) -> Tensor:
        """The illuminant (N, 3), of norm 1, that the network's answer (N, 3) means."""
        if self.color == "linear":
            return F.normalize(answer.float() + 1e-6, dim=1)
        assert offset is not None
        log = answer.float() + offset
        return F.normalize((log.amin(1, keepdim=True) - log).exp(), dim=1)

    def extra_repr(self) -> str:
        return f"{self.color!r}, size={self.size}, softness={self.softness}"


class Estimator(Pipeline):
    """The color of the light in one module: linear images (N, 3, H, W) of any size to illuminants (N, 3) of norm 1.

    Several networks (`members`) and several views of an image (mirrored and transposed) each give an estimate; the
    answer is the mean in log RGB, or of the unit vectors for a network that sees linear RGB. A mean has weights that
    sum to 1, so it follows the light as its parts do. Networks that say how sure they are (`options` with `spread`) are
    weighed by it: `w_m = σ_m^-2 / Σ σ^-2`, with `σ_m` the error that network `m` expects. No light changes the weights.

    Args:
        network: `cerberus`, `cerberus-local`, `chroma-histogram` or `color-statistics`, as
            :func:`lightfast.models.create` knows them; or several, joined by `+`, which answer together.
        offset_groups: 3 for equivariant networks, None for conventional ones. A conventional network on log RGB is
            wrapped: it sees colors relative to their mean, and its answer is relative to it too.
        color: what the networks see: `linear` or `log` RGB.
        size: to which images are resampled by area; both sides, whatever the shape.
        softness: see :class:`SceneEncoding`.
        members: how many networks of each kind.
        views: how many views of an image: 1, 2 (mirrored), 4 (and upside down) or 8 (and transposed).
        options: more arguments of networks, by their names.
        calibration: factors for the errors that networks expect, one for each, and one for the error that is expected
            of their joint answer; all 1 by default. They are found on images that were not trained on.

    Attributes:
        encoding: the :class:`SceneEncoding`.
        networks: all members, kind after kind.

    >>> estimator = Estimator().eval()
    >>> images, light = torch.rand(2, 3, 80, 120) + 0.1, torch.tensor([[1.0, 0.6, 0.02]])
    >>> with torch.no_grad():
    ...     before, after = estimator(images), estimator(images * light[..., None, None])
    >>> torch.allclose(F.normalize(before * light), after, atol=1e-4)
    True
    """

    output_name = "illuminant"
    dynamic_size = True

    def __init__(
        self,
        network: str = "cerberus",
        *,
        offset_groups: int | None = 3,
        color: EstimatorColor = "log",
        size: int = 64,
        softness: float = 0.01,
        members: int = 1,
        views: int = 1,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        calibration: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if views not in (1, 2, 4, _DIHEDRAL):
            raise ValueError(f"an image has 1, 2, 4 or 8 views by mirroring and transposing, not {views}")
        if members < 1:
            raise ValueError(f"an estimator has at least one member, not {members}")
        if offset_groups is not None and color != "log":
            raise ValueError("an equivariant network follows light in log RGB: use color='log'")
        kinds = network.split("+")
        for name in kinds:
            if name not in models.ESTIMATORS:
                raise ValueError(f"there is no network {name!r} for light; there are {', '.join(models.ESTIMATORS)}")
        for name, values in (options or {}).items():
            if name not in kinds or not isinstance(values, Mapping):
                raise ValueError(f"options are by network, {{{kinds[0]!r}: {{...}}}}, but {name!r} has {values!r}")
        self.views = views
        self.encoding = SceneEncoding(color, size, softness)
        self.networks = nn.ModuleList(
            models.create(name, offset_groups=offset_groups, **self._network_options(name))
            for name in kinds
            for _ in range(members)
        )
        self.calibration = tuple(calibration or (1.0 for _ in range(len(self.networks) + 1)))
        if len(self.calibration) != len(self.networks) + 1 or min(self.calibration) <= 0:
            raise ValueError(
                f"calibration has a factor above 0 for each of {len(self.networks)} networks and one for all, not "
                f"{calibration}"
            )

    def _network_options(self, name: str) -> dict[str, Any]:
        options = (self.config["options"] or {}).get(name, {})
        if name == "cerberus":
            options = {**options, "size": self.config["size"], "rectify": self.config["color"] == "linear"}
        return options

    def example_inputs(
        self, batch: int, size: tuple[int, int], saturation: float = 0.0, seed: int = 0
    ) -> tuple[Tensor, ...]:
        """Random linear images, each under a light of the given saturation; arguments as in :class:`Pipeline`."""
        generator = torch.Generator().manual_seed(seed)
        images = torch.rand(batch, 3, *size, generator=generator)
        return (relight(images, saturation, space="linear", generator=generator),)

    def forward(self, linear_images: Tensor, mask: Tensor | None = None) -> Tensor:
        """The illuminants.

        Args:
            linear_images: (N, 3, H, W), linear in light, of any scale; pixels that are 0 in all channels do not count.
            mask: (N, 1, H, W), true where a pixel counts; all by default.
        """
        check_images(linear_images, mask)
        return self.from_reduced(self.encoding.reduce(linear_images, mask))

    def confident(
        self, linear_images: Tensor, mask: Tensor | None = None, prior: LightPrior | None = None
    ) -> tuple[Tensor, Tensor]:
        """The illuminants (N, 3), and the reproduction error to expect of each, in degrees, (N,).

        What the networks expect and how far they disagree: `k sqrt((Σ w_m σ_m)² + Σ w_m d_m²)`, with `d_m` the angle
        between network `m` and the joint answer, and `k` the last factor of `calibration`. No light changes it.

        With the `prior` of the camera, each network answers by it: the histogram network multiplies it onto its map of
        where the light may be, the others onto a Gaussian about their answer. Such answers follow no light exactly.

        Raises:
            ValueError: the networks were made without `spread`.
        """
        check_images(linear_images, mask)
        light, spread = self._answer(self.encoding.reduce(linear_images, mask), prior)
        if spread is None:
            raise ValueError(_UNSURE)
        return light, spread

    def with_calibration(self, factors: Sequence[float]) -> Estimator:
        """The same networks, with other factors for what they expect: see `calibration`."""
        other = Estimator.from_config({**self.config, "calibration": list(factors)})
        other.load_state_dict(self.state_dict())
        other.about = self.about
        return other.train(self.training)

    @property
    def says_spread(self) -> bool:
        """Whether :meth:`confident` has an answer."""
        return all(getattr(network, "spread", None) is not None for network in self.networks)

    @property
    def made_for_prior(self) -> bool:
        """Whether a network of it was trained to answer with the prior of a camera; all of them can."""
        return any(getattr(network, "sees_prior", False) for network in self.networks)

    def for_camera(self, linear_images: Tensor, mask: Tensor | None = None) -> Tensor:
        """The illuminants (N, 3) of several photographs by one camera, which know of each other.

        The same lights come back in the photographs of a camera. What all estimates together say of these lights
        (:meth:`lightfast.constancy.LightPrior.from_estimates`) is the prior with which each is then estimated again, as
        in :meth:`confident`. Of fewer than four photographs, the answer is that of each alone. If all are relit alike,
        so are the answers.
        """
        check_images(linear_images, mask)
        reduced = self.encoding.reduce(linear_images, mask)
        light, spread = self._answer(reduced)
        if spread is None:
            raise ValueError(_UNSURE)
        if len(light) < FEWEST:
            return light
        return self._answer(reduced, LightPrior.from_estimates(light, spread))[0]

    def light_plane(
        self,
        linear_images: Tensor,
        mask: Tensor | None = None,
        windows: Windows | None = None,
        prior: LightPrior | None = None,
    ) -> Tensor:
        """A light for every pixel, (N, 3, H, W), each of norm 1, for pictures under several lights.

        What the estimator says of overlapping parts of the picture, weighed by how sure it is and by how many pixels
        count there, and a plane in log RGB through it. One light over the picture is followed exactly; but for the
        `prior` of a camera, where there is one (see :meth:`confident`).
        """
        check_images(linear_images, mask)
        windows = windows or (_WINDOWS if prior is None else _WINDOWS_KNOWN)
        plane = windows.plane(*self.window_lights(linear_images, mask, windows, prior), linear_images.shape[2:])
        return F.normalize((plane - plane.amax(1, keepdim=True)).exp(), dim=1)

    def window_lights(
        self, linear_images: Tensor, mask: Tensor | None, windows: Windows, prior: LightPrior | None = None
    ) -> tuple[Tensor, Tensor]:
        """What is said of the parts of pictures: log RGB (K, N, 3) of the light of each, and its weight (K, N)."""
        valid = (linear_images > 0).any(1, keepdim=True)
        valid = valid if mask is None else valid & mask.bool()
        logs, weights = [], []
        for top, bottom, left, right in windows.boxes(linear_images.shape[2], linear_images.shape[3]):
            inside = valid[..., top:bottom, left:right]
            light, spread = self.confident(linear_images[..., top:bottom, left:right], inside, prior)
            logs.append(light.log())
            weights.append(inside.float().mean((1, 2, 3)) / spread.square())
        return torch.stack(logs), torch.stack(weights)

    def from_reduced(self, reduced: Tensor) -> Tensor:
        """The illuminants (N, 3) of images that :meth:`SceneEncoding.reduce` made, (N, 3, S, S)."""
        return self._answer(reduced)[0]

    def _answer(self, reduced: Tensor, prior: LightPrior | None = None) -> tuple[Tensor, Tensor | None]:
        """The illuminants (N, 3), and the error to expect (N,) where networks say it."""
        encoded, offset = self.encoding.encode(reduced)
        # Networks in low precision get what was encoded in a higher one, and so is the mean of their answers.
        views = torch.cat(views_of(encoded, self.views)).to(next(self.networks.parameters()).dtype)
        if prior is None or offset is None or not self.says_spread:
            given = [network(views).to(encoded.dtype) for network in self.networks]
        else:
            given = self._with_prior(views, offset, prior)
        answers = torch.stack(given).unflatten(1, (self.views, -1))
        if self.encoding.color == "linear":
            answers = F.normalize(answers.float() + 1e-6, dim=3)
        if not self.says_spread:
            return self.encoding.decode(answers.mean((0, 1)), offset), None
        *factors, whole = self.calibration
        each, log_spread = answers.mean(1).split([3, 1], 2)
        # Numbers of Python's: a CUDA graph, in which a teacher answers, takes no tensor from the host.
        log_spread = torch.stack([given + math.log(factor) for given, factor in zip(log_spread, factors, strict=True)])
        weights = (-2 * log_spread).softmax(0)
        joint = (weights * each).sum(0)
        apart = each - joint
        # For small angles, the distance in log chroma is that between white and the relative light, times sqrt(3).
        distance = (apart - apart.mean(2, keepdim=True)).square().sum(2, keepdim=True)
        squared_angle = distance * (math.degrees(1) ** 2 / 3)
        expected = ((weights * log_spread.exp()).sum(0).square() + (weights * squared_angle).sum(0)).sqrt()
        light, error = self.encoding.decode(joint, offset), whole * expected[:, 0]
        # Colors that are not logarithms have no offset, and nothing for a prior to be multiplied onto but the answer.
        return (light, error) if prior is None or offset is not None else prior.posterior(light, error)

    def _with_prior(self, views: Tensor, offset: Tensor, prior: LightPrior) -> list[Tensor]:
        """What each network answers of all views, (V N, 4), with the prior of the camera; the offset is (N, 3)."""

        def density(answers: Tensor) -> Tensor:
            # All views of an image have its mean color, and so ask about the same lights.
            return prior.log_density(-answers[: len(offset)] - offset[:, None]).repeat(self.views, 1)

        given = []
        for network, factor in zip(self.networks, self.calibration[:-1], strict=True):
            if isinstance(network, models.ChromaHistogram):
                given.append(network(views, density).to(offset))
                continue
            of_views = []
            for answer in network(views).to(offset).chunk(self.views):
                light = self.encoding.decode(answer[:, :3], offset)
                light, spread = prior.posterior(light, factor * answer[:, 3].exp())
                of_views.append(torch.cat([-light.log() - offset, (spread / factor).log()[:, None]], 1))
            given.append(torch.cat(of_views))
        return given

    def extra_repr(self) -> str:
        return f"{self.config['network']!r}, {self.config['members']} members, {self.views} views"


def views_of(images: Tensor, count: int) -> list[Tensor]:
    """The first `count` (1, 2, 4 or 8) of: as it is, mirrored, upside down, both, and all of these transposed."""
    views = [images]
    if count >= 2:
        views += [view.flip(3) for view in views]
    if count >= 4:
        views += [view.flip(2) for view in views]
    if count >= _DIHEDRAL:
        views += [view.transpose(2, 3) for view in views]
    return views
