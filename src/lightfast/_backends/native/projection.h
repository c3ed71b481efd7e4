/* The projection of a weight onto the constraint, from one type to another: from each block of weights that meets it
 * together, its mean less what the constraint wants. A block is read twice, the second time from the cache. With `share`
 * 0 the wanted sums are 0, which is the projection of a gradient. */

/* A weight that lies (outputs, pieces, groups, run): a block is an output and a group, and wants `share` in its own. */
void NAME(project_rows)(const FROM *restrict weight, TO *restrict projected, float share, long groups, long outputs,
                        long pieces, long run, int threads) {
    const long row = groups * run, size = pieces * row;
    prefer_huge_pages(projected, outputs * size * sizeof(TO));
    PARALLEL for (long o = 0; o < outputs; o++)
        for (long g = 0; g < groups; g++) {
            const FROM *w = weight + o * size + g * run;
            TO *out = projected + o * size + g * run;
            float total = 0;
            for (long p = 0; p < pieces; p++)
                for (long i = 0; i < run; i++) total += LOAD(w[p * row + i]);
            const float wanted = g == o / (outputs / groups) ? share : 0, excess = (total - wanted) / (pieces * run);
            for (long p = 0; p < pieces; p++)
                for (long i = 0; i < run; i++) out[p * row + i] = STORE(LOAD(w[p * row + i]) - excess);
        }
}

/* A weight that lies (groups, rows, outputs, taps), or (groups, rows, taps, outputs) where `last`: a block is a group,
 * an output and a phase of taps, of which each tap `t` of `phase[t]` wants `share[phase]` and has `count[phase]` like
 * it. Outputs begin again with the first group's after `features` of them. The work is cut into some outputs of a group,
 * so that all their rows stay in the cache. */
void NAME(project_columns)(const FROM *restrict weight, TO *restrict projected, const int *restrict phase,
                           const float *restrict share, const float *restrict count, long groups, long rows,
                           long outputs, long taps, long phases, long features, long last, int threads) {
    const long columns = outputs * taps, pieces = last ? taps : 1, width = last ? 1 : taps;
    const long fit = (1 << 18) / rows, most = fit < MOST_COLUMNS ? fit : MOST_COLUMNS, least = last ? 64 : 16 / width + 1;
    const long tile = most / taps > least ? most / taps : least, tiles = (outputs + tile - 1) / tile;
    prefer_huge_pages(projected, groups * rows * columns * sizeof(TO));
    PARALLEL for (long part = 0; part < groups * tiles; part++) {
        const long g = part / tiles, first = part % tiles * tile, end = first + tile < outputs ? first + tile : outputs;
        const long begin = g * rows * columns + first * width, length = (end - first) * width;
        float sums[tile * taps], excess[phases];
        for (long j = 0; j < tile * taps; j++) sums[j] = 0;
        for (long r = 0; r < rows; r++)
            for (long p = 0; p < pieces; p++) {
                const FROM *w = weight + begin + r * columns + p * outputs;
                for (long j = 0; j < length; j++) sums[p * length + j] += LOAD(w[j]);
            }
        for (long o = 0; o < end - first; o++) {
            const long step = last ? length : 1;
            const int own = (first + o) % features / (features / groups) == g;
            for (long p = 0; p < phases; p++) excess[p] = own ? -share[p] : 0;
            for (long t = 0; t < taps; t++) excess[phase[t]] += sums[o * width + t * step];
            for (long t = 0; t < taps; t++) sums[o * width + t * step] = excess[phase[t]] / (rows * count[phase[t]]);
        }
        for (long r = 0; r < rows; r++)
            for (long p = 0; p < pieces; p++) {
                const FROM *w = weight + begin + r * columns + p * outputs;
                TO *out = projected + begin + r * columns + p * outputs;
                for (long j = 0; j < length; j++) out[j] = STORE(LOAD(w[j]) - sums[p * length + j]);
            }
    }
}
