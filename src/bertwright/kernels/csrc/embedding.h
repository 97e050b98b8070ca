// dropout(LayerNorm(word + position + token type)) and the gradients of the three tables.
#pragma once
#include "layer_norm.h"
#include <array>

// The table and the tokens' ids of words, of positions or of token types.
template <class T> struct Lookup {
    const T* table;
    const int64_t* ids;
};
template <class T> using Lookups = std::array<Lookup<T>, 3>;

template <class T> INLINE void embedding_sum(const Lookups<T>& lookups, int64_t token, int64_t columns, float* s) {
    const T* a = lookups[0].table + lookups[0].ids[token] * columns;
    const T* b = lookups[1].table + lookups[1].ids[token] * columns;
    const T* d = lookups[2].table + lookups[2].ids[token] * columns;
    for_each_vector(columns,
                    [&](int64_t c, auto load, auto store) { store(s + c, load(a + c) + load(b + c) + load(d + c)); });
}

template <class T>
static void embed_norm(const Lookups<T>& lookups, const float* weight, const float* norm_bias, float eps,
                       const MaskKey& key, Moments* moments, T* y, int64_t rows, int64_t columns, int64_t threads) {
    const PerThread<float> sums(columns, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float* s = sums.mine();
        embedding_sum(lookups, r, columns, s);
        const Moments m = moments[r] = row_moments(s, columns, eps);
        const RowMask mask(key, key.token_index(r));
        for_each_vector(columns, [&](int64_t c, auto load, auto store) {
            const FloatVec v = (load(s + c) - m.mean) * m.rstd * load(weight + c) + load(norm_bias + c);
            store(y + r * columns + c, key.threshold ? mask.apply(v, c) : v);
        });
    }
}

// Looks the sum up again. dz, rows × columns, becomes its gradient; dsums, 2 × columns, the gradients of the norm's
// weight and bias.
template <class T>
static void embed_norm_backward(const Lookups<T>& lookups, const Moments* moments, const float* weight, const T* dy,
                                const MaskKey& key, float* dz, float* dsums, int64_t rows, int64_t columns,
                                int64_t threads) {
    const RowReduction reduction(rows, columns, 2);
    const PerThread<float> sums(columns, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t block = 0; block < reduction.blocks; block++) {
        reduction.zero(block);
        float* s = sums.mine();
        for (int64_t r = reduction.begin(block); r < reduction.end(block); r++) {
            embedding_sum(lookups, r, columns, s);
            const Moments m = moments[r];
            float* d = dz + r * columns;
            const RowMask mask(key, key.token_index(r));
            for_each_vector(columns, [&](int64_t c, auto load, auto store) {
                const FloatVec v = load(dy + r * columns + c);
                store(d + c, key.threshold ? mask.apply(v, c) : v);
            });
            const GradientMeans means = gradient_means(
                columns, m, weight, reduction.sums(block, 0), reduction.sums(block, 1),
                [&](int64_t c, auto load) { return load(d + c); }, [&](int64_t c, auto load) { return load(s + c); });
            for_each_vector(columns, [&](int64_t c, auto load, auto store) {
                const FloatVec zn = (load(s + c) - m.mean) * m.rstd;
                store(d + c, (load(d + c) * load(weight + c) - means.g - zn * means.gz) * m.rstd);
            });
        }
    }
    for (int64_t kind = 0; kind < 2; kind++) reduction.finish(dsums + kind * columns, kind, threads);
}

// table[ids[r]] += dz[r]. Each thread owns some columns and adds all rows in order: no atomics, always the same bits.
static void add_rows_in_order(const float* dz, const int64_t* ids, float* table, int64_t rows, int64_t columns,
                              int64_t threads) {
    constexpr int64_t LINE_FLOATS = CACHE_LINE / sizeof(float);  // no two threads write one cache line
    const int64_t lines = (columns + LINE_FLOATS - 1) / LINE_FLOATS;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t share = 0; share < threads; share++) {
        const int64_t first = lines * share / threads * LINE_FLOATS;
        const int64_t last = std::min(columns, lines * (share + 1) / threads * LINE_FLOATS);
        for (int64_t r = 0; r < rows && first < last; r++) {
            const float* from = dz + r * columns + first;
            float* to = table + ids[r] * columns + first;
            for_each_vector(last - first,
                            [&](int64_t c, auto load, auto store) { store(to + c, load(to + c) + load(from + c)); });
        }
    }
}
