// Products of bfloat16 vectors with AVX512-BF16.
#pragma once
#include "bf16_vectors.h"

// Vectors that add products of pairs (Intel since Cooper Lake, AMD since Zen 4).
struct Avx512Rows {
    static constexpr int BLOCK_ROWS = 8;  // with two panels 16 sums, enough to hide the latency of the instruction

    template <int V, bool ADD>
    INLINE_MEMBER static void multiply(const bfloat16* a, int64_t a_stride, const uint32_t* b, int64_t depth,
                                       int64_t b_depth, float* c, int64_t c_stride) {
        __m512 sums[BLOCK_ROWS][V];
        for (int i = 0; i < BLOCK_ROWS; i++)
            for (int v = 0; v < V; v++)
                sums[i][v] = ADD ? _mm512_loadu_ps(c + i * c_stride + v * W) : _mm512_setzero_ps();
        for (int64_t k = 0; k < depth; k += 2) {
            __m512bh right[V];
            for (int v = 0; v < V; v++)
                right[v] =
                    (__m512bh)_mm512_loadu_si512(b + panel_words(b_depth, v * PANEL_WORDS) + k / 2 * PANEL_WORDS);
#pragma GCC unroll 8
            for (int i = 0; i < BLOCK_ROWS; i++) {
                int32_t pair;
                memcpy(&pair, a + i * a_stride + k, sizeof pair);
                const __m512bh left = (__m512bh)_mm512_set1_epi32(pair);
                for (int v = 0; v < V; v++) sums[i][v] = _mm512_dpbf16_ps(sums[i][v], left, right[v]);
            }
        }
        for (int i = 0; i < BLOCK_ROWS; i++)
            for (int v = 0; v < V; v++) _mm512_storeu_ps(c + i * c_stride + v * W, sums[i][v]);
    }
};
using avx512_bf16 = VectorIsa<Avx512Rows>;
