"""The Triton kernels behind `center_act` and `center_relu_halve`: sums over positions, and what follows from them.

Maps lie in a row, channels-last (LAST) or contiguous. CHANNELS is how many a map has, and after the features come idle
ones, which are written as zeros and enter no mean. The compiler knows both: that 40 channels are a multiple of 8, and
so can be loaded 8 at a time, it does not see otherwise.

An image is shared out among SPLITS programs, each with a row of sums; whoever needs the whole sum adds these rows up.
Where one program takes all of an image (WHOLE), the sums need not leave it.
"""

import triton
import triton.language as tl

NOWHERE: tl.constexpr = tl.constexpr(4)  # The place of a maximum whose ReLU is off.


@triton.jit
def within(p, c, positions, CHANNELS: tl.constexpr, LAST: tl.constexpr):
    """Where an image's positions [P] and channels [C] lie: [P, C], as 32-bit numbers, which take few registers."""
    return p[:, None] * CHANNELS + c[None, :] if LAST else p[:, None] + c[None, :] * positions


@triton.jit
def whole_sum(sums_ptr, image, images, CHANNELS: tl.constexpr, SPLITS: tl.constexpr, BLOCK_C: tl.constexpr):
    """The sums [BLOCK_C] over all of an image's positions."""
    c = tl.arange(0, BLOCK_C)
    at = (tl.arange(0, SPLITS)[:, None] * images + image) * CHANNELS + c[None, :]
    return tl.sum(tl.load(sums_ptr + at, mask=(c < CHANNELS)[None, :], other=0.0), 0)


