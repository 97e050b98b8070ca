// Products of whole matrices of bfloat16: what dense layers are made of.
//
// The right factor is packed into panels first (tiles.h), straight from what it is made of, float32 weights say. Every
// number of a product is summed by one thread, in the order of the depth: its bits do not depend on how many there are.
#pragma once
#include "tiles.h"
#include "transpose.h"
#include <cstdlib>
#include <memory>

#if BFLOAT16_UNITS

// 2W numbers in bfloat16, the first of them in the lower half of the first word.
INLINE Lanes side_by_side(Lanes first, Lanes last) { return (Lanes)_mm512_cvtne2ps_pbh((__m512)last, (__m512)first); }
INLINE Lanes pairs(const float* x) { return side_by_side(load(x), load(x + W)); }
INLINE Lanes pairs(const bfloat16* x) { return load((const float*)x); }

// W numbers as words, bfloat16 in the lower halves.
INLINE Words rounded(const float* x) { return __builtin_convertvector((Halves)_mm512_cvtneps_pbh((__m512)load(x)), Words); }
INLINE Words rounded(const bfloat16* x) { return widened((const uint16_t*)x); }

// W columns of TILE rows of x, from (top, c) on, into panels of x as a right factor, whose depth are the rows, filled up with zeros.
template <class T> INLINE void pack_rows(const T* x, int64_t rows, int64_t columns, int64_t top, int64_t c, uint32_t* panels) {
    uint32_t* line = panels + (c * tiled(rows) + top * W) / 2;
    for (int64_t r = top; r < top + TILE; r += 2, line += W) {
        const T* even = x + r * columns + c;
        const Words low = r < rows ? rounded(even) : Words{}, high = r + 1 < rows ? rounded(even + columns) : Words{};
        store_line(line, woven(low, high));
    }
}

// W rows of 2W columns into panels of the transpose, whose depth are the columns of x, which fills its tiles.
template <class T> INLINE void pack_columns(const T* x, int64_t columns, int64_t top, int64_t c, uint32_t* panels) {
    turn_square([&](int i) { return pairs(x + (top + i) * columns + c); },
                [&](int i, Lanes line) { store_line(panels + (top * columns + c * W) / 2 + i * W, line); });
}

// x → panels of x (`plain`), of its transpose (`turned`), or of both, which then read memory once. A null pointer is not asked for.
template <class T>
static void pack_panels(const T* x, int64_t rows, int64_t columns, uint32_t* plain, uint32_t* turned, int64_t threads) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t top = 0; top < rows; top += TILE)
            for (int64_t c = 0; c < columns; c += TILE)
                for (int half = 0; half < TILE; half += W) {
                    if (plain) pack_rows(x, rows, columns, top, c + half, plain);
                    if (turned) pack_columns(x, columns, top + half, c, turned);
                }
        lines_stored();
    }
}

// One block of a result on its way to memory, TILE × TILE in float32, of which `count` rows are real. A state is read again soon:
// its lines are fetched before the product, so that they are at hand when they are written. A gradient of weights is not.
INLINE void fetch_block(const bfloat16* out, int64_t out_row, int64_t count) {
    for (int64_t r = 0; r < count; r++) __builtin_prefetch(out + r * out_row, 1);
}
INLINE void fetch_block(const float*, int64_t, int64_t) {}
INLINE void put_block(const float* block, const float* bias, bfloat16* out, int64_t out_row, int64_t count) {
    const Lanes left = bias ? load(bias) : Lanes{}, right = bias ? load(bias + W) : Lanes{};
    for (int64_t r = 0; r < count; r++, block += TILE) {
        const Lanes line = side_by_side(load(block) + left, load(block + W) + right);
        memcpy(out + r * out_row, &line, sizeof line);
    }
}
INLINE void put_block(const float* block, const float*, float* out, int64_t out_row, int64_t count) {
    for (int64_t r = 0; r < count; r++)
        for (int c = 0; c < TILE; c += W) store_line(out + r * out_row + c, load(block + r * TILE + c));
}

