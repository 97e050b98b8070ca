// Layer normalization, fused with the bias, dropout and residual before it.
#pragma once
#include "dropout.h"
#include "row_reduction.h"

struct Moments {
    float mean, rstd;
};

INLINE float row_variance(const float* z, int64_t columns, float mean) {
    FloatVec squares{};
    int64_t c = 0;
    for (; c + W <= columns; c += W) {
        const FloatVec d = load(z + c) - mean;
        squares += d * d;
    }
    float rest = 0;
    for (; c < columns; c++) rest += (z[c] - mean) * (z[c] - mean);
    return (reduce_add(squares) + rest) / columns;
}

// Mean and 1 / standard deviation of a row in the cache, in two passes, so that a large mean costs no precision.
INLINE Moments row_moments(const float* z, int64_t columns, float eps) {
    FloatVec total{};
    for_each_vector(columns, [&](int64_t c, auto load, auto) { total += load(z + c); });
    float mean = reduce_add(total) / columns, variance = row_variance(z, columns, mean);
    constexpr float LARGE = 1024;  // (32 standard deviations)²
    if (mean * mean > LARGE * variance) {  // the rounding error of such a mean matters
        float error = 0;
        for (int64_t c = 0; c < columns; c++) error += z[c] - mean;
        mean += error / columns;
        variance = row_variance(z, columns, mean);
    }
    return {mean, 1.0f / std::sqrt(variance + eps)};
}

// z = residual + dropout(x + bias), y = LayerNorm(z). `z` and `moments`, for the backward pass, may both be null.
template <class T>
static void add_dropout_norm(const T* x, const float* bias, const T* residual, const float* weight,
                             const float* norm_bias, float eps, const MaskKey& key, T* z, Moments* moments, T* y,
                             int64_t rows, int64_t columns, int64_t threads) {
    const PerThread<float> sums(columns, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float* s = sums.mine();
        const T *xr = x + r * columns, *rr = residual + r * columns;
        T *zr = z ? z + r * columns : nullptr, *yr = y + r * columns;
        const RowMask mask(key, key.token_index(r));
        const auto add = [&](auto drops, auto saves) {
            for_each_vector(columns, [&](int64_t c, auto load, auto store) {
                FloatVec v = load(xr + c) + load(bias + c);
                if constexpr (drops) v = mask.apply(v, c);
                v += load(rr + c);
                store(s + c, v);
                if constexpr (saves) store(zr + c, v);
            });
        };
        const auto add_saving = [&](auto saves) {
            if (key.threshold) add(std::true_type{}, saves);
            else add(std::false_type{}, saves);
        };
        if (z) add_saving(std::true_type{});
        else add_saving(std::false_type{});
        const Moments m = row_moments(s, columns, eps);
        if (moments) moments[r] = m;
        for_each_vector(columns, [&](int64_t c, auto load, auto store) {
            store(yr + c, (load(s + c) - m.mean) * m.rstd * load(weight + c) + load(norm_bias + c));
        });
    }
}

// The means of g and of g · ẑ over a row, for g = dy · weight. The gradient is dz = rstd (g - mean(g) - ẑ mean(g ẑ)).
struct GradientMeans {
    float g, gz;
};

// `load_dy(c, load)` and `load_z(c, load)` read the row; dweight and dbias are added to.
template <class G, class Z>
INLINE GradientMeans gradient_means(int64_t columns, Moments m, const float* weight, float* dweight, float* dbias,
                                    G load_dy, Z load_z) {
    FloatVec sum_g{}, sum_gz{};
    for_each_vector(columns, [&](int64_t c, auto load, auto store) {
        const FloatVec dy = load_dy(c, load), z = (load_z(c, load) - m.mean) * m.rstd;
        const FloatVec g = dy * load(weight + c);  // 0 beyond the ragged end, because dy is
        sum_g += g;
        sum_gz += g * z;
        store(dweight + c, load(dweight + c) + dy * z);
        store(dbias + c, load(dbias + c) + dy);
    });
    return {reduce_add(sum_g) / columns, reduce_add(sum_gz) / columns};
}

// Gradients of all inputs of add_dropout_norm. `dsums`: 3 × columns, of bias, weight and norm_bias. Without dropout dx
// is dresidual and is not written.
template <class T>
static void add_dropout_norm_backward(const T* z, const Moments* moments, const float* weight, const T* dy,
                                      const MaskKey& key, T* dx, T* dresidual, float* dsums, int64_t rows,
                                      int64_t columns, int64_t threads) {
    const RowReduction reduction(rows, columns, 3);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t block = 0; block < reduction.blocks; block++) {
        reduction.zero(block);
        float* dbias = reduction.sums(block, 0);
        float *dweight = reduction.sums(block, 1), *dnorm_bias = reduction.sums(block, 2);
        for (int64_t r = reduction.begin(block); r < reduction.end(block); r++) {
            const T *zr = z + r * columns, *dyr = dy + r * columns;
            T *dxr = dx + r * columns, *drr = dresidual + r * columns;
            const Moments m = moments[r];
            const GradientMeans means = gradient_means(
                columns, m, weight, dweight, dnorm_bias, [&](int64_t c, auto load) { return load(dyr + c); },
                [&](int64_t c, auto load) { return load(zr + c); });
            const RowMask mask(key, key.token_index(r));
            const auto write = [&](auto drops) {
                for_each_vector(columns, [&](int64_t c, auto load, auto store) {
                    const FloatVec zn = (load(zr + c) - m.mean) * m.rstd;
                    FloatVec dz = (load(dyr + c) * load(weight + c) - means.g - zn * means.gz) * m.rstd;
                    store(drr + c, dz);
                    if constexpr (drops) {
                        dz = mask.apply(dz, c);
                        store(dxr + c, dz);
                    }
                    store(dbias + c, load(dbias + c) + dz);
                });
            };
            if (key.threshold) write(std::true_type{});
            else write(std::false_type{});
        }
    }
    for (int64_t kind = 0; kind < 3; kind++) reduction.finish(dsums + kind * columns, kind, threads);
}
