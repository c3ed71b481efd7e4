/* The passes for maps of one type, MAP. Contiguous maps lie plane by plane: a plane is one feature of one image,
 * `positions` numbers in a row. Channels-last maps lie pixel by pixel, `features` numbers in a row. */

/* Mean and variance of each plane, and the mean of the shortcut's. The second reading of a plane comes from the cache. */
void NAME(moments)(const MAP *restrict u, const MAP *restrict s, float *restrict mean, float *restrict var,
                   float *restrict s_mean, long images, long features, long positions, int threads) {
    PARALLEL for (long i = 0; i < images * features; i++) {
        const MAP *x = u + i * positions;
        float total = 0, spread = 0;
        for (long p = 0; p < positions; p++) total += LOAD(x[p]);
        const float middle = total / positions;
        for (long p = 0; p < positions; p++) {
            const float off = LOAD(x[p]) - middle;
            spread += off * off;
        }
        mean[i] = middle;
        var[i] = spread / positions;
        if (s) {
            const MAP *y = s + i * positions;
            float other = 0;
            for (long p = 0; p < positions; p++) other += LOAD(y[p]);
            s_mean[i] = other / positions;
        }
    }
}

/* z = act(scale u + shift + s) */
void NAME(apply)(const MAP *restrict u, const MAP *restrict s, const float *restrict scale,
                 const float *restrict shift, MAP *restrict z, float slope, long images, long features, long positions,
                 int threads) {
    PARALLEL for (long i = 0; i < images * features; i++) {
        const float a = scale[i % features], d = shift[i];
        const MAP *x = u + i * positions, *y = s + i * positions;
        MAP *out = z + i * positions;
        if (s)
            for (long p = 0; p < positions; p++) {
                const float q = a * LOAD(x[p]) + d + LOAD(y[p]);
                out[p] = STORE(q > 0 ? q : slope * q);
            }
        else
            for (long p = 0; p < positions; p++) {
                const float q = a * LOAD(x[p]) + d;
                out[p] = STORE(q > 0 ? q : slope * q);
            }
    }
}

/* The means of dq = dz act' and of dq (u - mean). */
void NAME(backward_moments)(const MAP *restrict dz, const MAP *restrict z, const MAP *restrict u,
                            const float *restrict mean, float *restrict first, float *restrict second, float slope,
                            long images, long features, long positions, int threads) {
    PARALLEL for (long i = 0; i < images * features; i++) {
        const MAP *g = dz + i * positions, *y = z + i * positions, *x = u + i * positions;
        const float middle = mean[i];
        float a = 0, b = 0;
        for (long p = 0; p < positions; p++) {
            const float dq = through_activation(LOAD(g[p]), LOAD(y[p]), slope);
            a += dq;
            b += dq * (LOAD(x[p]) - middle);
        }
        first[i] = a / positions;
        second[i] = b / positions;
    }
}

/* du = scale dq - slant u + constant, ds = dq + centering */
void NAME(backward_apply)(const MAP *restrict dz, const MAP *restrict z, const MAP *restrict u,
                          const float *restrict scale, const float *restrict slant, const float *restrict constant,
                          const float *restrict centering, MAP *restrict du, MAP *restrict ds, float slope, long images,
                          long features, long positions, int threads) {
    PARALLEL for (long i = 0; i < images * features; i++) {
        const float a = scale[i % features], b = slant[i % features], c = constant[i], e = centering[i];
        const MAP *g = dz + i * positions, *y = z + i * positions, *x = u + i * positions;
        MAP *out = du + i * positions, *side = ds + i * positions;
        if (ds)
            for (long p = 0; p < positions; p++) {
                const float dq = through_activation(LOAD(g[p]), LOAD(y[p]), slope);
                out[p] = STORE(a * dq - b * LOAD(x[p]) + c);
                side[p] = STORE(dq + e);
            }
        else
            for (long p = 0; p < positions; p++) {
                const float dq = through_activation(LOAD(g[p]), LOAD(y[p]), slope);
                out[p] = STORE(a * dq - b * LOAD(x[p]) + c);
            }
    }
}

/* All of `norm_act` with running statistics, image by image, so that the second reading comes from the cache:
 * z = act(factor u + d + s) with d of the image, from the means of its map; see shift_image. */
