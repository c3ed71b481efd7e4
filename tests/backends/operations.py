"""Every operation on lifted maps, on awkward ones, by any backend and by the formula in float64.

No tests are here, so that a process of Triton's interpreter can import it without pytest.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightfast._backends.constraint import Constraint, Form
from lightfast._backends.operands import Features, Folded, Norm, Operands, Statistics
from lightfast._backends.reference import Reference
from lightfast._backends.tensors import layout_of
from lightfast._groups import Groups

REFERENCE = Reference()
_OF_PARAMETERS = ("db", "dγ", "dβ")

TOLERANCES = {
    # Sums over a map one number after another, as without vectors, lose as much as this.
    torch.float32: (1e-5, 1e-5),
    # One rounding of the result, and one of what is added to it, which is no larger than the largest.
    torch.bfloat16: (2**-7, 2**-7),
    torch.float16: (2**-10, 2**-10),
}
"""What a number may be off by, by the precision of maps: so much of itself, and of one more than the largest there."""

LAYOUTS = {"contiguous": torch.contiguous_format, "last": torch.channels_last}


class Case(NamedTuple):
    """A kind of maps and how an operation is called on it."""

    operation: str
    features: int
    groups: int
    size: tuple[int, int]
    images: int
    layout: str
    other: str
    """How a shortcut or a gradient lies."""
    dtype: torch.dtype
    slope: float
    shortcut: bool
    bias: bool
    mode: str
    """Of a norm: whose statistics. Of centering: with an offset, or without idle channels."""
    idle: bool

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        shape = "x".join(map(str, (self.images, self.features, *self.size)))
        flags = [name for name in ("shortcut", "bias", "idle") if getattr(self, name)]
        beside = f"{self.layout}+{self.other}"
        return "-".join([self.operation, self.mode, shape, f"{self.groups}g", beside, dtype, f"{self.slope}", *flags])


class WeightCase(NamedTuple):
    """A weight and what is to become of it."""

    kind: str
    layout: str
    to_layout: str
    dtype: torch.dtype
    to_dtype: torch.dtype
    wanted: bool
    idle: bool

    def __str__(self) -> str:
        dtypes = "-to-".join(str(dtype).removeprefix("torch.") for dtype in (self.dtype, self.to_dtype))
        flags = [name for name in ("wanted", "idle") if getattr(self, name)]
        return "-".join(["weight", self.kind, self.layout, "to", self.to_layout, dtypes, *flags])


# Features and groups: one and three a group; what fills vectors of 4, 8 and 16 and what does not; more than one tile.
_FEATURES = [
    (1, 1), (3, 3), (5, 5), (3, 1), (9, 3), (15, 5), (15, 3), (16, 1), (33, 3), (33, 1), (48, 3), (63, 3), (64, 1),
    (129, 3), (129, 1), (600, 3), (600, 5),
]  # fmt: skip
_SIZES = [(1, 1), (1, 5), (2, 2), (3, 2), (7, 9), (64, 8)]
_MAP_LAYOUTS = ["contiguous", "last", "strided", "turned"]
_MODES = {
    "norm_act": ["training", "batch", "evaluation"],
    "infer": ["norm", "folded"],
    "center": ["plain", "offset", "cut"],
    "halve": ["plain", "offset"],
    "join": ["plain"],
}


def cases(dtypes: Sequence[torch.dtype], idle: bool, most: int | None = None, small: bool = False) -> list[Case]:
    """Of each operation, so many that every two values of two options meet; or as many as `most` without that.

    Args:
        dtypes: precisions of maps.
        idle: whether there are maps with idle channels.
        most: cases of each operation.
        small: whether there are to be few programs on a GPU, which an interpreter runs one after another.
    """
    found = []
    for operation, modes in _MODES.items():
        sizes = [size for size in _SIZES if operation != "halve" or min(size) > 1]
        features, slopes, flags = _FEATURES, [0.0, 0.2, 1.0], [False, True]
        if operation == "join":
            features, slopes = [(3, 3)], [0.0]
        if operation == "halve":
            slopes = [0.0]
        shortcuts = flags if operation in ("norm_act", "infer") else [False]
        biases = [False] if operation == "join" else flags
        idles = flags if idle and operation != "join" else [False]
        options = [features, sizes, [1, 2, 5], _MAP_LAYOUTS, [*_MAP_LAYOUTS, "expanded"], list(dtypes), slopes]
        for row in _covering([*options, shortcuts, biases, modes, idles], most):
            (count, groups), size, images, *rest = row
            case = Case(operation, count, groups, size, images, *rest)
            if small and count > 9:
                case = case._replace(images=1 + (count * size[0] * size[1] < 2000), layout=_layout_for(case))
            found.append(case)
    return list(dict.fromkeys(found))


def _layout_for(case: Case) -> str:
    """Of a contiguous map with many features each would be a program."""
    return case.layout if case.features < 20 else "last"


def _covering(options: Sequence[Sequence[Any]], most: int | None) -> list[tuple[Any, ...]]:
    """Rows of one value of each option, in which every two values of two options meet, or `most` rows towards that."""
    chance = random.Random(0)
    missing = {
        ((i, a), (j, b))
        for i, j in itertools.combinations(range(len(options)), 2)
        for a in range(len(options[i]))
        for b in range(len(options[j]))
    }
    rows: list[tuple[int, ...]] = []
    while missing and (most is None or len(rows) < most):
        start = min(missing) if most is None else chance.choice(sorted(missing))
        best, gain = (), -1
        for _ in range(12):
            row = [chance.randrange(len(values)) for values in options]
            for place, value in start:
                row[place] = value
            new = sum(pair in missing for pair in itertools.combinations(enumerate(row), 2))
            if new > gain:
                best, gain = tuple(row), new
        rows.append(best)
        missing -= set(itertools.combinations(enumerate(best), 2))
    return [tuple(values[k] for values, k in zip(options, row, strict=True)) for row in rows]


def compare(case: Case | WeightCase, backend: Reference, device: str = "cpu") -> None:
    """What the backend computes is the formula in float64, in its form and in its precision."""
    torch.manual_seed(zlib.crc32(str(case).encode()))
    found, wanted = (_of_weight if isinstance(case, WeightCase) else _OPERATIONS[case.operation])(case, backend, device)
    assert found.keys() == wanted.keys()
    # Where a backend leaves maps in 16 bits to torch, some of what lies between is rounded, too.
    own, largest = max(TOLERANCES[dtype] for dtype in case if dtype in TOLERANCES)
    for name, one in found.items():
        other = wanted[name]
        assert one.shape == other.shape, f"{name} has the shape {tuple(one.shape)} and not {tuple(other.shape)}"
        one, other = one.detach().double().cpu(), other.detach().double().cpu()
        # Sums over a map may come to nothing, and still be of large numbers.
        terms = case.images * case.size[0] * case.size[1] if name in _OF_PARAMETERS else 0
        allowed = own * other.abs() + largest * (1 + other.abs().max() + terms / 8)
        off = (one - other).abs()
        assert off.isfinite().all(), f"{name} is not finite"
        worst = (off - allowed).max()
        assert worst <= 0, (
            f"{name}: {(off > allowed).double().mean():.1%} of the numbers are off by up to {off.max():.2g}"
        )


def compare_in_c(case: Case | WeightCase, backend: Reference) -> None:
    """As :func:`compare`, with one thread or with three: more than there are images, or fewer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 + 2 * (zlib.crc32(str(case).encode()) % 2))
    try:
        compare(case, backend)
    finally:
        torch.set_num_threads(threads)


