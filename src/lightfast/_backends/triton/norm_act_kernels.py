"""The Triton kernels behind `norm_act`: two passes over the map, the rest on (N, C).

With running statistics no image has to wait for the others, and one that is small enough goes through in one pass.

Every kernel reads maps by strides, so that channels-last and contiguous maps both go through, and knows the number of
features `C` apart from the number of channels that the tensor has: idle channels, which fill up to a multiple that the
hardware likes, are written as zeros and enter no statistics. Channels and the stride of positions are known to the
compiler, and images follow one another at so many times that stride (or 1, where it is 0: a number for all positions):
only then does it see that 40 channels are a multiple of 8, and load and store as many numbers at once. Sums are held as
tiles, and added up once, after the loop.

What passes between the kernels lies in tables: of numbers for each feature of each image (N, C), and for each feature.
"""

import triton
import triton.language as tl

# Tables of images that the forward pass writes; the first two are kept for the backward pass.
MEAN: tl.constexpr = tl.constexpr(0)
DEVIATION: tl.constexpr = tl.constexpr(1)
VAR: tl.constexpr = tl.constexpr(2)
SHIFT: tl.constexpr = tl.constexpr(3)
SHORTCUT_MEAN: tl.constexpr = tl.constexpr(4)
# Tables of features.
SCALE: tl.constexpr = tl.constexpr(0)
INVERSE: tl.constexpr = tl.constexpr(1)
BATCH_MEAN: tl.constexpr = tl.constexpr(2)
BATCH_VAR: tl.constexpr = tl.constexpr(3)
# Tables of images that the backward pass writes, and after them a row of features.
FIRST: tl.constexpr = tl.constexpr(0)
SECOND: tl.constexpr = tl.constexpr(1)
CONSTANT: tl.constexpr = tl.constexpr(2)
CENTRING: tl.constexpr = tl.constexpr(3)
SLANT: tl.constexpr = tl.constexpr(4)