// y = a · b, + bias, which a y in bfloat16 alone may have. a is rows × depth, its rows `a_row` apart; y is rows × columns; depth
// and columns are multiples of TILE. A task's share of b stays in the second cache while TILE rows of a after another pass by.
template <class T>
static void tile_products(const uint16_t* a, int64_t a_row, const uint32_t* b, const float* bias, T* y, int64_t rows,
                          int64_t depth, int64_t columns, int64_t threads) {
    int64_t high = 16 * TILE, wide = std::clamp(((int64_t)1 << 19) / std::max(depth, (int64_t)1) / TILE, (int64_t)1, (int64_t)32) * TILE;
    const auto shares = [](int64_t size, int64_t part) { return (size + part - 1) / part; };
    while (shares(rows, high) * shares(columns, wide) < 8 * threads && std::max(high, wide) > TILE)
        if (high > TILE) high /= 2; else wide = tiled(wide / 2);
    const int64_t across = shares(columns, wide), tasks = shares(rows, high) * across;
#pragma omp parallel num_threads(threads)
    {
        [[maybe_unused]] Tiles registers;
        std::vector<uint16_t> filled;  // the last rows
        alignas(64) float block[TILE * TILE];
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; task++) {
            const int64_t first = task % across * wide, last = std::min(columns, first + wide);
            const int64_t begin = task / across * high, end = std::min(rows, begin + high);
            for (int64_t top = begin; top < end; top += TILE) {
                const int64_t count = std::min((int64_t)TILE, rows - top);
                const uint16_t* left = a + top * a_row;
                int64_t left_row = a_row;
                if (count < TILE) {
                    filled.assign(TILE * depth, 0);
                    for (int64_t r = 0; r < count; r++) memcpy(&filled[r * depth], left + r * a_row, 2 * depth);
                    left = filled.data();
                    left_row = depth;
                }
                for (int64_t c = first; c < last; c += TILE) {
                    T* out = y + top * columns + c;
                    fetch_block(out, columns, count);
                    tile_block(left, left_row, b + c * depth / 2, depth, block);
                    put_block(block, bias ? bias + c : nullptr, out, columns, count);
                }
            }
        }
        lines_stored();
    }
}

// Memory that is not cleared, from the beginning of a cache line on.
template <class T> static std::unique_ptr<T, void (*)(void*)> buffer(int64_t count) {
    return {(T*)aligned_alloc(64, (std::max(count, (int64_t)1) * sizeof(T) + 63) / 64 * 64), free};
}

// y = x · weightᵀ + bias; weight is outer × inner. Its panels for the backward pass go to `later`, inner · outer / 2, if asked for.
template <class T>
static void dense(const uint16_t* x, const T* weight, const float* bias, bfloat16* y, uint32_t* later, int64_t rows, int64_t inner,
                  int64_t outer, int64_t threads) {
    auto panels = buffer<uint32_t>(inner * outer / 2);
    pack_panels(weight, outer, inner, later, panels.get(), threads);
    tile_products(x, inner, panels.get(), bias, y, rows, inner, outer, threads);
}

// Its gradients, each unless it is null: dx = dy · weight, of whose plain `panels` it is made, dweight = dyᵀ · x, and dbias = the sums of
// dy's columns, which are made together with dweight.
static void dense_backward(const uint16_t* dy, const uint16_t* x, const uint32_t* panels, bfloat16* dx, float* dweight, float* dbias,
                           int64_t rows, int64_t inner, int64_t outer, int64_t threads) {
    const int64_t deep = tiled(rows), apart = deep % 512 ? deep : deep + TILE;  // no large power of two from row to row
    if (dweight) {
        auto factor = buffer<uint32_t>(inner * deep / 2);
        auto transposed = buffer<uint16_t>(outer * apart);
        transpose(dy, outer, transposed.get(), apart, dbias, rows, outer, threads);
        pack_panels((const bfloat16*)x, rows, inner, factor.get(), nullptr, threads);
        tile_products(transposed.get(), apart, factor.get(), nullptr, dweight, outer, deep, inner, threads);
    }
    if (dx) tile_products(dy, outer, panels, nullptr, dx, rows, outer, inner, threads);
}
#endif