def failures(cases: Sequence[Case | WeightCase], backend: Reference, device: str = "cpu") -> list[str]:
    """What :func:`compare` has against a backend, case by case."""
    found = []
    for case in cases:
        try:
            compare(case, backend, device) if backend.name != "C" else compare_in_c(case, backend)
        except Exception as error:
            found.append(f"{case}: {type(error).__name__}: {error}")
    return found


def native_cases() -> list[Case | WeightCase]:
    """Everything that the passes in C do."""
    wide, half = torch.float32, torch.bfloat16
    return [*cases([wide, half], False), *weight_cases([(wide, wide), (wide, half), (half, wide)], False)]


def triton_cases(most: int, small: bool) -> list[Case | WeightCase]:
    """What the kernels do, in part."""
    wide, half, short = torch.float32, torch.bfloat16, torch.float16
    conversions = [(wide, wide), (wide, half), (half, wide), (wide, short), (short, wide)]
    return [*cases([wide, half, short], True, most, small), *weight_cases(conversions, True, small)]


def operation_of(case: Case | WeightCase) -> str:
    return "fit_weight" if isinstance(case, WeightCase) else case.operation


def _laid(x: Tensor, layout: str) -> Tensor:
    """The same numbers in another place: in a row, in steps of two, with axes turned, or one number everywhere."""
    if layout in LAYOUTS:
        return x.contiguous(memory_format=LAYOUTS[layout])
    if layout == "strided":
        room = x.new_full((x.shape[0], 2 * x.shape[1], x.shape[2], x.shape[3] + 1), float("nan"))
        room[:, ::2, :, 1:] = x
        return room[:, ::2, :, 1:]
    if layout == "turned":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    return x[:1, :1, :1, :1].expand_as(x)


