/* What Cerberus needs of maps of one type, MAP: its input, and centering, ReLU and 2x2 maxima in one. `places` says for
 * each maximum which of its four pixels it is from, in row-major order, and at least NOWHERE where the ReLU is off. */

#ifndef NOWHERE
#define NOWHERE 4
/* So many pairs of channels-last pixels are worked on at a time that their scratch stays in the nearest cache. */
#define PAIRS(features) (1 + 512 / (features))
/* Features in whole vectors, where what lies behind the last of them does no harm. */
#define VECTORS(c) for (long c##_ = 0; c##_ < features; c##_ += LANES) for (long c = c##_; c < c##_ + LANES; c++)
#endif

/* The maxima of a plane and their places, and the sum of all that it has. */
static inline float NAME(halve_plane)(const MAP *restrict u, MAP *restrict z, unsigned char *restrict places,
                                      long height, long width) {
    float total = 0;
    for (long p = 0; p < height * width; p++) total += LOAD(u[p]);
    for (long y = 0; y < height / 2; y++) {
        const MAP *up = u + 2 * y * width, *down = up + width;
        MAP *out = z + y * (width / 2);
        if (!places)
            for (long x = 0; x < width / 2; x++) {
                const float a = LOAD(up[2 * x]), b = LOAD(up[2 * x + 1]), c = LOAD(down[2 * x]), d = LOAD(down[2 * x + 1]);
                const float left = c > a ? c : a, right = d > b ? d : b;
                out[x] = STORE(right > left ? right : left);
            }
        else
            for (long x = 0; x < width / 2; x++) {
                const float a = LOAD(up[2 * x]), b = LOAD(up[2 * x + 1]), c = LOAD(down[2 * x]), d = LOAD(down[2 * x + 1]);
                const float left = c > a ? c : a, right = d > b ? d : b;
                const int from_left = c > a ? 2 : 0, from_right = d > b ? 3 : 1;
                out[x] = STORE(right > left ? right : left);
                places[y * (width / 2) + x] = right > left ? from_right : from_left;
            }
    }
    return total;
}

/* z = relu(max u - level), and the level of each group. */
void NAME(halve)(const MAP *restrict u, MAP *restrict z, unsigned char *restrict places, float *restrict level,
                 long groups, long images, long features, long height, long width, int threads) {
    const long large = height * width, small = (height / 2) * (width / 2);
    OVER_IMAGES for (long n = 0; n < images; n++) {
        float sums[features];
        WITHIN_IMAGE for (long c = 0; c < features; c++) {
            const long i = n * features + c;
            sums[c] = NAME(halve_plane)(u + i * large, z + i * small, places ? places + i * small : NULL, height, width);
        }
        group_levels(sums, level + n * groups, features, groups, large);
        WITHIN_IMAGE for (long c = 0; c < features; c++) {
            const long first = (n * features + c) * small;
            const float floor = level[n * groups + c / (features / groups)];
            for (long p = first; p < first + small; p++) {
                const float q = LOAD(z[p]) - floor;
                if (places) places[p] |= NOWHERE & -!(q > 0);
                z[p] = STORE(q < 0 ? 0 : q);
            }
        }
    }
}

/* du = constant + dz at the place of the maximum, with the constant of a group from what the level had of z, and from
 * its own gradient. */
void NAME(backward_halve)(const MAP *restrict dz, const unsigned char *restrict places,
                          const float *restrict d_level, MAP *restrict du, long groups, long images, long features,
                          long height, long width, int threads) {
    const long large = height * width, small = (height / 2) * (width / 2), run = features / groups;
    OVER_IMAGES for (long n = 0; n < images; n++) {
        float sums[features], constant[groups];
        WITHIN_IMAGE for (long c = 0; c < features; c++) {
            const long first = (n * features + c) * small;
            float total = 0;
            for (long p = first; p < first + small; p++) total += where(places[p] < NOWHERE, LOAD(dz[p]));
            sums[c] = total;
        }
        group_levels(sums, constant, features, groups, large);
        for (long g = 0; g < groups; g++)
            constant[g] = (d_level ? d_level[n * groups + g] / (run * large) : 0) - constant[g];
        WITHIN_IMAGE for (long c = 0; c < features; c++) {
            const long i = n * features + c;
            const float e = constant[c / run];
            for (long y = 0; y < height / 2; y++) {
                const MAP *d = dz + i * small + y * (width / 2);
                const unsigned char *place = places + i * small + y * (width / 2);
                MAP *up = du + i * large + 2 * y * width, *down = up + width;
                for (long x = 0; x < width / 2; x++) {
                    const float g = LOAD(d[x]);
                    up[2 * x] = STORE(e + where(place[x] == 0, g));
                    up[2 * x + 1] = STORE(e + where(place[x] == 1, g));
                }
                for (long x = 0; x < width / 2; x++) {
                    const float g = LOAD(d[x]);
                    down[2 * x] = STORE(e + where(place[x] == 2, g));
                    down[2 * x + 1] = STORE(e + where(place[x] == 3, g));
                }
                if (width % 2) up[width - 1] = down[width - 1] = STORE(e);
            }
            if (height % 2)
                for (long x = 0; x < width; x++) du[i * large + (height - 1) * width + x] = STORE(e);
        }
    }
}

