// dropout(LayerNorm(word + position + token type)) and the gradients of the three tables.
#pragma once
#include "norm.h"

template <class T> struct Table { const T* rows; const int64_t* ids; };

template <class T>
INLINE void embedding_sum(const Table<T> (&tables)[3], int64_t token, int64_t columns, float* s) {
    const T* a = tables[0].rows + tables[0].ids[token] * columns;
    const T* b = tables[1].rows + tables[1].ids[token] * columns;
    const T* d = tables[2].rows + tables[2].ids[token] * columns;
    sweep(columns, [&](int64_t c, auto load, auto store) { store(s + c, load(a + c) + load(b + c) + load(d + c)); });
}

template <class T>
static void embed_norm(const Table<T> (&tables)[3], const float* weight, const float* norm_bias, float eps, const Draw& draw,
                       Moments* kept, T* y, int64_t rows, int64_t columns, int64_t threads) {
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> row_sum(columns + W);
        float* s = row_sum.data();
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            embedding_sum(tables, r, columns, s);
            Moments m = kept[r] = moments(s, columns, eps);
            Row mask(draw, draw.place(r));
            sweep(columns, [&](int64_t c, auto load, auto store) {
                Lanes v = (load(s + c) - m.mean) * m.rstd * load(weight + c) + load(norm_bias + c);
                store(y + r * columns + c, draw.threshold ? mask.apply(v, c) : v);
            });
        }
    }
}

// The sum is made again from the tables rather than kept. dz becomes its gradient, rows × columns; dsums gets the
// gradients of the norm's weight and bias.
template <class T>
static void embed_norm_backward(const Table<T> (&tables)[3], const Moments* kept, const float* weight, const T* dy,
                                const Draw& draw, float* dz, float* dsums, int64_t rows, int64_t columns, int64_t threads) {
    Sums sums(rows, columns, 2);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t block = 0; block < sums.blocks; block++) {
        std::vector<float> row_sum(columns + W);
        float* s = row_sum.data();
        for (int64_t r = sums.begin(block); r < sums.end(block); r++) {
            embedding_sum(tables, r, columns, s);
            Moments m = kept[r];
            float* d = dz + r * columns;
            Row mask(draw, draw.place(r));
            sweep(columns, [&](int64_t c, auto load, auto store) {
                Lanes v = load(dy + r * columns + c);
                store(d + c, draw.threshold ? mask.apply(v, c) : v);
            });
            Means means = norm_means(columns, m, weight, sums.of(block, 0), sums.of(block, 1),
                [&](int64_t c, auto load) { return load(d + c); }, [&](int64_t c, auto load) { return load(s + c); });
            sweep(columns, [&](int64_t c, auto load, auto store) {
                Lanes zn = (load(s + c) - m.mean) * m.rstd;
                store(d + c, (load(d + c) * load(weight + c) - means.g - zn * means.gz) * m.rstd);
            });
        }
    }
    for (int64_t kind = 0; kind < 2; kind++) sums.into(dsums + kind * columns, kind, threads);
}

// table[ids[r]] += dz[r]. Each thread owns some columns and goes through all rows in order: no atomics, always the same bits.
static void add_in_order(const float* dz, const int64_t* ids, float* table, int64_t rows, int64_t columns, int64_t threads) {
    const int64_t lines = (columns + 15) / 16;  // of 64 bytes, which no two threads may share
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t part = 0; part < threads; part++) {
        int64_t first = lines * part / threads * 16, last = std::min(columns, lines * (part + 1) / threads * 16);
        for (int64_t r = 0; r < rows && first < last; r++) {
            const float* from = dz + r * columns + first;
            float* to = table + ids[r] * columns + first;
            sweep(last - first, [&](int64_t c, auto load, auto store) { store(to + c, load(to + c) + load(from + c)); });
        }
    }
}
