"""A backend is believed only after it has shown itself right: its passes are compared with the reference.

Compilers make mistakes, and so do we. So whatever a backend computes is computed once more in plain torch, on small
random maps of awkward sizes, forward and backward, before it is first used; what differs is not used.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lightfast._backends.constraint import Constraint, Form
from lightfast._backends.operands import Features, Folded, Gradients, Norm, Operands, Statistics
from lightfast._backends.reference import Reference
from lightfast._backends.tensors import fit_channels
from lightfast._groups import Groups

_TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-9}
_LAYOUTS = (torch.contiguous_format, torch.channels_last)
_GROUPS = 3


class Kind(NamedTuple):
    """A kind of maps, and with which slopes, and with a shortcut or without, `norm_act` is compared on it."""

    features: int
    size: tuple[int, int]
    layout: torch.memory_format
    dtype: torch.dtype
    variants: tuple[tuple[float, bool], ...] = ((0.0, True), (0.2, False))

    def __str__(self) -> str:
        layout, dtype = (str(x).removeprefix("torch.") for x in (self.layout, self.dtype))
        return f"{self.features} features, {layout}, {dtype}"


EVERY_KIND = tuple(
    Kind(features, size, layout, dtype)
    for features, size in ((15, (5, 7)), (48, (4, 6)), (69, (3, 2)))
    for layout in _LAYOUTS
    for dtype in (torch.float32, torch.bfloat16)
)
"""Both memory formats and precisions, features that fill vectors and that do not."""

FEW_KINDS = (
    Kind(15, (5, 7), torch.channels_last, torch.bfloat16, ((0.0, True),)),
    Kind(48, (4, 6), torch.contiguous_format, torch.float32, ((0.2, False),)),
)
"""For backends that take long to compile for each kind."""

Widen = Callable[[Tensor], Tensor]


class Check(NamedTuple):
    """Something that a backend computes.

    Args:
        operation: which of its passes it is for.
        case: on what.
        compute: does it by any backend, on its maps after they went through a function: the reference has them in
            float32, where a backend may have rounded them, so that it is right itself.
        dtype: the precision to which all backends must agree.
    """

    operation: str
    case: str
    compute: Callable[[Reference, Widen], Any]
    dtype: torch.dtype


def verdict_on_passes(library: ctypes.CDLL) -> Mapping[str, str]:
    """Which passes of a library in C differ from the reference, by name, and how."""
    from lightfast._backends.native.backend import Native, Passes

    refused = verdict(Native(Passes(library, {})), torch.device("cpu"), EVERY_KIND)
    for whole, why in [(name, refused[name]) for name in ("norm_act", "norm_act_backward") if name in refused]:
        # Of what is wrong together, none is to be trusted.
        for part in ("moments", "apply") if whole == "norm_act" else ("backward_moments", "backward_apply"):
            refused.setdefault(part, why)
    return refused


def verdict(
    backend: Reference, device: torch.device, kinds: Sequence[Kind], operations: Collection[str] = ()
) -> dict[str, str]:
    """Which operations of a backend differ from the reference, and how; of all of them, or of these.

    The random numbers of the caller are left as they are.
    """
    reference, refused = Reference(), {}
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.autocast(device.type, enabled=False):
        torch.manual_seed(0)
        for check in checks(device, backend, kinds):
            if check.operation in refused or (operations and check.operation not in operations):
                continue
            why = _difference(check, backend, reference)
            if why is not None:
                refused[check.operation] = f"{check.case}: {why}"
    return refused


def checks(device: torch.device, backend: Reference, kinds: Sequence[Kind]) -> Iterator[Check]:
    """Every operation on small maps of these kinds, with as many idle channels as they get from the backend."""
    for kind in kinds:
        channels = backend.channels(kind.features, kind.dtype)
        yield from _of_maps(_Maps(kind, channels, device))
    yield from _of_weights(device)


class _Maps(NamedTuple):
    """Random maps and coefficients of one kind."""

    kind: Kind
    channels: int
    device: torch.device

    def map(self, halved: bool = False) -> Tensor:
        size = [side // 2 for side in self.kind.size] if halved else self.kind.size
        x = torch.randn(3, self.kind.features, *size, device="cpu", dtype=torch.float32)
        x = fit_channels(x.to(self.device, self.kind.dtype), self.channels)
        return x.contiguous(memory_format=self.kind.layout)

    def image(self) -> Tensor:
        x = torch.randn(3, 3, *self.kind.size, device="cpu", dtype=torch.float32)
        return x.to(self.device).contiguous(memory_format=self.kind.layout)

    def rows(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device="cpu", dtype=torch.float32).to(self.device)


def _of_maps(maps: _Maps) -> Iterator[Check]:
    kind, case = maps.kind, str(maps.kind)
    dtype, last = kind.dtype, kind.layout == torch.channels_last
    what = Features(kind.features, _GROUPS)
    u, s, dz, z = maps.map(), maps.map(), maps.map(), maps.map()
    mean, shift, constant, centering = maps.rows(4, 3, kind.features)
    scale, slant, bias, spread = maps.rows(4, kind.features)
    d_level = maps.rows(3, _GROUPS)
    norm = Norm(scale, bias, slant, spread.square() + 0.5, 1e-5)
    folded = Folded(scale, bias, 1 / (scale.abs() + 0.5), scale)

    def of_variant(slope: float, has_shortcut: bool) -> Iterator[Check]:
        def added(widen: Widen) -> Tensor | None:
            return widen(s) if has_shortcut else None

        def check(operation: str, compute: Callable[[Reference, Widen], Any], to: torch.dtype = dtype) -> Check:
            return Check(operation, case, compute, to)

        if maps.channels == kind.features:
            # The passes that `norm_act` is made of, where they are functions of their own.
            coefficients = (scale, slant, constant, centering)
            yield check("moments", lambda by, w: by.moments(w(u), added(w)), torch.float32)
            yield check("apply", lambda by, w: by.apply(w(u), added(w), scale, shift, slope))
            yield check(
                "backward_moments", lambda by, w: by.backward_moments(w(dz), w(z), w(u), mean, slope), torch.float32
            )
            yield check(
                "backward_apply", lambda by, w: by.backward_apply(w(dz), w(z), w(u), coefficients, slope, has_shortcut)
            )
        yield check("norm_act", lambda by, w: _normalized(by, w(u), added(w), norm, slope))
        yield check(
            "norm_act_backward", lambda by, w: _normalized_back(by, w(dz), d_level, w(u), added(w), norm, slope)
        )
        yield check("infer", lambda by, w: by.infer(w(u), added(w), slant, norm, what, slope))
        yield check("infer", lambda by, w: by.infer(w(u), added(w), None, folded, what, slope))
        yield check("center", lambda by, w: by.center(w(u), None, None, what, slope, False))
        yield check(
            "center_backward",
            lambda by, w: by.center_backward(w(dz), w(z), d_level, u.shape, last, None, what, slope),
        )

    for variant in kind.variants:
        yield from of_variant(*variant)
    small, images = maps.map(halved=True), maps.image()
    places = torch.randint(0, 5, small.shape, device="cpu").to(maps.device, torch.uint8)
    places = places.contiguous(memory_format=kind.layout)
    yield Check("halve", case, lambda by, w: _halved(by, w(u), what), dtype)
    yield Check(
        "halve_backward",
        case,
        lambda by, w: by.halve_backward(w(small), places, d_level, u.shape, last, None, what),
        dtype,
    )
    yield Check("join", case, lambda by, w: _joined(by, images, w(u).dtype), dtype)


def _normalized(
    backend: Reference, u: Tensor, s: Tensor | None, norm: Norm, slope: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """With the batch's statistics: `z` and the offset, and running ones that are moved towards the batch's."""
    mean, var = norm.mean.clone(), norm.var.clone()
    operands = Operands(
        u, s, norm.bias, norm.weight, norm.bias, Statistics(True, mean, var, 0.3, norm.eps), _GROUPS, slope
    )
    saved, offset = backend.norm_act_forward(operands, None)
    return saved.z, offset, mean, var


def _normalized_back(
    backend: Reference, dz: Tensor, d_offset: Tensor, u: Tensor, s: Tensor | None, norm: Norm, slope: float
) -> Gradients:
    """The gradients of `norm_act`, with the batch's statistics; with the running ones where there is a shortcut."""
    statistics = Statistics(s is None, norm.mean.clone(), norm.var.clone(), 0.3, norm.eps)
    operands = Operands(u, s, norm.bias, norm.weight, norm.bias, statistics, _GROUPS, slope)
    saved, _ = backend.norm_act_forward(operands, None)
    return backend.norm_act_backward(dz, d_offset, saved, operands.options, statistics)