/* The same for channels-last maps. Rows are first compared as they lie, then their pixels in pairs, in scratch that has
 * room for a vector more. */
static inline void NAME(halve_pairs)(const MAP *restrict up, const MAP *restrict down, MAP *restrict z,
                                     unsigned char *restrict places, float *restrict sums, long features, long pairs) {
    const long size = PAIRS(features) * features;
    float tall[2 * size + LANES], both_rows[2 * size + LANES], top[size + LANES];
    int lower[2 * size + LANES], from[size + LANES];
    for (long j = 0; j < 2 * pairs * features; j++) {
        const float a = LOAD(up[j]), b = LOAD(down[j]);
        tall[j] = b > a ? b : a;
        lower[j] = b > a ? 2 : 0;
        both_rows[j] = a + b;
    }
    for (long x = 0; x < pairs; x++) {
        const long left = 2 * x * features, right = left + features, out = x * features;
        VECTORS(c) {
            const float a = tall[left + c], b = tall[right + c];
            const int from_left = lower[left + c], from_right = lower[right + c] + 1, is_right = -(b > a);
            top[out + c] = b > a ? b : a;
            from[out + c] = (from_right & is_right) | (from_left & ~is_right);
            sums[c] += both_rows[left + c] + both_rows[right + c];
        }
    }
    for (long j = 0; j < pairs * features; j++) z[j] = STORE(top[j]);
    if (places)
        for (long j = 0; j < pairs * features; j++) places[j] = from[j];
}

#define SEGMENTS(x) for (long x = 0, pairs = PAIRS(features); x < width / 2; x += pairs)
#define SEGMENT(x) (width / 2 - x < pairs ? width / 2 - x : pairs)

void NAME(halve_last)(const MAP *restrict u, MAP *restrict z, unsigned char *restrict places, float *restrict level,
                      long groups, long images, long features, long height, long width, int threads) {
    const long large = height * width * features, row = (width / 2) * features, small = (height / 2) * row;
    const long pixels = pixels_at_a_time(features), tile = pixels * features;
    PARALLEL for (long n = 0; n < images; n++) {
        const MAP *x = u + n * large;
        MAP *out = z + n * small;
        unsigned char *place = places ? places + n * small : NULL;
        float sums[features + LANES], floor[features], floors[tile];
        for (long c = 0; c < features + LANES; c++) sums[c] = 0;
        for (long y = 0; y < height / 2; y++) {
            const MAP *up = x + 2 * y * width * features, *down = up + width * features;
            SEGMENTS(s)
            NAME(halve_pairs)(up + 2 * s * features, down + 2 * s * features, out + y * row + s * features,
                              place ? place + y * row + s * features : NULL, sums, features, SEGMENT(s));
            if (width % 2)
                for (long c = 0; c < features; c++)
                    sums[c] += LOAD(up[(width - 1) * features + c]) + LOAD(down[(width - 1) * features + c]);
        }
        if (height % 2)
            for (long p = (height - 1) * width; p < height * width; p++)
                for (long c = 0; c < features; c++) sums[c] += LOAD(x[p * features + c]);
        group_levels(sums, level + n * groups, features, groups, height * width);
        for (long c = 0; c < features; c++) floor[c] = level[n * groups + c / (features / groups)];
        repeat(floor, floors, features, pixels);
        for (long start = 0; start < small; start += tile)
            for (long j = 0, end = small - start < tile ? small - start : tile; j < end; j++) {
                const float q = LOAD(out[start + j]) - floors[j];
                if (place) place[start + j] |= NOWHERE & -!(q > 0);
                out[start + j] = STORE(q < 0 ? 0 : q);
            }
    }
}

/* One row of du from one of dz, for some pairs of pixels: the row above has the places 0 and 1, the one below 2 and 3. */
static inline void NAME(spread_pairs)(const float *restrict dz, const int *restrict places,
                                      const float *restrict constant, MAP *restrict du, int place, long features,
                                      long pairs) {
    float wide[2 * PAIRS(features) * features + LANES];
    for (long x = 0; x < pairs; x++) {
        const long left = 2 * x * features, right = left + features, in = x * features;
        VECTORS(c) wide[left + c] = constant[c] + where(places[in + c] == place, dz[in + c]);
        VECTORS(c) wide[right + c] = constant[c] + where(places[in + c] == place + 1, dz[in + c]);
    }
    for (long j = 0; j < 2 * pairs * features; j++) du[j] = STORE(wide[j]);
}

