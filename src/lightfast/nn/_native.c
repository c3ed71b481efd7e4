/* The two passes over the map of `norm_act`, forward and backward, for float32 maps that lie plane by plane: a plane is
 * one feature of one image, `positions` numbers in a row. The formulas are in _norm_act.py. */

#define PLANES _Pragma("omp parallel for schedule(static) num_threads(threads)")

/* Mean and variance of each plane, and the mean of the shortcut's. The second reading of a plane comes from the cache. */
void moments(const float *restrict u, const float *restrict s, float *restrict mean, float *restrict var,
             float *restrict s_mean, long planes, long positions, int threads) {
    PLANES for (long i = 0; i < planes; i++) {
        const float *x = u + i * positions;
        float total = 0, spread = 0;
        for (long p = 0; p < positions; p++) total += x[p];
        const float middle = total / positions;
        for (long p = 0; p < positions; p++) spread += (x[p] - middle) * (x[p] - middle);
        mean[i] = middle;
        var[i] = spread / positions;
        if (s) {
            const float *y = s + i * positions;
            float other = 0;
            for (long p = 0; p < positions; p++) other += y[p];
            s_mean[i] = other / positions;
        }
    }
}

/* z = act(scale u + shift + s) */
void apply(const float *restrict u, const float *restrict s, const float *restrict scale, const float *restrict shift,
           float *restrict z, long planes, long features, long positions, float slope, int threads) {
    PLANES for (long i = 0; i < planes; i++) {
        const float a = scale[i % features], d = shift[i];
        const float *x = u + i * positions, *y = s + i * positions;
        float *out = z + i * positions;
        if (s)
            for (long p = 0; p < positions; p++) {
                const float q = a * x[p] + d + y[p];
                out[p] = q > 0 ? q : slope * q;
            }
        else
            for (long p = 0; p < positions; p++) {
                const float q = a * x[p] + d;
                out[p] = q > 0 ? q : slope * q;
            }
    }
}

/* The means of dq = dz act' and of dq (u - mean). */
void backward_moments(const float *restrict dz, const float *restrict z, const float *restrict u,
                      const float *restrict mean, float *restrict first, float *restrict second, long planes,
                      long positions, float slope, int threads) {
    PLANES for (long i = 0; i < planes; i++) {
        const float *g = dz + i * positions, *y = z + i * positions, *x = u + i * positions;
        const float middle = mean[i];
        float a = 0, b = 0;
        for (long p = 0; p < positions; p++) {
            const float dq = y[p] > 0 ? g[p] : slope * g[p];
            a += dq;
            b += dq * (x[p] - middle);
        }
        first[i] = a / positions;
        second[i] = b / positions;
    }
}

/* du = scale dq - slant u + constant, ds = dq + centring */
void backward_apply(const float *restrict dz, const float *restrict z, const float *restrict u,
                    const float *restrict scale, const float *restrict slant, const float *restrict constant,
                    const float *restrict centring, float *restrict du, float *restrict ds, long planes, long features,
                    long positions, float slope, int threads) {
    PLANES for (long i = 0; i < planes; i++) {
        const float a = scale[i % features], b = slant[i % features], c = constant[i], e = centring[i];
        const float *g = dz + i * positions, *y = z + i * positions, *x = u + i * positions;
        float *out = du + i * positions, *side = ds + i * positions;
        if (ds)
            for (long p = 0; p < positions; p++) {
                const float dq = y[p] > 0 ? g[p] : slope * g[p];
                out[p] = a * dq - b * x[p] + c;
                side[p] = dq + e;
            }
        else
            for (long p = 0; p < positions; p++) {
                const float dq = y[p] > 0 ? g[p] : slope * g[p];
                out[p] = a * dq - b * x[p] + c;
            }
    }
}
