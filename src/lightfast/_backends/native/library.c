/* Passes over maps and weights, in float32 and in bfloat16. The formulas are in ../reference.py. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

typedef unsigned short bfloat16;

typedef union {
    float number;
    unsigned bits;
} both;

static inline float from_bfloat16(bfloat16 x) {
    const both value = {.bits = (unsigned)x << 16};
    return value.number;
}

/* To the nearest, ties to even; what is not a number stays so. */
static inline bfloat16 to_bfloat16(float x) {
    const both value = {.number = x};
    const unsigned rounded = (value.bits + 0x7fff + ((value.bits >> 16) & 1)) >> 16;
    return (value.bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (bfloat16)rounded;
}

/* x where the condition holds, and 0 elsewhere, by its bits. Written as `condition ? x[i] : 0` the load itself becomes one
 * under the condition, and gcc (12 and 13, where there is AVX) then loads the second of two vectors under the mask of the
 * first. So nothing is loaded under a condition in these passes. */
static inline float where(int condition, float x) {
    both value = {.number = x};
    value.bits &= -(unsigned)(condition != 0);
    return value.number;
}

/* The gradient before the activation, whose sign its output z keeps. */
static inline float through_activation(float dz, float z, float slope) { return (z > 0 ? 1 : slope) * dz; }

/* How many pixels of a channels-last map are worked on at a time: so many that they fill whole vectors. */
static inline long pixels_at_a_time(long features) {
    long pixels = 1;
    while (features < 64 && pixels * features % 16) pixels *= 2;
    return pixels;
}

/* A feature's value for each of these pixels. */
static inline void repeat(const float *restrict values, float *restrict table, long features, long pixels) {
    for (long i = 0; i < pixels; i++)
        for (long c = 0; c < features; c++) table[i * features + c] = values[c];
}

/* The means over all positions, from the sums of each of these pixels. */
static inline void gather(const float *restrict sums, float *restrict means, long features, long pixels,
                          long positions) {
    for (long c = 0; c < features; c++) {
        float total = 0;
        for (long i = 0; i < pixels; i++) total += sums[i * features + c];
        means[c] = total / positions;
    }
}

/* From a feature's parameters and running statistics to the constants of `infer`. */
static inline void constants_of_norm(const float *restrict weight, const float *restrict bias,
                                     const float *restrict mean, const float *restrict var,
                                     const float *restrict pre_bias, float *restrict scale, float *restrict shift,
                                     float *restrict level, float *restrict after, float eps, long features,
                                     long groups) {
    const long run = features / groups;
    for (long g = 0; g < groups; g++) {
        level[g] = after[g] = 0;
        for (long c = g * run; c < (g + 1) * run; c++) {
            const float b = pre_bias ? pre_bias[c] : 0;
            scale[c] = weight[c] / sqrtf(var[c] + eps);
            shift[c] = bias[c] + scale[c] * (b - mean[c]);
            level[g] += b / run;
            after[g] += shift[c] / run;
        }
    }
}

/* An image's shift of each feature and offset of each group, from the means of its map and of its shortcut. */
static inline void shift_image(const float *restrict mean, const float *restrict s_mean, const float *restrict undo,
                               const float *restrict factor, const float *restrict scale, const float *restrict shift,
                               const float *restrict level, const float *restrict after, float *restrict shifted,
                               float *restrict offset, long features, long groups) {
    const long run = features / groups;
    for (long g = 0; g < groups; g++) {
        float before = 0, rest = 0, added = 0;
        for (long c = g * run; c < (g + 1) * run; c++) {
            before += undo ? undo[c] * mean[c] : mean[c];
            added += s_mean ? s_mean[c] : 0;
        }
        before = level[g] + before / run;
        for (long c = g * run; c < (g + 1) * run; c++) rest += factor[c] * mean[c] - scale[c] * before;
        rest = after[g] + rest / run;
        const float floor = rest + added / run;
        for (long c = g * run; c < (g + 1) * run; c++) shifted[c] = shift[c] - scale[c] * before - floor;
        offset[g] = before + rest;
    }
}

/* The level of each group, the mean of its sums over its features and `positions`. */
static inline void group_levels(const float *restrict sums, float *restrict level, long features, long groups,
                                long positions) {
    const long run = features / groups;
    for (long g = 0; g < groups; g++) {
        float total = 0;
        for (long c = g * run; c < (g + 1) * run; c++) total += sums[c];
        level[g] = total / (run * positions);
    }
}

/* exp(x) for x <= 0, to 2 units in the last place: 2^k exp(r) with |r| <= log(2) / 2. It is here and not from the
 * library so that the compiler makes vectors of it. */
static inline float exponential(float x) {
    const float bounded = x < -87 ? -87 : x, k = rintf(bounded * 1.44269504f);
    const float r = bounded - k * 0.693359375f + k * 2.12194440e-4f;
    float series = 1.9875691500e-4f;
    series = series * r + 1.3981999507e-3f;
    series = series * r + 8.3334519073e-3f;
    series = series * r + 4.1665795894e-2f;
    series = series * r + 1.6666665459e-1f;
    series = series * r + 5.0000001201e-1f;
    const both power = {.bits = (unsigned)((int)k + 127) << 23};
    return (series * r * r + r + 1) * power.number;
}

/* Ask for huge pages for a large tensor before it is first written: otherwise a system that gives them on request alone
 * takes a fault for each 4 KiB of it, which costs as much as the pass. */
static inline void prefer_huge_pages(void *start, size_t bytes) {
    const uintptr_t huge = 1 << 21, first = ((uintptr_t)start + huge - 1) & -huge;
    const uintptr_t last = ((uintptr_t)start + bytes) & -huge;
    if (last > first) madvise((void *)first, last - first, MADV_HUGEPAGE);
}

#define LANES 16
#define MOST_COLUMNS 8192
#define PARALLEL _Pragma("omp parallel for schedule(static) num_threads(threads)")
/* Over images where they are enough for all threads, and within each where they are not. */
#define OVER_IMAGES _Pragma("omp parallel for schedule(static) num_threads(threads) if (images >= threads)")
#define WITHIN_IMAGE _Pragma("omp parallel for schedule(static) num_threads(threads) if (images < threads)")

#define MAP float
#define NAME(pass) pass##_float
#define LOAD(x) (x)
#define STORE(x) (x)
#include "norm_act.h"
#include "center_act.h"
#undef MAP
#undef NAME
#undef LOAD
#undef STORE

#define MAP bfloat16
#define NAME(pass) pass##_bfloat16
#define LOAD(x) from_bfloat16(x)
#define STORE(x) to_bfloat16(x)
#include "norm_act.h"
#include "center_act.h"
#undef MAP
#undef NAME
#undef LOAD
#undef STORE

#define FROM float
#define TO float
#define NAME(pass) pass##_float_float
#define LOAD(x) (x)
#define STORE(x) (x)
#include "projection.h"
#undef TO
#undef NAME
#undef STORE

#define TO bfloat16
#define NAME(pass) pass##_float_bfloat16
#define STORE(x) to_bfloat16(x)
#include "projection.h"
#undef FROM
#undef TO
#undef NAME
#undef LOAD
#undef STORE

#define FROM bfloat16
#define TO float
#define NAME(pass) pass##_bfloat16_float
#define LOAD(x) from_bfloat16(x)
#define STORE(x) (x)
#include "projection.h"
