// Layer normalisation with what stands before it (bias, dropout, residual) or after it (dropout of the embeddings).
#pragma once
#include "dropout.h"
#include "sums.h"

struct Moments { float mean, rstd; };

// Mean and 1 / standard deviation of a row that lies in the cache: two passes, so that a large mean costs no precision.
INLINE Moments moments(const float* z, int64_t columns, float eps) {
    Lanes total{};
    sweep(columns, [&](int64_t c, auto load, auto) { total += load(z + c); });
    float mean = sum(total) / columns;
    Lanes squares{};
    int64_t c = 0;
    for (; c + W <= columns; c += W) { Lanes d = load(z + c) - mean; squares += d * d; }
    float rest = 0;
    for (; c < columns; c++) rest += (z[c] - mean) * (z[c] - mean);
    return {mean, 1.0f / std::sqrt((sum(squares) + rest) / columns + eps)};
}

// z = residual + dropout(x + bias), y = LayerNorm(z); z and the moments are kept for the backward pass.
template <class T>
static void add_dropout_norm(const T* x, const float* bias, const T* residual, const float* weight, const float* norm_bias,
                             float eps, const Draw& draw, T* z, Moments* kept, T* y,
                             int64_t rows, int64_t columns, int64_t threads) {
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> row_sum(columns + W);
        float* s = row_sum.data();
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            const T *xr = x + r * columns, *rr = residual + r * columns;
            T *zr = z + r * columns, *yr = y + r * columns;
            Row mask(draw, draw.place(r));
            auto add = [&](bool drops) {
                sweep(columns, [&](int64_t c, auto load, auto store) {
                    Lanes v = load(xr + c) + load(bias + c);
                    if (drops) v = mask.apply(v, c);
                    v += load(rr + c);
                    store(s + c, v);
                    store(zr + c, v);
                });
            };
            if (draw.threshold) add(true); else add(false);
            Moments m = kept[r] = moments(s, columns, eps);
            sweep(columns, [&](int64_t c, auto load, auto store) {
                store(yr + c, (load(s + c) - m.mean) * m.rstd * load(weight + c) + load(norm_bias + c));
            });
        }
    }
}

// What LayerNorm's backward pass subtracts from each row's gradient: the means of g and of g · ẑ, g = dy · weight.
struct Means { float g, gz; };

// dz = rstd (g - mean(g) - ẑ mean(g ẑ)). `gradient(c, load)` and `value(c, load)` give dy and z of the row.
template <class G, class V>
INLINE Means norm_means(int64_t columns, Moments m, const float* weight, float* dweight, float* dbias, G gradient, V value) {
    Lanes sum_g{}, sum_gz{};
    sweep(columns, [&](int64_t c, auto load, auto store) {
        Lanes dy = gradient(c, load), z = (value(c, load) - m.mean) * m.rstd;
        Lanes g = dy * load(weight + c);
        sum_g += g;  // beyond the ragged end dy is 0
        sum_gz += g * z;
        store(dweight + c, load(dweight + c) + dy * z);
        store(dbias + c, load(dbias + c) + dy);
    });
    return {sum(sum_g) / columns, sum(sum_gz) / columns};
}

// Gradients of all that add_dropout_norm was given; dx may be null where nothing is dropped, for then it equals dresidual.
template <class T>
static void add_dropout_norm_backward(const T* z, const Moments* kept, const float* weight, const T* dy, const Draw& draw,
                                      T* dx, T* dresidual, float* dsums, int64_t rows, int64_t columns, int64_t threads) {
    Sums sums(rows, columns, 3);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t block = 0; block < sums.blocks; block++) {
        float *dbias = sums.of(block, 0), *dweight = sums.of(block, 1), *dnorm_bias = sums.of(block, 2);
        for (int64_t r = sums.begin(block); r < sums.end(block); r++) {
            const T *zr = z + r * columns, *dyr = dy + r * columns;
            T *dxr = dx + r * columns, *drr = dresidual + r * columns;
            Moments m = kept[r];
            Means means = norm_means(columns, m, weight, dweight, dnorm_bias,
                [&](int64_t c, auto load) { return load(dyr + c); }, [&](int64_t c, auto load) { return load(zr + c); });
            Row mask(draw, draw.place(r));
            auto spread = [&](bool drops) {
                sweep(columns, [&](int64_t c, auto load, auto store) {
                    Lanes zn = (load(zr + c) - m.mean) * m.rstd;
                    Lanes dz = (load(dyr + c) * load(weight + c) - means.g - zn * means.gz) * m.rstd;
                    store(drr + c, dz);
                    if (drops) { dz = mask.apply(dz, c); store(dxr + c, dz); }
                    store(dbias + c, load(dbias + c) + dz);
                });
            };
            if (draw.threshold) spread(true); else spread(false);
        }
    }
    for (int64_t kind = 0; kind < 3; kind++) sums.into(dsums + kind * columns, kind, threads);
}
