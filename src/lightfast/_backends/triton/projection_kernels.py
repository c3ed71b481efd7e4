"""The Triton kernel behind the projection of weights.

Strides and extents are known to the compiler, so that it can load and store several numbers at once: that 504 features
are a multiple of 8 it does not see otherwise.
"""

import triton
import triton.language as tl


@triton.jit
def project_kernel(
    w_ptr, out_ptr,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, TAPS: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr,
    OUT_OUTPUTS: tl.constexpr, OUT_INPUTS: tl.constexpr, GROUPS: tl.constexpr, RUN: tl.constexpr, EXTENT: tl.constexpr,
    W_O: tl.constexpr, W_I: tl.constexpr, W_T: tl.constexpr, O_O: tl.constexpr, O_I: tl.constexpr, O_T: tl.constexpr,
    PROJECT: tl.constexpr, HAS_SHARE: tl.constexpr, AGAIN: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_T: tl.constexpr,
):
    """The mean of each (output, input group, phase) block moves to its share in the output's own group, to 0 elsewhere.

    One program a few outputs and a run of inputs: a group, or without PROJECT, where nothing moves, any RUN of them. It
    has all taps, or some where none depends on another. The inputs pass through in blocks of tiles
    [BLOCK_O, BLOCK_I, BLOCK_T]; if there is but one, it stays in registers between the sum and the move. Idle outputs
    and inputs, those from OUTPUTS to OUT_OUTPUTS and from INPUTS to OUT_INPUTS, become zero; EXTENT is the RUN and what
    the last group writes after it.

    Tap `t` of a kernel SIDE high and wide is of the phase `(t // SIDE % STRIDE, t % SIDE % STRIDE)`.
    """
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    run = tl.program_id(1)
    t = tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T)
    i = tl.arange(0, BLOCK_I)
    w_ptrs = w_ptr + (o * W_O)[:, None, None] + (t * W_T)[None, None, :]
    out_ptrs = out_ptr + (o * O_O)[:, None, None] + (t * O_T)[None, None, :]
    read = (o < OUTPUTS)[:, None, None] & (t < TAPS)[None, None, :]
    written = (o < OUT_OUTPUTS)[:, None, None] & (t < TAPS)[None, None, :]
    if PROJECT:
        total = tl.zeros([BLOCK_O, BLOCK_I, BLOCK_T], tl.float32)
        for start in range(0, EXTENT, BLOCK_I):
            c = run * RUN + start + i
            inside = read & (start + i < RUN)[None, :, None]
            total += tl.load(w_ptrs + (c * W_I)[None, :, None], mask=inside, other=0.0).to(tl.float32)
        sums = tl.sum(total, 1)
        if STRIDE == 1:
            sums = tl.sum(sums, 1)[:, None]
        elif STRIDE * STRIDE < TAPS:
            phase = t // SIDE % STRIDE * STRIDE + t % SIDE % STRIDE
            same = phase[:, None] == phase[None, :]
            sums = tl.sum(tl.where(same[None, :, :], sums[:, None, :], 0.0), 2)
        move = sums * (-STRIDE * STRIDE / (RUN * TAPS))
        if HAS_SHARE:
            own = o // (OUTPUTS // GROUPS) == run
            move += tl.where(own, STRIDE * STRIDE / (RUN * TAPS), 0.0)[:, None]
    for start in range(0, EXTENT, BLOCK_I):
        c = run * RUN + start + i
        if PROJECT:
            inside = read & (start + i < RUN)[None, :, None]
            row = start + i < RUN
            if EXTENT > RUN:
                row = (row | (c >= INPUTS)) & (c < OUT_INPUTS)
        else:
            inside = read & (c < INPUTS)[None, :, None]
            row = c < OUT_INPUTS
        # Read for the second time it is read for the last.
        policy: tl.constexpr = "evict_first" if AGAIN else ""
        value = tl.load(w_ptrs + (c * W_I)[None, :, None], mask=inside, other=0.0, eviction_policy=policy)
        if PROJECT:
            value = tl.where(inside, value.to(tl.float32) + move[:, None, :], 0.0)
        here = written & row[None, :, None]
        tl.store(out_ptrs + (c * O_I)[None, :, None], value.to(out_ptr.dtype.element_ty), mask=here)