void NAME(backward_halve_last)(const MAP *restrict dz, const unsigned char *restrict places,
                               const float *restrict d_level, MAP *restrict du, long groups, long images,
                               long features, long height, long width, int threads) {
    const long large = height * width * features, row = (width / 2) * features, small = (height / 2) * row;
    const long pixels = pixels_at_a_time(features), tile = pixels * features, run = features / groups;
    PARALLEL for (long n = 0; n < images; n++) {
        const MAP *d = dz + n * small;
        const unsigned char *place = places + n * small;
        MAP *out = du + n * large;
        float sums[tile], level[groups], mean[features], constant[features + LANES];
        float given[PAIRS(features) * features + LANES];
        int from[PAIRS(features) * features + LANES];
        for (long j = 0; j < tile; j++) sums[j] = 0;
        for (long start = 0; start < small; start += tile)
            for (long j = 0, end = small - start < tile ? small - start : tile; j < end; j++)
                sums[j] += where(place[start + j] < NOWHERE, LOAD(d[start + j]));
        gather(sums, mean, features, pixels, 1);
        group_levels(mean, level, features, groups, height * width);
        for (long c = 0; c < features + LANES; c++) {
            const long g = c < features ? c / run : 0;
            constant[c] = (d_level ? d_level[n * groups + g] / (run * height * width) : 0) - level[g];
        }
        for (long y = 0; y < height / 2; y++) {
            MAP *up = out + 2 * y * width * features, *down = up + width * features;
            SEGMENTS(s) {
                const long count = SEGMENT(s), first = y * row + s * features;
                for (long j = 0; j < count * features; j++) given[j] = LOAD(d[first + j]);
                for (long j = 0; j < count * features; j++) from[j] = place[first + j];
                NAME(spread_pairs)(given, from, constant, up + 2 * s * features, 0, features, count);
                NAME(spread_pairs)(given, from, constant, down + 2 * s * features, 2, features, count);
            }
            if (width % 2)
                for (long c = 0; c < features; c++)
                    up[(width - 1) * features + c] = down[(width - 1) * features + c] = STORE(constant[c]);
        }
        if (height % 2)
            for (long p = (height - 1) * width; p < height * width; p++)
                for (long c = 0; c < features; c++) out[p * features + c] = STORE(constant[c]);
    }
}

#undef SEGMENTS
#undef SEGMENT

/* Each pixel of an image (3 colors, in float32) less the log of its mean color, o = -log mean exp(-x), and beside it
 * the mean of what is left, which is the mean of x less o: six features. */
void NAME(join)(const float *restrict images, MAP *restrict joined, float *restrict offset, long count, long positions,
                int threads) {
    PARALLEL for (long i = 0; i < 3 * count; i++) {
        const float *x = images + i * positions;
        MAP *out = joined + 2 * i * positions;
        float least = INFINITY, total = 0, sum = 0;
        for (long p = 0; p < positions; p++) least = x[p] < least ? x[p] : least;
        for (long p = 0; p < positions; p++) {
            total += x[p];
            sum += exponential(least - x[p]);
        }
        const float o = least - logf(sum / positions), average = total / positions - o;
        for (long p = 0; p < positions; p++) out[p] = STORE(x[p] - o);
        for (long p = 0; p < positions; p++) out[positions + p] = STORE(average);
        offset[i] = o;
    }
}

/* The same for channels-last images. Three vectors hold whole pixels. */
#define COLORS (3 * LANES)
#define STRETCHES for (long start = 0; start < size; start += COLORS)
#define STRETCH(j) for (long j = 0, end = size - start < COLORS ? size - start : COLORS; j < end; j++)

void NAME(join_last)(const float *restrict images, MAP *restrict joined, float *restrict offset, long count,
                     long positions, int threads) {
    const long size = 3 * positions;
    PARALLEL for (long n = 0; n < count; n++) {
        const float *x = images + n * size;
        MAP *out = joined + 2 * n * size;
        float lows[COLORS], totals[COLORS], sums[COLORS], least[3], total[3], sum[3], average[3];
        for (long j = 0; j < COLORS; j++) lows[j] = INFINITY, totals[j] = sums[j] = 0;
        STRETCHES STRETCH(j) lows[j] = x[start + j] < lows[j] ? x[start + j] : lows[j];
        for (long c = 0; c < 3; c++) {
            least[c] = lows[c];
            for (long j = c; j < COLORS; j += 3) least[c] = lows[j] < least[c] ? lows[j] : least[c];
        }
        repeat(least, lows, 3, LANES);
        STRETCHES STRETCH(j) {
            totals[j] += x[start + j];
            sums[j] += exponential(lows[j] - x[start + j]);
        }
        gather(totals, total, 3, LANES, positions);
        gather(sums, sum, 3, LANES, positions);
        for (long c = 0; c < 3; c++) {
            offset[3 * n + c] = least[c] - logf(sum[c]);
            average[c] = total[c] - offset[3 * n + c];
        }
        repeat(offset + 3 * n, lows, 3, LANES);
        repeat(average, totals, 3, LANES);
        STRETCHES STRETCH(j) {
            out[2 * (start + j)] = STORE(x[start + j] - lows[j]);
            out[2 * (start + j) + 1] = STORE(totals[j]);
        }
    }
}

#undef COLORS
#undef STRETCHES
#undef STRETCH
