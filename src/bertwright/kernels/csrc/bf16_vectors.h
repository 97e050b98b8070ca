// What the bfloat16 micro-kernels of all vector instruction sets have in common.
#pragma once
#include "pack.h"

// The functions for an instruction set that multiplies vectors. Rows::multiply<V, ADD> computes BLOCK_ROWS × V panels:
// c[0 … BLOCK_ROWS)[0 … 16 V) (+)= BLOCK_ROWS rows of a · V panels of b.
template <class Rows> struct VectorIsa {
    static constexpr int BLOCK_ROWS = Rows::BLOCK_ROWS;
    static_assert(TILE_ROWS % BLOCK_ROWS == 0);

    static bool available() { return true; }
    static void begin_thread() {}
    static void end_thread() {}

    static void multiply_block(const bfloat16* a, int64_t a_stride, const uint32_t* b, int64_t depth, float* c) {
        for (int i = 0; i < TILE; i += BLOCK_ROWS)
            Rows::template multiply<2, false>(a + i * a_stride, a_stride, b, depth, depth, c + i * TILE, TILE);
    }

    template <bool ADD>
    static void multiply(const bfloat16* a, int64_t a_stride, const uint32_t* b, int64_t rows, int64_t depth,
                         int64_t columns, int64_t b_depth, float* c, int64_t c_stride) {
        for (int64_t j = 0; j < columns; j += TILE)
            for (int64_t i = 0; i < rows; i += BLOCK_ROWS) {
                const uint32_t* panels = b + panel_words(b_depth, j);
                float* out = c + i * c_stride + j;
                if (j + PANEL_WORDS < columns)
                    Rows::template multiply<2, ADD>(a + i * a_stride, a_stride, panels, depth, b_depth, out, c_stride);
                else Rows::template multiply<1, ADD>(a + i * a_stride, a_stride, panels, depth, b_depth, out, c_stride);
            }
    }
};