@triton.jit
def moments_kernel(
    u_ptr, s_ptr, of_images_ptr,
    positions, features, u_n, u_c, s_n, s_c,
    CHANNELS: tl.constexpr, U_P: tl.constexpr, S_P: tl.constexpr,
    WITH_VAR: tl.constexpr, HAS_SHORTCUT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):
    """Mean and, if wanted, variance over the positions, for each feature of each image; and the mean of the shortcut.

    Sums are of differences from the first pixel, one of the values themselves: where the mean is far from it, so is the
    variance from zero, and nothing cancels.
    """
    image = tl.program_id(0).to(tl.int64)
    table = tl.num_programs(0) * features
    mean_ptr = of_images_ptr + MEAN * table
    var_ptr = of_images_ptr + VAR * table
    s_mean_ptr = of_images_ptr + SHORTCUT_MEAN * table
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    u_ptr += image * u_n * U_P
    s_ptr += image * s_n * (S_P + (S_P == 0))
    pivot = tl.zeros([BLOCK_C], tl.float32)
    if WITH_VAR:
        pivot = tl.load(u_ptr + c * u_c, mask=c < CHANNELS, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    squares = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    s_total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for start in range(0, positions, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        inside = (p < positions)[:, None] & (c < CHANNELS)[None, :]
        u = tl.load(u_ptr + p[:, None] * U_P + c[None, :] * u_c, mask=inside, other=0.0).to(tl.float32)
        if WITH_VAR:
            u = tl.where(inside, u - pivot[None, :], 0.0)
            squares += u * u
        total += u
        if HAS_SHORTCUT:
            s_total += tl.load(s_ptr + p[:, None] * S_P + c[None, :] * s_c, mask=inside, other=0.0).to(tl.float32)
    real = c < features
    at = image * features + c
    step = tl.sum(total, 0) / positions
    tl.store(mean_ptr + at, pivot + step, mask=real)
    if WITH_VAR:
        tl.store(var_ptr + at, tl.maximum(tl.sum(squares, 0) / positions - step * step, 0.0), mask=real)
    if HAS_SHORTCUT:
        tl.store(s_mean_ptr + at, tl.sum(s_total, 0) / positions, mask=real)


@triton.jit
def coefficients_kernel(
    of_images_ptr, of_features_ptr, pre_bias_ptr, weight_ptr, bias_ptr, running_mean_ptr, running_var_ptr, tracked_ptr,
    offset_ptr,
    images, features, size, groups, unbiased, momentum, eps,
    TRAINING: tl.constexpr, HAS_RUNNING: tl.constexpr, HAS_SHORTCUT: tl.constexpr, HAS_PRE_BIAS: tl.constexpr,
    HAS_TRACKED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """From the moments to what the pass over the map needs; one program a group, which has `size` features.

    Running statistics are moved towards the batch's in training; without them the batch's are written down.
    """
    group = tl.program_id(0)
    table = images * features
    mean_ptr = of_images_ptr + MEAN * table
    deviation_ptr = of_images_ptr + DEVIATION * table
    var_ptr = of_images_ptr + VAR * table
    shift_ptr = of_images_ptr + SHIFT * table
    s_mean_ptr = of_images_ptr + SHORTCUT_MEAN * table
    scale_ptr = of_features_ptr + SCALE * features
    inverse_ptr = of_features_ptr + INVERSE * features
    i = tl.arange(0, BLOCK_S)
    real = i < size
    c = group * size + i
    pre_bias = tl.zeros([BLOCK_S], tl.float32)
    if HAS_PRE_BIAS:
        pre_bias = tl.load(pre_bias_ptr + c, mask=real, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + c, mask=real, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + c, mask=real, other=0.0).to(tl.float32)
    batch_mean = tl.zeros([BLOCK_S], tl.float32)
    batch_var = tl.zeros([BLOCK_S], tl.float32)
    if TRAINING:
        for start in range(0, images, BLOCK_N):
            n = start + tl.arange(0, BLOCK_N)
            inside = (n < images)[:, None] & real[None, :]
            at = n[:, None] * features + c[None, :]
            mean = tl.load(mean_ptr + at, mask=inside, other=0.0) + tl.where(inside, pre_bias[None, :], 0.0)
            level = tl.sum(mean, 1) / size
            batch_mean += tl.sum(tl.where(inside, mean - level[:, None], 0.0), 0)
            batch_var += tl.sum(tl.load(var_ptr + at, mask=inside, other=0.0), 0)
        batch_mean /= images
        for start in range(0, images, BLOCK_N):
            n = start + tl.arange(0, BLOCK_N)
            inside = (n < images)[:, None] & real[None, :]
            at = n[:, None] * features + c[None, :]
            mean = tl.load(mean_ptr + at, mask=inside, other=0.0) + tl.where(inside, pre_bias[None, :], 0.0)
            level = tl.sum(mean, 1) / size
            off = tl.where(inside, mean - level[:, None] - batch_mean[None, :], 0.0)
            batch_var += tl.sum(off * off, 0)
        batch_var /= images
        if HAS_RUNNING:
            old = tl.load(running_mean_ptr + c, mask=real, other=0.0)
            tl.store(running_mean_ptr + c, old + momentum * (batch_mean - old), mask=real)
            old = tl.load(running_var_ptr + c, mask=real, other=0.0)
            tl.store(running_var_ptr + c, old + momentum * (batch_var * unbiased - old), mask=real)
        else:
            tl.store(of_features_ptr + BATCH_MEAN * features + c, batch_mean, mask=real)
            tl.store(of_features_ptr + BATCH_VAR * features + c, batch_var * unbiased, mask=real)
        if HAS_TRACKED and group == 0:
            tl.store(tracked_ptr, tl.load(tracked_ptr) + 1)
    else:
        batch_mean = tl.load(running_mean_ptr + c, mask=real, other=0.0).to(tl.float32)
        batch_var = tl.load(running_var_ptr + c, mask=real, other=1.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt(batch_var + eps)
    scale = weight * inverse
    tl.store(scale_ptr + c, scale, mask=real)
    tl.store(inverse_ptr + c, inverse, mask=real)
    for start in range(0, images, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        inside = (n < images)[:, None] & real[None, :]
        at = n[:, None] * features + c[None, :]
        mean = tl.load(mean_ptr + at, mask=inside, other=0.0) + tl.where(inside, pre_bias[None, :], 0.0)
        level = tl.sum(mean, 1) / size
        deviation = mean - level[:, None] - batch_mean[None, :]
        after = tl.sum(tl.where(inside, scale[None, :] * deviation + bias[None, :], 0.0), 1) / size
        floor = after
        if HAS_SHORTCUT:
            floor += tl.sum(tl.load(s_mean_ptr + at, mask=inside, other=0.0), 1) / size
        shift = bias[None, :] - scale[None, :] * (mean - deviation - pre_bias[None, :]) - floor[:, None]
        tl.store(shift_ptr + at, shift, mask=inside)
        tl.store(deviation_ptr + at, deviation, mask=inside)
        tl.store(offset_ptr + n * groups + group, level + after, mask=n < images)


@triton.jit
def apply_kernel(
    u_ptr, s_ptr, of_images_ptr, of_features_ptr, z_ptr,
    positions, features, slope, u_n, u_c, s_n, s_c,
    CHANNELS: tl.constexpr, U_P: tl.constexpr, S_P: tl.constexpr,
    HAS_SHORTCUT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):
    """`z = act(a u + d + s)`; idle channels become zero."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    p = tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P)
    real = c < features
    inside = (p < positions)[:, None] & (c < CHANNELS)[None, :]
    at = p[:, None] * U_P + c[None, :] * u_c
    scale = tl.load(of_features_ptr + SCALE * features + c, mask=real, other=0.0)
    shift_ptr = of_images_ptr + SHIFT * tl.num_programs(0) * features
    shift = tl.load(shift_ptr + image * features + c, mask=real, other=0.0)
    u = tl.load(u_ptr + image * u_n * U_P + at, mask=inside, other=0.0).to(tl.float32)
    q = scale[None, :] * u + shift[None, :]
    if HAS_SHORTCUT:
        s_at = p[:, None] * S_P + c[None, :] * s_c
        q += tl.load(s_ptr + image * s_n * (S_P + (S_P == 0)) + s_at, mask=inside, other=0.0).to(tl.float32)
    z = tl.where(real[None, :], tl.where(q > 0, q, q * slope), 0.0)
    tl.store(z_ptr + image * u_n * U_P + at, z.to(z_ptr.dtype.element_ty), mask=inside)


@triton.jit
def coefficients_of_image(
    mean, s_mean, pre_bias_ptr, scale_ptr, shift_ptr, first_ptr, second_ptr,
    features, size, eps,
    FOLDED: tl.constexpr, HAS_PRE_BIAS: tl.constexpr, HAS_SHORTCUT: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_G: tl.constexpr,
):
    """From the means [BLOCK_C] of an image's channels to their factors and shifts, and to its offset [BLOCK_G].

        l = φ(undo (mean + b))                                      the level that the norm takes out
        r = φ(factor (mean + b) + k - a G l)                        and the one that is left after it
        z = act(factor (u + b) + k - a G l - G (r + φ(s)) + s),     offset = l + r

    The pointers are, where FOLDED, to `a`, `k`, `undo` and `factor`; otherwise to `γ`, `β` and the running statistics:
    `a = factor = γ / sqrt(σ² + ε)`, `k = β - a μ`, and there is nothing to undo. All are zero for idle channels.
    """
    c = tl.arange(0, BLOCK_C)
    real = c < features
    a = tl.load(scale_ptr + c, mask=real, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + c, mask=real, other=0.0).to(tl.float32)
    first = tl.load(first_ptr + c, mask=real, other=0.0).to(tl.float32)
    second = tl.load(second_ptr + c, mask=real, other=0.0).to(tl.float32)
    if HAS_PRE_BIAS:
        pre_bias = tl.load(pre_bias_ptr + c, mask=real, other=0.0).to(tl.float32)
        mean += pre_bias
    if FOLDED:
        factor = second
        level_mean = first * mean
    else:
        a = tl.where(real, a / tl.sqrt(second + eps), 0.0)
        shift -= a * first
        factor = a
        level_mean = mean
    belongs = (c[None, :] // size == tl.arange(0, BLOCK_G)[:, None]) & real[None, :]
    level = tl.sum(tl.where(belongs, level_mean[None, :], 0.0), 1) / size
    shift -= a * tl.sum(tl.where(belongs, level[:, None], 0.0), 0)
    after = tl.sum(tl.where(belongs, (factor * mean + shift)[None, :], 0.0), 1) / size
    floor = after
    if HAS_SHORTCUT:
        floor += tl.sum(tl.where(belongs, s_mean[None, :], 0.0), 1) / size
    shift -= tl.sum(tl.where(belongs, floor[:, None], 0.0), 0)
    if HAS_PRE_BIAS:
        shift += factor * pre_bias
    return factor, shift, level + after


@triton.jit
def infer_kernel(
    u_ptr, s_ptr, pre_bias_ptr, scale_ptr, shift_ptr, first_ptr, second_ptr, z_ptr, offset_ptr,
    positions, features, size, groups, slope, eps,
    CHANNELS: tl.constexpr, U_N: tl.constexpr, U_C: tl.constexpr, U_P: tl.constexpr,
    S_N: tl.constexpr, S_C: tl.constexpr, S_P: tl.constexpr,
    FOLDED: tl.constexpr, HAS_PRE_BIAS: tl.constexpr, HAS_SHORTCUT: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_G: tl.constexpr,
):
    """All of `norm_act` with running statistics: one program an image, which comes from memory once.

    The compiler knows channels and strides, so that it can load and store several numbers at once: that 40 channels
    are a multiple of 8 it does not see otherwise.
    """
    image = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    p = tl.arange(0, BLOCK_P)
    inside = (p < positions)[:, None] & (c < CHANNELS)[None, :]
    # Places within the image are 32-bit numbers, of which more fit into registers.
    at = p[:, None] * U_P + c[None, :] * U_C
    u_ptr += image * U_N
    mean = tl.sum(tl.load(u_ptr + at, mask=inside, other=0.0).to(tl.float32), 0) / positions
    s_mean = mean
    if HAS_SHORTCUT:
        s_at = p[:, None] * S_P + c[None, :] * S_C
        s_ptr += image * S_N
        s_mean = tl.sum(tl.load(s_ptr + s_at, mask=inside, other=0.0).to(tl.float32), 0) / positions
    factor, shift, offset = coefficients_of_image(
        mean, s_mean, pre_bias_ptr, scale_ptr, shift_ptr, first_ptr, second_ptr, features, size, eps,
        FOLDED, HAS_PRE_BIAS, HAS_SHORTCUT, BLOCK_C, BLOCK_G,
    )
    # Read again, from the cache: held in registers, the map would leave room for one image at a time. The policy tells
    # these loads from the first ones, which the compiler would put in their place.
    q = factor[None, :] * tl.load(u_ptr + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    q += shift[None, :]
    if HAS_SHORTCUT:
        q += tl.load(s_ptr + s_at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    z = tl.where((c < features)[None, :], tl.where(q > 0, q, q * slope), 0.0)
    tl.store(z_ptr + image * U_N + at, z.to(z_ptr.dtype.element_ty), mask=inside)
    g = tl.arange(0, BLOCK_G)
    tl.store(offset_ptr + image * groups + g, offset, mask=g < groups)


@triton.jit
def infer_coefficients_kernel(
    of_images_ptr, of_features_ptr, pre_bias_ptr, scale_ptr, shift_ptr, first_ptr, second_ptr, offset_ptr,
    features, size, groups, eps,
    FOLDED: tl.constexpr, HAS_PRE_BIAS: tl.constexpr, HAS_SHORTCUT: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_G: tl.constexpr,
):
    """With running statistics, from the means to what the pass over the map needs; one program an image."""
    image = tl.program_id(0).to(tl.int64)
    table = tl.num_programs(0) * features
    mean_ptr = of_images_ptr + MEAN * table
    s_mean_ptr = of_images_ptr + SHORTCUT_MEAN * table
    image_shift_ptr = of_images_ptr + SHIFT * table
    factor_ptr = of_features_ptr + SCALE * features
    c = tl.arange(0, BLOCK_C)
    real = c < features
    at = image * features + c
    mean = tl.load(mean_ptr + at, mask=real, other=0.0)
    s_mean = mean
    if HAS_SHORTCUT:
        s_mean = tl.load(s_mean_ptr + at, mask=real, other=0.0)
    factor, shift, offset = coefficients_of_image(
        mean, s_mean, pre_bias_ptr, scale_ptr, shift_ptr, first_ptr, second_ptr, features, size, eps,
        FOLDED, HAS_PRE_BIAS, HAS_SHORTCUT, BLOCK_C, BLOCK_G,
    )
    if image == 0:
        tl.store(factor_ptr + c, factor, mask=real)
    tl.store(image_shift_ptr + at, shift, mask=real)
    g = tl.arange(0, BLOCK_G)
    tl.store(offset_ptr + image * groups + g, offset, mask=g < groups)


@triton.jit
def backward_moments_kernel(
    dz_ptr, z_ptr, u_ptr, of_images_ptr, back_ptr,
    positions, features, slope, u_n, u_c, d_n, d_c,
    CHANNELS: tl.constexpr, U_P: tl.constexpr, D_P: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):
    """The means over positions of `dq = dz act'` and of `dq (u - mean)`, for each feature of each image."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    real = c < features
    dz_ptr += image * d_n * (D_P + (D_P == 0))
    z_ptr += image * u_n * U_P
    u_ptr += image * u_n * U_P
    table = tl.num_programs(0) * features
    mean = tl.load(of_images_ptr + MEAN * table + image * features + c, mask=real, other=0.0)
    first_ptr = back_ptr + FIRST * table
    second_ptr = back_ptr + SECOND * table
    first = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    second = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for start in range(0, positions, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        inside = (p < positions)[:, None] & (c < CHANNELS)[None, :]
        at = p[:, None] * U_P + c[None, :] * u_c
        dz = tl.load(dz_ptr + p[:, None] * D_P + c[None, :] * d_c, mask=inside, other=0.0).to(tl.float32)
        z = tl.load(z_ptr + at, mask=inside, other=0.0).to(tl.float32)
        u = tl.load(u_ptr + at, mask=inside, other=0.0).to(tl.float32)
        dq = tl.where(z > 0, dz, dz * slope)
        first += dq
        second += dq * (u - mean[None, :])
    at = image * features + c
    tl.store(first_ptr + at, tl.sum(first, 0) / positions, mask=real)
    tl.store(second_ptr + at, tl.sum(second, 0) / positions, mask=real)


@triton.jit
def backward_coefficients_kernel(
    back_ptr, of_images_ptr, of_features_ptr, d_offset_ptr, d_weight_ptr, d_bias_ptr, d_pre_bias_ptr,
    images, features, size, groups, positions,
    TRAINING: tl.constexpr, HAS_OFFSET: tl.constexpr, HAS_PRE_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """From those means to the gradients of the parameters and to what the pass over the map needs."""
    group = tl.program_id(0)
    table = images * features
    first_ptr = back_ptr + FIRST * table
    second_ptr = back_ptr + SECOND * table
    constant_ptr = back_ptr + CONSTANT * table
    centering_ptr = back_ptr + CENTRING * table
    slant_ptr = back_ptr + SLANT * table
    mean_ptr = of_images_ptr + MEAN * table
    deviation_ptr = of_images_ptr + DEVIATION * table
    scale_ptr = of_features_ptr + SCALE * features
    inverse_ptr = of_features_ptr + INVERSE * features
    i = tl.arange(0, BLOCK_S)
    real = i < size
    c = group * size + i
    scale = tl.load(scale_ptr + c, mask=real, other=0.0)
    inverse = tl.load(inverse_ptr + c, mask=real, other=0.0)
    k1 = tl.zeros([BLOCK_S], tl.float32)
    k2 = tl.zeros([BLOCK_S], tl.float32)
    for start in range(0, images, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        inside = (n < images)[:, None] & real[None, :]
        at = n[:, None] * features + c[None, :]
        first = tl.load(first_ptr + at, mask=inside, other=0.0)
        second = tl.load(second_ptr + at, mask=inside, other=0.0)
        deviation = tl.load(deviation_ptr + at, mask=inside, other=0.0)
        level = -tl.sum(first, 1) / size
        tl.store(centering_ptr + at, tl.broadcast_to(level[:, None], [BLOCK_N, BLOCK_S]), mask=inside)
        if HAS_OFFSET:
            level += tl.load(d_offset_ptr + n * groups + group, mask=n < images, other=0.0) / (size * positions)
        d_mean = tl.where(inside, first + level[:, None], 0.0)
        k1 += tl.sum(d_mean, 0)
        k2 += tl.sum((second + d_mean * deviation) * inverse[None, :], 0)
    tl.store(d_bias_ptr + c, k1 * positions, mask=real)
    tl.store(d_weight_ptr + c, k2 * positions, mask=real)
    if TRAINING:
        k1 /= images
        k2 /= images
    else:
        k1 = tl.zeros([BLOCK_S], tl.float32)
        k2 = tl.zeros([BLOCK_S], tl.float32)
    slant = scale * k2 * inverse
    tl.store(slant_ptr + c, slant, mask=real)
    total = tl.zeros([BLOCK_S], tl.float32)
    for start in range(0, images, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        inside = (n < images)[:, None] & real[None, :]
        at = n[:, None] * features + c[None, :]
        first = tl.load(first_ptr + at, mask=inside, other=0.0)
        mean = tl.load(mean_ptr + at, mask=inside, other=0.0)
        deviation = tl.load(deviation_ptr + at, mask=inside, other=0.0)
        level = -tl.sum(first, 1) / size
        lift = tl.zeros([BLOCK_N], tl.float32)
        if HAS_OFFSET:
            lift = tl.load(d_offset_ptr + n * groups + group, mask=n < images, other=0.0) / (size * positions)
            level += lift
        dc_mean = scale[None, :] * (first + level[:, None] - k1[None, :]) - slant[None, :] * deviation
        center = tl.sum(tl.where(inside, dc_mean, 0.0), 1) / size - lift
        flat = scale[None, :] * (level[:, None] - k1[None, :]) - center[:, None]
        constant = flat - slant[None, :] * (deviation - mean)
        tl.store(constant_ptr + at, constant, mask=inside)
        total += tl.sum(tl.where(inside, dc_mean - center[:, None], 0.0), 0)
    if HAS_PRE_BIAS:
        tl.store(d_pre_bias_ptr + c, total * positions, mask=real)


@triton.jit
def backward_apply_kernel(
    dz_ptr, z_ptr, u_ptr, of_features_ptr, back_ptr, du_ptr, ds_ptr,
    positions, features, slope, u_n, u_c, d_n, d_c,
    CHANNELS: tl.constexpr, U_P: tl.constexpr, D_P: tl.constexpr,
    HAS_SHORTCUT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):
    """`du = a dq - slant u + constant`, and `ds = dq + centering`; idle channels become zero."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    p = tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P)
    real = c < features
    inside = (p < positions)[:, None] & (c < CHANNELS)[None, :]
    at = p[:, None] * U_P + c[None, :] * u_c
    d_at = p[:, None] * D_P + c[None, :] * d_c
    dz = tl.load(dz_ptr + image * d_n * (D_P + (D_P == 0)) + d_at, mask=inside, other=0.0).to(tl.float32)
    z = tl.load(z_ptr + image * u_n * U_P + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + image * u_n * U_P + at, mask=inside, other=0.0).to(tl.float32)
    dq = tl.where(z > 0, dz, dz * slope)
    table = tl.num_programs(0) * features
    scale = tl.load(of_features_ptr + SCALE * features + c, mask=real, other=0.0)
    slant = tl.load(back_ptr + SLANT * table + c, mask=real, other=0.0)
    constant = tl.load(back_ptr + CONSTANT * table + image * features + c, mask=real, other=0.0)
    du = tl.where(real[None, :], scale[None, :] * dq - slant[None, :] * u + constant[None, :], 0.0)
    tl.store(du_ptr + image * u_n * U_P + at, du.to(du_ptr.dtype.element_ty), mask=inside)
    if HAS_SHORTCUT:
        centering = tl.load(back_ptr + CENTRING * table + image * features + c, mask=real, other=0.0)
        ds = tl.where(real[None, :], dq + centering[None, :], 0.0)
        tl.store(ds_ptr + image * u_n * U_P + at, ds.to(ds_ptr.dtype.element_ty), mask=inside)