static void NAME(infer)(const MAP *restrict u, const MAP *restrict s, const float *restrict undo,
                 const float *restrict factor, const float *restrict scale, const float *restrict shift,
                 const float *restrict level, const float *restrict after, MAP *restrict z, float *restrict offset,
                 float slope, long groups, long images, long features, long positions, int threads) {
    OVER_IMAGES for (long n = 0; n < images; n++) {
        const long first = n * features * positions;
        float mean[features], s_mean[features], d[features];
        WITHIN_IMAGE for (long c = 0; c < features; c++) {
            const MAP *x = u + first + c * positions, *y = s + first + c * positions;
            float total = 0, other = 0;
            for (long p = 0; p < positions; p++) total += LOAD(x[p]);
            if (s)
                for (long p = 0; p < positions; p++) other += LOAD(y[p]);
            mean[c] = total / positions;
            s_mean[c] = other / positions;
        }
        shift_image(mean, s ? s_mean : NULL, undo, factor, scale, shift, level, after, d, offset + n * groups,
                    features, groups);
        WITHIN_IMAGE for (long c = 0; c < features; c++) {
            const MAP *x = u + first + c * positions, *y = s + first + c * positions;
            MAP *out = z + first + c * positions;
            if (s)
                for (long p = 0; p < positions; p++) {
                    const float q = factor[c] * LOAD(x[p]) + d[c] + LOAD(y[p]);
                    out[p] = STORE(q > 0 ? q : slope * q);
                }
            else
                for (long p = 0; p < positions; p++) {
                    const float q = factor[c] * LOAD(x[p]) + d[c];
                    out[p] = STORE(q > 0 ? q : slope * q);
                }
        }
    }
}

/* The same for channels-last maps, image by image: coefficients are repeated for as many pixels as fill whole vectors,
 * `tile` numbers, and sums are kept for each of these. */
#define TILES for (long start = 0; start < size; start += tile)
#define TILE(j) for (long j = 0, end = size - start < tile ? size - start : tile; j < end; j++)

void NAME(moments_last)(const MAP *restrict u, const MAP *restrict s, float *restrict mean, float *restrict var,
                        float *restrict s_mean, long images, long features, long positions, int threads) {
    const long pixels = pixels_at_a_time(features), tile = pixels * features, size = positions * features;
    PARALLEL for (long n = 0; n < images; n++) {
        const MAP *x = u + n * size, *y = s + n * size;
        float sums[tile], middle[tile];
        for (long j = 0; j < tile; j++) sums[j] = 0;
        TILES TILE(j) sums[j] += LOAD(x[start + j]);
        gather(sums, mean + n * features, features, pixels, positions);
        repeat(mean + n * features, middle, features, pixels);
        for (long j = 0; j < tile; j++) sums[j] = 0;
        TILES TILE(j) {
            const float off = LOAD(x[start + j]) - middle[j];
            sums[j] += off * off;
        }
        gather(sums, var + n * features, features, pixels, positions);
        if (s) {
            for (long j = 0; j < tile; j++) sums[j] = 0;
            TILES TILE(j) sums[j] += LOAD(y[start + j]);
            gather(sums, s_mean + n * features, features, pixels, positions);
        }
    }
}

void NAME(apply_last)(const MAP *restrict u, const MAP *restrict s, const float *restrict scale,
                      const float *restrict shift, MAP *restrict z, float slope, long images, long features,
                      long positions, int threads) {
    const long pixels = pixels_at_a_time(features), tile = pixels * features, size = positions * features;
    PARALLEL for (long n = 0; n < images; n++) {
        const MAP *x = u + n * size, *y = s + n * size;
        MAP *out = z + n * size;
        float a[tile], d[tile];
        repeat(scale, a, features, pixels);
        repeat(shift + n * features, d, features, pixels);
        if (s)
            TILES TILE(j) {
                const float q = a[j] * LOAD(x[start + j]) + d[j] + LOAD(y[start + j]);
                out[start + j] = STORE(q > 0 ? q : slope * q);
            }
        else
            TILES TILE(j) {
                const float q = a[j] * LOAD(x[start + j]) + d[j];
                out[start + j] = STORE(q > 0 ? q : slope * q);
            }
    }
}

void NAME(backward_moments_last)(const MAP *restrict dz, const MAP *restrict z, const MAP *restrict u,
                                 const float *restrict mean, float *restrict first, float *restrict second, float slope,
                                 long images, long features, long positions, int threads) {
    const long pixels = pixels_at_a_time(features), tile = pixels * features, size = positions * features;
    PARALLEL for (long n = 0; n < images; n++) {
        const MAP *g = dz + n * size, *y = z + n * size, *x = u + n * size;
        float middle[tile], a[tile], b[tile];
        repeat(mean + n * features, middle, features, pixels);
        for (long j = 0; j < tile; j++) a[j] = b[j] = 0;
        TILES TILE(j) {
            const float dq = through_activation(LOAD(g[start + j]), LOAD(y[start + j]), slope);
            a[j] += dq;
            b[j] += dq * (LOAD(x[start + j]) - middle[j]);
        }
        gather(a, first + n * features, features, pixels, positions);
        gather(b, second + n * features, features, pixels, positions);
    }
}

