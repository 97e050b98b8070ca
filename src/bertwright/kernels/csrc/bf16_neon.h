// Products of bfloat16 vectors on ARM processors with BFMMLA (Neoverse V1 and N2, Apple M2, and newer).
//
// BFMMLA adds to a 2 × 2 block of C the product of two rows of A and two columns of B, four deep. Zipped word by word,
// two rows of a panel (pack.h) yield these columns: (k, k+1 | k+2, k+3) of column 0, then of column 1.
#pragma once
#include "bf16_vectors.h"

struct NeonRows {
    static constexpr int BLOCK_ROWS = 8, COLUMNS = 8;  // 16 sums, which leave registers for both factors

    template <int V, bool ADD>
    INLINE_MEMBER static void multiply(const bfloat16* a, int64_t a_stride, const uint32_t* b, int64_t depth,
                                       int64_t b_depth, float* c, int64_t c_stride) {
        for (int v = 0; v < V; v++)
            for (int j = 0; j < PANEL_WORDS; j += COLUMNS)
                multiply_columns<ADD>(a, a_stride, b + panel_words(b_depth, v * PANEL_WORDS) + j, depth,
                                      c + v * PANEL_WORDS + j, c_stride);
    }

    // c[0 … BLOCK_ROWS)[0 … COLUMNS) (+)= BLOCK_ROWS rows of a · COLUMNS columns of a panel.
    template <bool ADD>
    INLINE_MEMBER static void multiply_columns(const bfloat16* a, int64_t a_stride, const uint32_t* panel,
                                               int64_t depth, float* c, int64_t c_stride) {
        float32x4_t sums[BLOCK_ROWS / 2][COLUMNS / 2];  // blocks of 2 × 2: c00 c01 c10 c11
        for (int i = 0; i < BLOCK_ROWS; i += 2)
            for (int j = 0; j < COLUMNS; j += 4)
                if constexpr (ADD) regroup(load(c, c_stride, i, j), load(c, c_stride, i + 1, j), &sums[i / 2][j / 2]);
                else sums[i / 2][j / 2] = sums[i / 2][j / 2 + 1] = vdupq_n_f32(0);
        for (int64_t k = 0; k < depth; k += 4, panel += 2 * PANEL_WORDS) {
            bfloat16x8_t right[COLUMNS / 2];
            for (int j = 0; j < COLUMNS; j += 4) {
                const uint32x4_t upper = vld1q_u32(panel + j), lower = vld1q_u32(panel + PANEL_WORDS + j);
                right[j / 2] = (bfloat16x8_t)vzip1q_u32(upper, lower);
                right[j / 2 + 1] = (bfloat16x8_t)vzip2q_u32(upper, lower);
            }
#pragma GCC unroll 4
            for (int i = 0; i < BLOCK_ROWS / 2; i++) {
                const bfloat16* row = a + 2 * i * a_stride + k;
                const uint16x8_t left = vcombine_u16(vld1_u16(&row->bits), vld1_u16(&row[a_stride].bits));
                for (int j = 0; j < COLUMNS / 2; j++)
                    sums[i][j] = vbfmmlaq_f32(sums[i][j], (bfloat16x8_t)left, right[j]);
            }
        }
        for (int i = 0; i < BLOCK_ROWS; i += 2)
            for (int j = 0; j < COLUMNS; j += 4) {
                float32x4_t rows[2];
                regroup(sums[i / 2][j / 2], sums[i / 2][j / 2 + 1], rows);
                for (int r = 0; r < 2; r++) vst1q_f32(c + (i + r) * c_stride + j, rows[r]);
            }
    }

    INLINE_MEMBER static float32x4_t load(const float* c, int64_t stride, int row, int column) {
        return vld1q_f32(c + row * stride + column);
    }
    // Two rows of four → two blocks of 2 × 2, and back.
    INLINE_MEMBER static void regroup(float32x4_t first, float32x4_t second, float32x4_t* to) {
        to[0] = vcombine_f32(vget_low_f32(first), vget_low_f32(second));
        to[1] = vcombine_f32(vget_high_f32(first), vget_high_f32(second));
    }
};
using neon_bf16 = VectorIsa<NeonRows>;