@triton.jit
def group_means(total, positions, FEATURES: tl.constexpr, GROUPS: tl.constexpr, BLOCK_C: tl.constexpr,
                BLOCK_G: tl.constexpr):
    """From sums over positions [BLOCK_C] to means over groups [BLOCK_G]."""
    c = tl.arange(0, BLOCK_C)
    belongs = (c[None, :] // (FEATURES // GROUPS) == tl.arange(0, BLOCK_G)[:, None]) & (c < FEATURES)[None, :]
    return tl.sum(tl.where(belongs, total[None, :], 0.0), 1) / (FEATURES // GROUPS * positions)


@triton.jit
def spread(values, FEATURES: tl.constexpr, GROUPS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_G: tl.constexpr):
    """Each channel's value of its group: [BLOCK_G] to [BLOCK_C]."""
    c = tl.arange(0, BLOCK_C)
    belongs = (c[None, :] // (FEATURES // GROUPS) == tl.arange(0, BLOCK_G)[:, None]) & (c < FEATURES)[None, :]
    return tl.sum(tl.where(belongs, values[:, None], 0.0), 0)


@triton.jit
def centering(
    total, bias_ptr, offset_ptr, level_ptr, image, part, positions,
    FEATURES: tl.constexpr, GROUPS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OFFSET: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_G: tl.constexpr,
):
    """From the sums of `u` to `b - G φ(u + b)` [BLOCK_C]; the first part of an image writes the level."""
    c = tl.arange(0, BLOCK_C)
    bias = tl.zeros([BLOCK_C], tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + c, mask=c < FEATURES, other=0.0).to(tl.float32)
    level = group_means(total + bias * positions, positions, FEATURES, GROUPS, BLOCK_C, BLOCK_G)
    if part == 0:
        g = tl.arange(0, BLOCK_G)
        at = image * GROUPS + g
        written = level
        if HAS_OFFSET:
            written += tl.load(offset_ptr + at, mask=g < GROUPS, other=0.0)
        tl.store(level_ptr + at, written, mask=g < GROUPS)
    return bias - spread(level, FEATURES, GROUPS, BLOCK_C, BLOCK_G)


@triton.jit
def sums_kernel(
    x_ptr, gate_ptr, sums_ptr,
    images, positions, slope,
    CHANNELS: tl.constexpr, LAST: tl.constexpr, GATE: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):
    """The sums over positions, [SPLITS, N, CHANNELS], of a map, or of a gradient through what comes before the gate.

    The gate is the `output` of an activation, or the `places` of maxima.
    """
    image = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    c = tl.arange(0, BLOCK_C)
    x_ptr += image * (CHANNELS * positions)
    gate_ptr += image * (CHANNELS * positions)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for start in range(split * BLOCK_P, positions, SPLITS * BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        inside = (p < positions)[:, None] & (c < CHANNELS)[None, :]
        at = within(p, c, positions, CHANNELS, LAST)
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if GATE == "output":
            x = tl.where(tl.load(gate_ptr + at, mask=inside, other=0.0).to(tl.float32) > 0, x, x * slope)
        if GATE == "places":
            x = tl.where(tl.load(gate_ptr + at, mask=inside, other=0) < NOWHERE, x, 0.0)
        total += x
    tl.store(sums_ptr + (split * images + image) * CHANNELS + c, tl.sum(total, 0), mask=c < CHANNELS)


@triton.jit
def center_kernel(
    u_ptr, sums_ptr, bias_ptr, offset_ptr, z_ptr, level_ptr,
    images, positions, slope,
    CHANNELS: tl.constexpr, LAST: tl.constexpr, Z_CHANNELS: tl.constexpr, Z_LAST: tl.constexpr,
    FEATURES: tl.constexpr, GROUPS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OFFSET: tl.constexpr,
    WHOLE: tl.constexpr, SPLITS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_G: tl.constexpr,
):
    """`z = act(u + b - G φ(u + b))`."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = (p < positions)[:, None] & (c < CHANNELS)[None, :]
    at = within(p, c, positions, CHANNELS, LAST)
    u = tl.load(u_ptr + image * (CHANNELS * positions) + at, mask=inside, other=0.0).to(tl.float32)
    shift = centering(
        tl.sum(u, 0) if WHOLE else whole_sum(sums_ptr, image, images, CHANNELS, SPLITS, BLOCK_C),
        bias_ptr, offset_ptr, level_ptr, image, tl.program_id(1), positions,
        FEATURES, GROUPS, HAS_BIAS, HAS_OFFSET, BLOCK_C, BLOCK_G,
    )
    q = u + shift[None, :]
    z = tl.where((c < FEATURES)[None, :], tl.where(q > 0, q, q * slope), 0.0)
    at = within(p, c, positions, Z_CHANNELS, Z_LAST)
    written = (p < positions)[:, None] & (c < Z_CHANNELS)[None, :]
    tl.store(z_ptr + image * (Z_CHANNELS * positions) + at, z.to(z_ptr.dtype.element_ty), mask=written)


@triton.jit
def gradient_constant(
    sums_ptr, d_level_ptr, image, images, positions,
    CHANNELS: tl.constexpr, FEATURES: tl.constexpr, GROUPS: tl.constexpr, HAS_LEVEL: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_G: tl.constexpr,
):
    """What centering and level add to the gradient `dq` of an image, [BLOCK_C]: `d_level / size - φ(dq)`."""
    total = whole_sum(sums_ptr, image, images, CHANNELS, SPLITS, BLOCK_C)
    added = -group_means(total, positions, FEATURES, GROUPS, BLOCK_C, BLOCK_G)
    if HAS_LEVEL:
        g = tl.arange(0, BLOCK_G)
        d_level = tl.load(d_level_ptr + image * GROUPS + g, mask=g < GROUPS, other=0.0)
        added += d_level / (FEATURES // GROUPS * positions)
    return spread(added, FEATURES, GROUPS, BLOCK_C, BLOCK_G)


@triton.jit
def bias_gradient(
    sums_ptr, d_level_ptr, d_bias_ptr, group, images,
    CHANNELS: tl.constexpr, FEATURES: tl.constexpr, GROUPS: tl.constexpr, HAS_LEVEL: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """The gradient of a group's biases: with `s` the sums of `dq` over all images, `s - φ(s) + Σ d_level / size`."""
    size: tl.constexpr = FEATURES // GROUPS
    i = tl.arange(0, BLOCK_S)
    total = tl.zeros([BLOCK_N, BLOCK_S], tl.float32)
    d_level = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, SPLITS * images, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        inside = (n < SPLITS * images)[:, None] & (i < size)[None, :]
        total += tl.load(sums_ptr + n[:, None] * CHANNELS + (group * size + i)[None, :], mask=inside, other=0.0)
        if HAS_LEVEL:
            d_level += tl.load(d_level_ptr + n * GROUPS + group, mask=n < images, other=0.0)
    sums = tl.sum(total, 0)
    d_bias = sums + (tl.sum(d_level, 0) - tl.sum(sums, 0)) / size
    tl.store(d_bias_ptr + group * size + i, d_bias.to(d_bias_ptr.dtype.element_ty), mask=i < size)


@triton.jit
def backward_center_kernel(
    dz_ptr, z_ptr, sums_ptr, d_level_ptr, du_ptr, d_bias_ptr,
    images, positions, slope,
    CHANNELS: tl.constexpr, LAST: tl.constexpr, Z_CHANNELS: tl.constexpr, Z_LAST: tl.constexpr,
    FEATURES: tl.constexpr, GROUPS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LEVEL: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """`du = dq + constant`, with `dq = dz act'`; the first programs find the gradient of the bias, one a group."""
    biases: tl.constexpr = GROUPS if HAS_BIAS else 0
    job = tl.program_id(0)
    if job < biases:
        if tl.program_id(1) == 0:
            bias_gradient(
                sums_ptr, d_level_ptr, d_bias_ptr, job, images, Z_CHANNELS, FEATURES, GROUPS, HAS_LEVEL,
                SPLITS, BLOCK_N, BLOCK_S,
            )
    else:
        image = (job - biases).to(tl.int64)
        c = tl.arange(0, BLOCK_C)
        p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
        inside = (p < positions)[:, None] & (c < Z_CHANNELS)[None, :]
        at = image * (Z_CHANNELS * positions) + within(p, c, positions, Z_CHANNELS, Z_LAST)
        dz = tl.load(dz_ptr + at, mask=inside, other=0.0).to(tl.float32)
        z = tl.load(z_ptr + at, mask=inside, other=0.0).to(tl.float32)
        constant = gradient_constant(
            sums_ptr, d_level_ptr, image, images, positions, Z_CHANNELS, FEATURES, GROUPS, HAS_LEVEL,
            SPLITS, BLOCK_C, BLOCK_G,
        )
        du = tl.where((c < FEATURES)[None, :], tl.where(z > 0, dz, dz * slope) + constant[None, :], 0.0)
        at = image * (CHANNELS * positions) + within(p, c, positions, CHANNELS, LAST)
        written = (p < positions)[:, None] & (c < CHANNELS)[None, :]
        tl.store(du_ptr + at, du.to(du_ptr.dtype.element_ty), mask=written)


@triton.jit
def first_pixel(p, width):
    """The upper left of the four pixels of which a position `p` of the halved map has the maximum."""
    return p // (width // 2) * 2 * width + p % (width // 2) * 2


@triton.jit
def left_over(r, height, width):
    """The `r`-th pixel of which no maximum is taken: those of an odd last column, then those of an odd last row."""
    of_column = width % 2 * height
    return tl.where(r < of_column, r * width + width - 1, (height - 1) * width + r - of_column)


@triton.jit
def maxima(u_ptr, p, outputs, height, width, CHANNELS: tl.constexpr, LAST: tl.constexpr, BLOCK_C: tl.constexpr):
    """Of the four pixels of each position [P]: the greatest, its place in row-major order, and the sum; all [P, C]."""
    c = tl.arange(0, BLOCK_C)
    inside = (p < outputs)[:, None] & (c < CHANNELS)[None, :]
    at = within(first_pixel(p, width), c, height * width, CHANNELS, LAST)
    right: tl.constexpr = CHANNELS if LAST else 1
    best = tl.load(u_ptr + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(u_ptr + at + right, mask=inside, other=0.0).to(tl.float32)
    third = tl.load(u_ptr + at + right * width, mask=inside, other=0.0).to(tl.float32)
    fourth = tl.load(u_ptr + at + right * width + right, mask=inside, other=0.0).to(tl.float32)
    total = best + second + third + fourth
    place = tl.where(second > best, 1, 0)
    best = tl.where(second > best, second, best)
    place = tl.where(third > best, 2, place)
    best = tl.where(third > best, third, best)
    place = tl.where(fourth > best, 3, place)
    best = tl.where(fourth > best, fourth, best)
    return best, place, total


@triton.jit
def store_rectified(
    best, place, shift, z_ptr, places_ptr, at, inside, FEATURES: tl.constexpr, HAS_PLACES: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """`relu(best + shift)`, and the places of maxima that it lets through."""
    q = tl.where((tl.arange(0, BLOCK_C) < FEATURES)[None, :], best + shift[None, :], 0.0)
    tl.store(z_ptr + at, tl.where(q < 0, 0.0, q).to(z_ptr.dtype.element_ty), mask=inside)
    if HAS_PLACES:
        tl.store(places_ptr + at, tl.where(q > 0, place, NOWHERE).to(tl.uint8), mask=inside)


@triton.jit
def halve_kernel(
    u_ptr, bias_ptr, offset_ptr, z_ptr, places_ptr, sums_ptr, level_ptr,
    images, height, width,
    CHANNELS: tl.constexpr, LAST: tl.constexpr, FEATURES: tl.constexpr, GROUPS: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_OFFSET: tl.constexpr, HAS_PLACES: tl.constexpr, ODD: tl.constexpr, WHOLE: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_G: tl.constexpr,
):
    """The maxima of 2x2 pixels, their places, and the sums of all pixels; where WHOLE, all of `center_relu_halve`."""
    image = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    outputs = (height // 2) * (width // 2)
    positions = height * width
    c = tl.arange(0, BLOCK_C)
    u_ptr += image * (CHANNELS * positions)
    z_ptr += image * (CHANNELS * outputs)
    places_ptr += image * (CHANNELS * outputs)
    if WHOLE:
        best, place, total = maxima(u_ptr, tl.arange(0, BLOCK_P), outputs, height, width, CHANNELS, LAST, BLOCK_C)
    else:
        total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
        for start in range(split * BLOCK_P, outputs, SPLITS * BLOCK_P):
            p = start + tl.arange(0, BLOCK_P)
            best, place, sum_of_four = maxima(u_ptr, p, outputs, height, width, CHANNELS, LAST, BLOCK_C)
            total += sum_of_four
            inside = (p < outputs)[:, None] & (c < CHANNELS)[None, :]
            at = within(p, c, outputs, CHANNELS, LAST)
            tl.store(z_ptr + at, best.to(z_ptr.dtype.element_ty), mask=inside)
            if HAS_PLACES:
                tl.store(places_ptr + at, place.to(tl.uint8), mask=inside)
    if ODD:
        count = positions - 4 * outputs
        for start in range(split * BLOCK_P, count, SPLITS * BLOCK_P):
            r = start + tl.arange(0, BLOCK_P)
            inside = (r < count)[:, None] & (c < CHANNELS)[None, :]
            at = within(left_over(r, height, width), c, positions, CHANNELS, LAST)
            total += tl.load(u_ptr + at, mask=inside, other=0.0).to(tl.float32)
    sums = tl.sum(total, 0)
    if WHOLE:
        shift = centering(
            sums, bias_ptr, offset_ptr, level_ptr, image, split, positions,
            FEATURES, GROUPS, HAS_BIAS, HAS_OFFSET, BLOCK_C, BLOCK_G,
        )
        p = tl.arange(0, BLOCK_P)
        inside = (p < outputs)[:, None] & (c < CHANNELS)[None, :]
        at = within(p, c, outputs, CHANNELS, LAST)
        store_rectified(best, place, shift, z_ptr, places_ptr, at, inside, FEATURES, HAS_PLACES, BLOCK_C)
    else:
        tl.store(sums_ptr + (split * images + image) * CHANNELS + c, sums, mask=c < CHANNELS)


@triton.jit
def rectify_kernel(
    z_ptr, places_ptr, sums_ptr, bias_ptr, offset_ptr, level_ptr,
    images, outputs, positions,
    CHANNELS: tl.constexpr, LAST: tl.constexpr, FEATURES: tl.constexpr, GROUPS: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_OFFSET: tl.constexpr, HAS_PLACES: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_G: tl.constexpr,
):
    """From maxima to `relu(max + b - G φ(u + b))`, in place, by the sums of all pixels."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = (p < outputs)[:, None] & (c < CHANNELS)[None, :]
    at = image * (CHANNELS * outputs) + within(p, c, outputs, CHANNELS, LAST)
    best = tl.load(z_ptr + at, mask=inside, other=0.0).to(tl.float32)
    place = best
    if HAS_PLACES:
        place = tl.load(places_ptr + at, mask=inside, other=0)
    shift = centering(
        whole_sum(sums_ptr, image, images, CHANNELS, SPLITS, BLOCK_C),
        bias_ptr, offset_ptr, level_ptr, image, tl.program_id(1), positions,
        FEATURES, GROUPS, HAS_BIAS, HAS_OFFSET, BLOCK_C, BLOCK_G,
    )
    store_rectified(best, place, shift, z_ptr, places_ptr, at, inside, FEATURES, HAS_PLACES, BLOCK_C)


@triton.jit
def backward_halve_kernel(
    dz_ptr, places_ptr, sums_ptr, d_level_ptr, du_ptr, d_bias_ptr,
    images, height, width,
    CHANNELS: tl.constexpr, LAST: tl.constexpr, FEATURES: tl.constexpr, GROUPS: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_LEVEL: tl.constexpr, ODD: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """`du = constant`, and `dz` more at the places of maxima; the first programs are as in `backward_center_kernel`."""
    biases: tl.constexpr = GROUPS if HAS_BIAS else 0
    job = tl.program_id(0)
    if job < biases:
        if tl.program_id(1) == 0:
            bias_gradient(
                sums_ptr, d_level_ptr, d_bias_ptr, job, images, CHANNELS, FEATURES, GROUPS, HAS_LEVEL,
                SPLITS, BLOCK_N, BLOCK_S,
            )
    else:
        image = (job - biases).to(tl.int64)
        outputs = (height // 2) * (width // 2)
        positions = height * width
        c = tl.arange(0, BLOCK_C)
        p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
        inside = (p < outputs)[:, None] & (c < CHANNELS)[None, :]
        at = image * (CHANNELS * outputs) + within(p, c, outputs, CHANNELS, LAST)
        # Of idle channels the constant is zero, and so must be what is added to it.
        real = inside & (c < FEATURES)[None, :]
        place = tl.load(places_ptr + at, mask=inside, other=0).to(tl.int32)
        dz = tl.where(real, tl.load(dz_ptr + at, mask=inside, other=0.0).to(tl.float32), 0.0)
        constant = gradient_constant(
            sums_ptr, d_level_ptr, image, images, positions, CHANNELS, FEATURES, GROUPS, HAS_LEVEL,
            SPLITS, BLOCK_C, BLOCK_G,
        )[None, :]
        du_ptr += image * (CHANNELS * positions)
        at = within(first_pixel(p, width), c, positions, CHANNELS, LAST)
        right: tl.constexpr = CHANNELS if LAST else 1
        for k in tl.static_range(4):
            du = constant + tl.where(place == k, dz, 0.0)
            pixel = du_ptr + at + k // 2 * right * width + k % 2 * right
            tl.store(pixel, du.to(du_ptr.dtype.element_ty), mask=inside)
        if ODD:
            count = positions - 4 * outputs
            for start in range(tl.program_id(1) * BLOCK_P, count, tl.num_programs(1) * BLOCK_P):
                r = start + tl.arange(0, BLOCK_P)
                inside = (r < count)[:, None] & (c < CHANNELS)[None, :]
                at = within(left_over(r, height, width), c, positions, CHANNELS, LAST)
                flat = tl.broadcast_to(constant, [BLOCK_P, BLOCK_C])
                tl.store(du_ptr + at, flat.to(du_ptr.dtype.element_ty), mask=inside)


@triton.jit
def join_kernel(
    x_ptr, joined_ptr, offset_ptr,
    positions, log_positions,
    LAST: tl.constexpr, CHANNELS: tl.constexpr, JOINED_LAST: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """`z = x - o` of an image, each color beside its mean, and `o = -log mean exp(-x)`; one program an image."""
    image = tl.program_id(0).to(tl.int64)
    x_ptr += image * (3 * positions)
    color = tl.arange(0, 4)
    least = tl.full([BLOCK_P, 4], float("inf"), tl.float32)
    total = tl.zeros([BLOCK_P, 4], tl.float32)
    for start in range(0, positions, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        inside = (p < positions)[:, None] & (color < 3)[None, :]
        x = tl.load(x_ptr + within(p, color, positions, 3, LAST), mask=inside, other=0.0)
        least = tl.minimum(least, tl.where(inside, x, float("inf")))
        total += x
    # Exponents of what is above the least value cannot overflow; the fourth color, which is none, stays finite.
    floor = tl.where(color < 3, tl.min(least, 0), 0.0)
    mean = tl.sum(total, 0) / positions
    powers = tl.zeros([BLOCK_P, 4], tl.float32)
    for start in range(0, positions, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        inside = (p < positions)[:, None] & (color < 3)[None, :]
        x = tl.load(x_ptr + within(p, color, positions, 3, LAST), mask=inside, other=0.0)
        powers += tl.where(inside, tl.exp(floor[None, :] - x), 0.0)
    offset = floor + log_positions - tl.log(tl.where(color < 3, tl.sum(powers, 0), 1.0))
    tl.store(offset_ptr + image * 3 + color, offset, mask=color < 3)
    c = tl.arange(0, 8)
    same = c[None, :] // 2 == color[:, None]
    offset_of_channel = tl.sum(tl.where(same, offset[:, None], 0.0), 0)
    mean_of_channel = tl.sum(tl.where(same, mean[:, None], 0.0), 0)
    joined_ptr += image * (CHANNELS * positions)
    for start in range(0, positions, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        real = (p < positions)[:, None] & (c < 6)[None, :]
        x = tl.load(x_ptr + within(p, c // 2, positions, 3, LAST), mask=real & (c % 2 == 0)[None, :], other=0.0)
        z = tl.where((c % 2 == 0)[None, :], x, mean_of_channel[None, :]) - offset_of_channel[None, :]
        z = tl.where((c < 6)[None, :], z, 0.0)
        written = (p < positions)[:, None] & (c < CHANNELS)[None, :]
        at = within(p, c, positions, CHANNELS, JOINED_LAST)
        tl.store(joined_ptr + at, z.to(joined_ptr.dtype.element_ty), mask=written)