class _Maker:
    """Random tensors for a case; a twin of each in float64, which the formula is given."""

    def __init__(self, case: Case, backend: Reference, device: str) -> None:
        self.case, self.device = case, device
        self.channels = backend.channels(case.features, case.dtype) if case.idle else case.features
        if case.idle and self.channels == case.features:
            self.channels += 3

    def map(self, layout: str, halved: bool = False) -> Tensor:
        """With zeros in idle channels."""
        size = [side // 2 for side in self.case.size] if halved else self.case.size
        x = torch.randn(self.case.images, self.channels, *size)
        x[:, self.case.features :] = 0
        return _laid(x.to(self.device, self.case.dtype), layout)

    def row(self, *shape: int) -> Tensor:
        return torch.randn(*shape).to(self.device)


def _exact(x: Tensor | None, features: int | None = None) -> Tensor | None:
    return None if x is None else x.detach().double()[:, :features] if features else x.detach().double()


def _features_alone(case: Case, x: Tensor) -> Tensor:
    """A map without its idle channels, which have to be zero."""
    assert not x[:, case.features :].any(), "idle channels are not zero"
    return x[:, : case.features]


def _assert_like(case: Case, z: Tensor, u: Tensor) -> None:
    assert z.dtype == u.dtype and z.shape == u.shape
    if case.layout in LAYOUTS:
        assert z.is_contiguous(memory_format=LAYOUTS[case.layout])


Results = tuple[dict[str, Tensor], dict[str, Tensor]]


def _of_norm_act(case: Case, backend: Reference, device: str) -> Results:
    make, n = _Maker(case, backend, device), case.features
    # Far from zero, as maps of networks are: mean squares would cancel.
    u = make.map(case.layout)
    u[:, :n] += 5
    shortcut = make.map(case.other) if case.shortcut else None
    pre_bias, weight, bias = make.row(n) if case.bias else None, make.row(n), make.row(n)
    dz, d_offset = make.map(case.other), make.row(case.images, case.groups)
    running = [make.row(n), make.row(n).abs() + 0.5]
    known = [None, None] if case.mode == "batch" else running
    tracked = torch.zeros((), dtype=torch.int64, device=device)
    training = case.mode != "evaluation"
    exact_running = [_exact(x) for x in known]
    statistics = Statistics(training, *known, 0.1, 1e-2)

    operands = Operands(u, shortcut, pre_bias, weight, bias, statistics, case.groups, case.slope)
    with torch.no_grad():
        saved, offset = backend.norm_act_forward(operands, tracked)
        gradients = backend.norm_act_backward(dz, d_offset, saved, operands.options, statistics)
        without_offset = backend.norm_act_backward(dz, None, saved, operands.options, statistics)
        exact = Operands(
            _exact(u, n),
            _exact(shortcut, n),
            *map(_exact, (pre_bias, weight, bias)),
            Statistics(training, *exact_running, 0.1, 1e-2),
            case.groups,
            case.slope,
        )
        exact_saved, exact_offset = REFERENCE.norm_act_forward(exact)
        wanted = {"z": exact_saved.z, "offset": exact_offset}
        # The sign of a number next to zero may be another in low precision: the backend's own opens and shuts the gate.
        gate = exact_saved._replace(z=_exact(saved.z, n))
        exact_gradients = REFERENCE.norm_act_backward(
            _exact(dz, n), _exact(d_offset), gate, exact.options, exact.statistics
        )
    assert tracked == int(training)
    _assert_like(case, saved.z, u)
    assert gradients.u.shape == u.shape and gradients.u.dtype == u.dtype
    assert (gradients.shortcut is None) == (shortcut is None)
    assert without_offset.u.isfinite().all()
    names = ("du", "ds", "db", "dγ", "dβ")
    found = {name: x for name, x in zip(names, gradients, strict=True) if x is not None}
    wanted |= {name: x for name, x in zip(names, exact_gradients, strict=True) if x is not None}
    for name in {"du", "ds"} & set(found):
        found[name] = _features_alone(case, found[name])
    found |= {"z": _features_alone(case, saved.z), "offset": offset}
    if case.mode != "batch":
        found |= dict(zip(("mean", "var"), running, strict=True))
        wanted |= dict(zip(("mean", "var"), exact_running, strict=True))
    return found, wanted


def _of_infer(case: Case, backend: Reference, device: str) -> Results:
    make, n = _Maker(case, backend, device), case.features
    u, shortcut = make.map(case.layout), make.map(case.other) if case.shortcut else None
    pre_bias = make.row(n) if case.bias else None
    a, b, mean = make.row(3, n)
    var = make.row(n).abs() + 0.5
    if case.mode == "norm":
        norm = Norm(a, b, mean, var, 1e-2)
        exact: Any = Norm(*map(_exact, norm[:4]), 1e-2)
    else:
        norm = Folded(a, b, var, a * var)
        exact = Folded(*map(_exact, norm))
    what = Features(n, case.groups)
    with torch.no_grad():
        z, offset = backend.infer(u, shortcut, pre_bias, norm, what, case.slope)
    wanted = REFERENCE.infer(_exact(u, n), _exact(shortcut, n), _exact(pre_bias), exact, what, case.slope)
    _assert_like(case, z, u)
    found = {"z": _features_alone(case, z), "offset": offset}
    return found, dict(zip(("z", "offset"), wanted, strict=True))


def _of_center(case: Case, backend: Reference, device: str) -> Results:
    make, n, what = _Maker(case, backend, device), case.features, Features(case.features, case.groups)
    u, bias = make.map(case.layout), make.row(n) if case.bias else None
    offset = make.row(case.images, case.groups) if case.mode == "offset" else None
    dz, d_level = make.map(case.other)[:, : n if case.mode == "cut" else None], make.row(case.images, case.groups)
    last = layout_of(u) == torch.channels_last
    with torch.no_grad():
        z, level = backend.center(u, bias, offset, what, case.slope, case.mode == "cut")
        du, d_bias = backend.center_backward(dz, z, d_level, u.shape, last, bias, what, case.slope)
        alone, _ = backend.center_backward(dz, z, None, u.shape, last, bias, what, case.slope)
        exact_u, gate, exact_dz = (_exact(x, n) for x in (u, z, dz))
        exact_z, exact_level = REFERENCE.center(exact_u, _exact(bias), _exact(offset), what, case.slope, False)
        exact_du, exact_d_bias = REFERENCE.center_backward(
            exact_dz, gate, _exact(d_level), exact_u.shape, last, _exact(bias), what, case.slope
        )
    assert alone.isfinite().all() and du.shape == u.shape and du.dtype == z.dtype == u.dtype
    if case.mode == "cut":
        assert z.shape[1] == n
    else:
        _assert_like(case, z, u)
    found = {"z": _features_alone(case, z), "level": level, "du": _features_alone(case, du)}
    wanted = {"z": exact_z, "level": exact_level, "du": exact_du}
    if bias is not None:
        found["db"], wanted["db"] = d_bias, exact_d_bias
    return found, wanted


def _of_halve(case: Case, backend: Reference, device: str) -> Results:
    make, n, what = _Maker(case, backend, device), case.features, Features(case.features, case.groups)
    u, bias = make.map(case.layout), make.row(n) if case.bias else None
    offset = make.row(case.images, case.groups) if case.mode == "offset" else None
    dz, d_level = make.map(case.other, halved=True), make.row(case.images, case.groups)
    last = layout_of(u) == torch.channels_last
    with torch.no_grad():
        z, level, nothing = backend.halve(u, bias, offset, what, False)
        again, level_again, places = backend.halve(u, bias, offset, what, True)
        du, d_bias = backend.halve_backward(dz, places, d_level, u.shape, last, bias, what)
        alone, _ = backend.halve_backward(dz, places, None, u.shape, last, bias, what)
    assert nothing is None
    assert alone.isfinite().all() and du.shape == u.shape and du.dtype == z.dtype == u.dtype
    # Of equal pixels, of which 16 bits have many, the formula is given the one that the backend chose.
    exact_u = _exact(u, n).requires_grad_()
    v = exact_u if bias is None else exact_u + _exact(bias)[:, None, None]
    level_of_v = v.mean((2, 3)).unflatten(1, (case.groups, -1)).mean(2)
    centered = v - level_of_v.repeat_interleave(n // case.groups, 1)[..., None, None]
    height, width = (side // 2 * 2 for side in case.size)
    windows = centered[..., :height, :width].unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 1, 2, 4, 3, 5)
    windows = windows.flatten(4)
    where = places[:, :n]
    chosen = windows.gather(4, where.long().clamp(max=3)[..., None])[..., 0]
    wanted_z = torch.where(where < 4, chosen, 0)
    top = windows.amax(4).clamp(min=0)
    exact_level = level_of_v if offset is None else level_of_v + offset.double()
    loss = (wanted_z * _exact(dz, n)).sum() + (exact_level * d_level.double()).sum()
    wanted = {"z": top, "level": exact_level, "du": torch.autograd.grad(loss, exact_u)[0]}
    wanted |= {"z with places": top, "level with places": exact_level}
    # Rounding may choose a pixel that is not quite the largest, but none that is far from it.
    own, largest = TOLERANCES[case.dtype]
    near = (wanted_z - top).abs().max() <= 2 * (own + largest) * (1 + top.max() + v.abs().max())
    assert near, "the places are not those of maxima"
    found = {"z": _features_alone(case, z), "level": level, "du": _features_alone(case, du)}
    found |= {"z with places": _features_alone(case, again), "level with places": level_again}
    if bias is not None:
        found["db"], wanted["db"] = d_bias, wanted["du"].sum((0, 2, 3))
    return found, wanted


def _of_join(case: Case, backend: Reference, device: str) -> Results:
    images = _laid((3 * torch.randn(case.images, 3, *case.size) + 20).to(device), case.layout)
    with torch.no_grad():
        joined, offset = backend.join(images, case.dtype)
    wanted = REFERENCE.join(images.double(), torch.float64)
    assert joined.dtype == case.dtype and not joined[:, 6:].any()
    return {"joined": joined[:, :6], "offset": offset}, dict(zip(("joined", "offset"), wanted, strict=True))


_OPERATIONS = {
    "norm_act": _of_norm_act,
    "infer": _of_infer,
    "center": _of_center,
    "halve": _of_halve,
    "join": _of_join,
}

_EVEN = {"groups": 3}
_UP = {"groups": 3, "transposed": True}
# Of each: the shape of the weight, and its constraint: groups, or none.
WEIGHTS: dict[str, tuple[tuple[int, ...], dict[str, Any] | None]] = {
    "free": ((15, 6, 3, 3), None),
    "linear": ((6, 48), _EVEN),
    "1d": ((6, 9, 5), _EVEN),
    "3x3": ((6, 9, 3, 3), _EVEN),
    "1x1": ((3, 33, 1, 1), _EVEN),
    "3d": ((3, 6, 2, 3, 1), _EVEN),
    "one feature a group": ((5, 5, 3, 3), {"groups": 5}),
    "one group": ((7, 16, 3, 3), {"groups": 1}),
    "wide": ((99, 51, 4, 4), _EVEN),
    "long": ((3, 1800, 2, 2), _EVEN),
    "every tap": ((6, 9, 3, 3), _EVEN | {"taps": "tap"}),
    "grouped": ((6, 2, 3, 3), _EVEN | {"conv_groups": 3, "inputs": 6}),
    "many taps": ((3, 3, 1, 200), _EVEN),
    "uneven": ((6, 6, 3, 3), {"groups": [0, 0, 0, 1, 1, 2]}),
    "interleaved": ((6, 6, 3, 3), {"groups": [0, 1, 2, 0, 1, 2]}),
    "up": ((9, 6, 4, 4), _UP | {"stride": (2, 2)}),
    "up by 1": ((9, 3, 4, 4), _UP | {"stride": (1, 1)}),
    "up, a phase a tap": ((9, 6, 4, 4), _UP | {"stride": (4, 4)}),
    "up, unequal phases": ((9, 300, 3, 3), _UP | {"stride": (2, 2)}),
    "up, dilated": ((9, 6, 3, 3), _UP | {"stride": (2, 2), "dilation": (3, 3)}),
    "up, every tap": ((9, 6, 3, 3), _UP | {"taps": "tap"}),
    "up, in parts": ((600, 213, 4, 4), _UP | {"stride": (2, 2)}),
    "up, a phase a tap in parts": ((600, 213, 4, 4), _UP | {"stride": (4, 4)}),
    "up, 1d": ((6, 9, 4), _UP | {"stride": 2}),
}
_LARGE = {name for name, (shape, _) in WEIGHTS.items() if torch.Size(shape).numel() > 50000}


def weight_cases(
    dtypes: Sequence[tuple[torch.dtype, torch.dtype]], idle: bool, small: bool = False
) -> list[WeightCase]:
    """All kinds of weights in all memory formats, with these precisions from and to in turn; or small ones in some."""
    found, turns = [], itertools.cycle(itertools.product(dtypes, [True, False], [True, False] if idle else [False]))
    for kind in WEIGHTS:
        if kind in _LARGE and small:
            continue
        is_map = len(WEIGHTS[kind][0]) == 4
        ways = [("contiguous", "contiguous"), ("last", "last"), ("turned", "contiguous")]
        ways += [("contiguous", "last"), ("last", "contiguous")] if idle else []
        ways = [ways[len(found) % 5], ways[(len(found) + 2) % 5]] if small else ways
        for layout, to_layout in ways if is_map else [("contiguous", "contiguous")]:
            (dtype, to_dtype), wanted, with_idle = next(turns)
            found.append(WeightCase(kind, layout, to_layout, dtype, to_dtype, wanted, with_idle))
        next(turns)
    return found


def constraint_of(kind: str) -> Constraint | None:
    shape, options = WEIGHTS[kind]
    if options is None:
        return None
    options = dict(options)
    inputs, groups = options.pop("inputs", shape[1]), options.pop("groups")
    first, second = (
        Groups.even(size, groups) if isinstance(groups, int) else Groups(groups) for size in (shape[0], inputs)
    )
    return Constraint(*((first, second) if options.get("transposed") else (second, first)), **options)


def _of_weight(case: WeightCase, backend: Reference, device: str) -> Results:
    shape, constraint = WEIGHTS[case.kind][0], constraint_of(case.kind)
    weight = torch.randn(shape).to(device, case.dtype)
    weight = _laid(weight, case.layout) if weight.dim() == 4 else weight
    wide = (shape[0] + 3, shape[1] + 2, *shape[2:]) if case.idle else shape
    form = Form(wide, case.to_dtype, LAYOUTS[case.to_layout])
    with torch.no_grad():
        found = backend.fit_weight(weight, constraint, form, case.wanted)
        wanted = REFERENCE.fit_weight(weight.double(), constraint, form._replace(dtype=torch.float64), case.wanted)
        # The way back, as of a gradient, leaves out what is idle.
        back = Form(shape, case.dtype, layout_of(weight))
        grad = torch.randn(wide).to(device, case.to_dtype).contiguous(memory_format=form.layout)
        narrow = backend.fit_weight(grad, constraint, back, False)
        wanted_back = REFERENCE.fit_weight(grad.double(), constraint, back._replace(dtype=torch.float64), False)
    for one, form_of_it in ((found, form), (narrow, back)):
        assert one.dtype == form_of_it.dtype and one.is_contiguous(memory_format=form_of_it.layout)
    return {"fitted": found, "back": narrow}, {"fitted": wanted, "back": wanted_back}