def _halved(backend: Reference, u: Tensor, what: Features) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """With and without places; of these, what is there, since of equal pixels any may be chosen."""
    z, level, _ = backend.halve(u, None, None, what, with_places=False)
    again, _, places = backend.halve(u, None, None, what, with_places=True)
    assert places is not None
    windows = F.pixel_unshuffle(u[..., : z.shape[2] * 2, : z.shape[3] * 2], 2).unflatten(1, (-1, 4))
    there = windows.gather(2, places[:, :, None].long().clamp(max=3))[:, :, 0]
    return z, level, again, torch.where(places < 4, there, 0)[:, : what.count]


def _joined(backend: Reference, images: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The input of Cerberus without idle channels."""
    joined, offset = backend.join(images, dtype)
    return joined[:, :6], offset


def _of_weights(device: torch.device) -> Iterator[Check]:
    kinds: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
        ("project_rows", (15, 33, 3, 3), {}),
        ("project_rows", (6, 48), {}),
        ("project_columns", (15, 6, 4, 4), {"transposed": True, "stride": 2}),
        ("project_columns", (33, 15, 4, 4), {"transposed": True, "stride": 4}),
    ]
    for (operation, shape, options), layout in itertools.product(kinds, _LAYOUTS):
        first, second = (Groups.even(features, _GROUPS) for features in shape[:2])
        groups = (first, second) if options else (second, first)
        constraint = Constraint(*groups, **options)
        weight = torch.randn(*shape, device="cpu", dtype=torch.float32).to(device)
        if len(shape) == 4:
            weight = weight.contiguous(memory_format=layout)
        for dtype, wanted in ((torch.float32, True), (torch.bfloat16, True), (torch.float32, False)):
            case = f"a weight {shape} in {str(dtype).removeprefix('torch.')}"
            form = Form.of(weight, dtype)

            fit = partial(_fitted, weight=weight, constraint=constraint, form=form, wanted=wanted)
            yield Check(operation, case, fit, dtype)


def _fitted(by: Reference, _: Widen, weight: Tensor, constraint: Constraint, form: Form, wanted: bool) -> Tensor:
    return by.fit_weight(weight, constraint, form, wanted)


def _difference(check: Check, backend: Reference, reference: Reference) -> str | None:
    """How what a backend computes differs from the reference in float32, or None if it does not."""
    computed = _flat(check.compute(backend, lambda x: x))
    wanted = _flat(check.compute(reference, Tensor.float))
    for one, other in zip(computed, wanted, strict=True):
        if one.shape != other.shape:
            return f"expected a tensor of shape {tuple(other.shape)}, but it gave {tuple(one.shape)}"
        error = (one.double() - other.double()).abs()
        # Numbers are of the order of 1, and sums of a few dozen of them: what is wrong is wrong by far more than this.
        off = error > _TOLERANCES[check.dtype] * (4 + other.double().abs())
        off |= ~error.isfinite()
        if off.any():
            worst = error.nan_to_num(torch.inf).max()
            return f"{100 * off.double().mean():.0f} % of the numbers are wrong, by up to {worst:.2g}"
    return None


def _flat(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else [x for x in results if x is not None]