void NAME(backward_apply_last)(const MAP *restrict dz, const MAP *restrict z, const MAP *restrict u,
                               const float *restrict scale, const float *restrict slant,
                               const float *restrict constant, const float *restrict centering, MAP *restrict du,
                               MAP *restrict ds, float slope, long images, long features, long positions,
                               int threads) {
    const long pixels = pixels_at_a_time(features), tile = pixels * features, size = positions * features;
    PARALLEL for (long n = 0; n < images; n++) {
        const MAP *g = dz + n * size, *y = z + n * size, *x = u + n * size;
        MAP *out = du + n * size, *side = ds + n * size;
        float a[tile], b[tile], c[tile], e[tile];
        repeat(scale, a, features, pixels);
        repeat(slant, b, features, pixels);
        repeat(constant + n * features, c, features, pixels);
        repeat(centering + n * features, e, features, pixels);
        if (ds)
            TILES TILE(j) {
                const float dq = through_activation(LOAD(g[start + j]), LOAD(y[start + j]), slope);
                out[start + j] = STORE(a[j] * dq - b[j] * LOAD(x[start + j]) + c[j]);
                side[start + j] = STORE(dq + e[j]);
            }
        else
            TILES TILE(j) {
                const float dq = through_activation(LOAD(g[start + j]), LOAD(y[start + j]), slope);
                out[start + j] = STORE(a[j] * dq - b[j] * LOAD(x[start + j]) + c[j]);
            }
    }
}

static void NAME(infer_last)(const MAP *restrict u, const MAP *restrict s, const float *restrict undo,
                      const float *restrict factor, const float *restrict scale, const float *restrict shift,
                      const float *restrict level, const float *restrict after, MAP *restrict z,
                      float *restrict offset, float slope, long groups, long images, long features, long positions,
                      int threads) {
    const long pixels = pixels_at_a_time(features), tile = pixels * features, size = positions * features;
    PARALLEL for (long n = 0; n < images; n++) {
        const MAP *x = u + n * size, *y = s + n * size;
        MAP *out = z + n * size;
        float mean[features], s_mean[features], shifted[features], a[tile], d[tile];
        for (long j = 0; j < tile; j++) a[j] = d[j] = 0;
        if (s)
            TILES TILE(j) {
                a[j] += LOAD(x[start + j]);
                d[j] += LOAD(y[start + j]);
            }
        else
            TILES TILE(j) a[j] += LOAD(x[start + j]);
        gather(a, mean, features, pixels, positions);
        gather(d, s_mean, features, pixels, positions);
        shift_image(mean, s ? s_mean : NULL, undo, factor, scale, shift, level, after, shifted, offset + n * groups,
                    features, groups);
        repeat(factor, a, features, pixels);
        repeat(shifted, d, features, pixels);
        if (s)
            TILES TILE(j) {
                const float q = a[j] * LOAD(x[start + j]) + d[j] + LOAD(y[start + j]);
                out[start + j] = STORE(q > 0 ? q : slope * q);
            }
        else
            TILES TILE(j) {
                const float q = a[j] * LOAD(x[start + j]) + d[j];
                out[start + j] = STORE(q > 0 ? q : slope * q);
            }
    }
}

#undef TILES
#undef TILE

/* `infer` as it is called: with the parameters and running statistics of a batch norm; with one that is in part in the
 * convolution's weight; and without one, which is centering and activation alone. For both layouts. */
#define CALLED(layout)                                                                                                 \
    void NAME(infer_norm##layout)(const MAP *u, const MAP *s, const float *weight, const float *bias,                 \
                                  const float *mean, const float *var, const float *pre_bias, MAP *z, float *offset, \
                                  float eps, float slope, long groups, long images, long features, long positions,   \
                                  int threads) {                                                                       \
        float scale[features], shift[features], level[groups], after[groups];                                         \
        constants_of_norm(weight, bias, mean, var, pre_bias, scale, shift, level, after, eps, features, groups);       \
        NAME(infer##layout)(u, s, NULL, scale, scale, shift, level, after, z, offset, slope, groups, images, features, \
                            positions, threads);                                                                       \
    }                                                                                                                  \
    void NAME(infer_folded##layout)(const MAP *u, const MAP *s, const float *undo, const float *factor,               \
                                    const float *scale, const float *shift, MAP *z, float *offset, float slope,        \
                                    long groups, long images, long features, long positions, int threads) {            \
        float level[groups], after[groups];                                                                            \
        for (long g = 0; g < groups; g++) level[g] = 0;                                                                \
        group_levels(shift, after, features, groups, 1);                                                               \
        NAME(infer##layout)(u, s, undo, factor, scale, shift, level, after, z, offset, slope, groups, images,          \
                            features, positions, threads);                                                             \
    }                                                                                                                  \
    void NAME(center##layout)(const MAP *u, MAP *z, float *level, float slope, long groups, long images,               \
                              long features, long positions, int threads) {                                            \
        float ones[features], zeros[features];                                                                         \
        for (long c = 0; c < features; c++) ones[c] = 1, zeros[c] = 0;                                                 \
        NAME(infer##layout)(u, NULL, NULL, ones, ones, zeros, zeros, zeros, z, level, slope, groups, images, features, \
                            positions, threads);                                                                       \
    }

CALLED()
CALLED(_last)
#undef CALLED
