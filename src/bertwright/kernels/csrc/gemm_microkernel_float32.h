// Small float32 products on one thread: C (+)= A · B with B packed (pack.h).
#pragma once
#include "pack.h"

// A matrix for reading: element (i, k) is data[i * row + k * column].
struct Strided {
    const float* data;
    int64_t row, column;
};

// c[0 … R)[0 … PANEL) (+)= a[0 … R)[0 … depth) · panel.
template <int R, bool ADD>
INLINE void multiply_block(Strided a, const float* panel, int64_t depth, float* c, int64_t c_stride) {
    FloatVec sums[R][PANEL_VECTORS];
    for (int i = 0; i < R; i++)
        for (int v = 0; v < PANEL_VECTORS; v++) sums[i][v] = ADD ? load(c + i * c_stride + v * W) : FloatVec{};
    const float* at = a.data;
    for (int64_t k = 0; k < depth; k++, at += a.column, panel += PANEL) {
        FloatVec right[PANEL_VECTORS];
        for (int v = 0; v < PANEL_VECTORS; v++) right[v] = load(panel + v * W);
#pragma GCC unroll 12
        for (int i = 0; i < R; i++) {
            const FloatVec left = broadcast(at[i * a.row]);
            for (int v = 0; v < PANEL_VECTORS; v++) sums[i][v] += left * right[v];
        }
    }
    for (int i = 0; i < R; i++)
        for (int v = 0; v < PANEL_VECTORS; v++) store(c + i * c_stride + v * W, sums[i][v]);
}

// The last `rows` ≤ R rows.
template <int R, bool ADD>
static void multiply_last_rows(int64_t rows, Strided a, const float* panel, int64_t depth, float* c, int64_t c_stride) {
    if (rows == R) return multiply_block<R, ADD>(a, panel, depth, c, c_stride);
    if constexpr (R > 1) multiply_last_rows<R - 1, ADD>(rows, a, panel, depth, c, c_stride);
}

// a: rows × depth; b: panels of b_depth rows; c: rows × columns rounded up to PANEL.
template <bool ADD>
static void multiply(Strided a, const float* b, int64_t rows, int64_t depth, int64_t columns, int64_t b_depth, float* c,
                     int64_t c_stride) {
    for (int64_t j = 0; j < columns; j += PANEL, b += b_depth * PANEL)
        for (int64_t i = 0; i < rows; i += BLOCK_ROWS) {
            const Strided block{a.data + i * a.row, a.row, a.column};
            float* out = c + i * c_stride + j;
            if (i + BLOCK_ROWS <= rows) multiply_block<BLOCK_ROWS, ADD>(block, b, depth, out, c_stride);
            else multiply_last_rows<BLOCK_ROWS - 1, ADD>(rows - i, block, b, depth, out, c_stride);
        }
}
