// Products of whole bfloat16 matrices on all threads, and the linear layers made of them.
//
// Every element of a product is summed by one thread in the order of the depth: its bits do not depend on the number of
// threads.
#pragma once
#include "bf16_isa.h"
#include "transpose.h"

#if HAS_BF16_ISA

// One TILE × TILE block of a result on its way to memory; `rows` of it are real. A bfloat16 state will be read soon:
// its cache lines are fetched before the product, so that they are there when it is written. A gradient is not.
INLINE void prefetch_block(const bfloat16* out, int64_t stride, int64_t rows) {
    for (int64_t r = 0; r < rows; r++) __builtin_prefetch(out + r * stride, 1);
}
INLINE void prefetch_block(const float*, int64_t, int64_t) {}
INLINE void write_block(const float* block, const float* bias, bfloat16* out, int64_t stride, int64_t rows) {
    for (int c = 0; c < TILE; c += 2 * W) {
        const FloatVec left = bias ? load(bias + c) : FloatVec{}, right = bias ? load(bias + c + W) : FloatVec{};
        for (int64_t r = 0; r < rows; r++) {
            const float* sums = block + r * TILE + c;
            store((float*)(out + r * stride + c), pack_bf16(load(sums) + left, load(sums + W) + right));
        }
    }
}
INLINE void write_block(const float* block, const float*, float* out, int64_t stride, int64_t rows) {
    for (int64_t r = 0; r < rows; r++)
        for (int c = 0; c < TILE; c += W) store_streaming(out + r * stride + c, load(block + r * TILE + c));
}

// How a product is cut into tasks: blocks of `rows` × `columns`, few enough columns that their part of B stays in the
// second-level cache while the rows pass by, and enough tasks for all threads.
struct TaskGrid {
    static constexpr int64_t L2_ELEMENTS = 1 << 19, MAX_TILES_DOWN = 16, MAX_TILES_ACROSS = 32, TASKS_PER_THREAD = 8;
    int64_t rows, columns, across, tasks;
    TaskGrid(int64_t all_rows, int64_t depth, int64_t all_columns, int64_t threads)
        : rows(MAX_TILES_DOWN * TILE),
          columns(std::clamp<int64_t>(L2_ELEMENTS / std::max<int64_t>(depth, 1) / TILE, 1, MAX_TILES_ACROSS) * TILE) {
        const auto count = [&] {
            across = (all_columns + columns - 1) / columns;
            return tasks = (all_rows + rows - 1) / rows * across;
        };
        while (count() < TASKS_PER_THREAD * threads && std::max(rows, columns) > TILE)
            if (rows > TILE) rows /= 2;
            else columns = round_up(columns / 2, TILE);
    }
};

// y = a · b + bias. a: rows × depth; b: panels; y: rows × columns. Depth and columns are multiples of TILE; only a
// bfloat16 y may have a bias, which may be null.
template <class T>
static void matmul(const bfloat16* a, int64_t a_stride, const uint32_t* b, const float* bias, T* y, int64_t rows,
                   int64_t depth, int64_t columns, int64_t threads) {
    const auto multiply_block = bf16_isa().multiply_block;
    const TaskGrid grid(rows, depth, columns, threads);
    const int64_t whole_rows = rows / TILE * TILE, last_rows = rows - whole_rows;
    const Buffer<bfloat16> padded(last_rows ? TILE * depth : 0);  // the last rows of a, with zeros below
    for (int64_t r = 0; r < last_rows; r++)
        memcpy(padded.get() + r * depth, a + (whole_rows + r) * a_stride, depth * sizeof *a);
    if (last_rows) memset(padded.get() + last_rows * depth, 0, (TILE - last_rows) * depth * sizeof *a);
#pragma omp parallel num_threads(threads)
    {
        const Bf16Thread prepared;
        alignas(CACHE_LINE) float block[TILE * TILE];
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < grid.tasks; task++) {
            const int64_t first = task % grid.across * grid.columns, last = std::min(columns, first + grid.columns);
            const int64_t begin = task / grid.across * grid.rows, end = std::min(rows, begin + grid.rows);
            for (int64_t r = begin; r < end; r += TILE) {
                const bool whole = r < whole_rows;
                for (int64_t c = first; c < last; c += TILE) {
                    T* out = y + r * columns + c;
                    prefetch_block(out, columns, whole ? TILE : last_rows);
                    multiply_block(whole ? a + r * a_stride : padded.get(), whole ? a_stride : depth,
                                   b + panel_words(depth, c), depth, block);
                    write_block(block, bias ? bias + c : nullptr, out, columns, whole ? TILE : last_rows);
                }
            }
        }
        streaming_fence();
    }
}

// y = x · weightᵀ + bias; weight: out × in. Unless it is null, `plain_panels` gets weight's panels for the backward
// pass.
template <class T>
static void linear_forward(const bfloat16* x, const T* weight, const float* bias, bfloat16* y, uint32_t* plain_panels,
                           int64_t rows, int64_t in, int64_t out, int64_t threads) {
    const Buffer<uint32_t> panels(panel_words(in, out));
    pack_weight(weight, out, in, plain_panels, panels.get(), threads);
    matmul(x, in, panels.get(), bias, y, rows, in, out, threads);
}

// Its gradients, each unless it is null: dx = dy · weight, dweight = dyᵀ · x, and, together with dweight, dbias = the
// sums of dy's columns.
static void linear_backward(const bfloat16* dy, const bfloat16* x, const uint32_t* plain_panels, bfloat16* dx,
                            float* dweight, float* dbias, int64_t rows, int64_t in, int64_t out, int64_t threads) {
    constexpr int64_t ALIASING = 512;  // strides that are multiples of this share few sets of the cache
    if (dweight) {
        const int64_t depth = round_up(rows, TILE), stride = depth % ALIASING ? depth : depth + TILE;
        const Buffer<uint32_t> panels(panel_words(depth, in));
        const Buffer<bfloat16> dy_t(out * stride);
        transpose(dy, out, dy_t.get(), stride, dbias, rows, out, threads);
        pack_weight(x, rows, in, panels.get(), nullptr, threads);
        matmul(dy_t.get(), stride, panels.get(), (const float*)nullptr, dweight, out, depth, in, threads);
    }
    if (dx) matmul(dy, out, plain_panels, nullptr, dx, rows, out, in, threads);
}
#endif
