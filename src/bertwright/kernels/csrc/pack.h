// Packing of the right factor B (depth × columns) of a product into panels, which the micro-kernels read in order.
//
//   float32: PANEL columns per panel             bfloat16: 16 columns per panel, two rows interleaved per word
//
//          c: 0 … PANEL-1 | PANEL … | …               c:  0         1        …  15        | 16 … | …
//   k = 0   [ 0 ──────────>           ]         k = 0,1  [ B01|B00   B11|B10  …  word ──> ]
//   k = 1   [ ────────────>           ]         k = 2,3  [ ────────────────────────────>  ]
//   …                                           …
//   memory: [c / PANEL][k][c % PANEL]           memory: [c / 16][k / 2][c % 16], B(k+1, c) in the upper half of a word
//
// One multiply-add of pairs reads such a word, and 16 × 16 of them are one tile register. Rows and columns that B lacks
// are zeros. pack_b reads B, pack_b_t reads its transpose (columns × depth).
#pragma once
#include "memory.h"
#include "transpose_in_register.h"

constexpr int PANEL = PANEL_VECTORS * W;

template <class T> static void pack_b(const T* b, int64_t stride, int64_t depth, int64_t columns, float* panels) {
    for (int64_t j = 0; j < columns; j += PANEL)
        for (int64_t k = 0; k < depth; k++, panels += PANEL)
            for (int v = 0; v < PANEL; v += W) {
                const int64_t rest = columns - j - v;
                const T* from = b + k * stride + j + v;
                store(panels + v, rest >= W ? load(from) : rest > 0 ? load(from, (int)rest) : FloatVec{});
            }
}

template <class T> static void pack_b_t(const T* b, int64_t stride, int64_t columns, int64_t depth, float* panels) {
    for (int64_t j = 0; j < columns; j += PANEL, panels += depth * PANEL)
        for (int v = 0; v < PANEL; v += W)
            for (int64_t k = 0; k < depth; k += W) {
                const int count = (int)std::min<int64_t>(W, depth - k);
                FloatVec square[W];
                for (int i = 0; i < W; i++) {
                    const T* from = b + (j + v + i) * stride + k;
                    square[i] = j + v + i >= columns ? FloatVec{} : count == W ? load(from) : load(from, count);
                }
                transpose_square(square);
                for (int i = 0; i < count; i++) store(panels + (k + i) * PANEL + v, square[i]);
            }
}

#if HAS_BF16_ISA

constexpr int TILE = 32;         // C is computed in blocks of TILE × TILE; depth is padded to TILE
constexpr int TILE_ROWS = 16;    // rows of a tile register, and columns of a panel
constexpr int PANEL_WORDS = 16;  // words of a panel's row, which hold two rows of B
static_assert(PANEL_WORDS % W == 0 && TILE == 2 * TILE_ROWS, "a panel's row is whole vectors; a block is 2 × 2 tiles");

constexpr int64_t panel_words(int64_t depth, int64_t columns) { return depth / 2 * columns; }

// 2W numbers as bfloat16; number 0 is in the lower half of word 0.
INLINE FloatVec pack_bf16(FloatVec first, FloatVec last) {
#if HAS_AVX512_BF16
    return (FloatVec)_mm512_cvtne2ps_pbh((__m512)last, (__m512)first);
#else
    const HalfVec halves[] = {round_to_bf16(first), round_to_bf16(last)};
    return load((const float*)halves);
#endif
}
INLINE FloatVec load_pairs(const float* x) { return pack_bf16(load(x), load(x + W)); }
INLINE FloatVec load_pairs(const bfloat16* x) { return load((const float*)x); }

// W numbers as words, bfloat16 in the lower halves.
INLINE UIntVec load_words(const float* x) { return __builtin_convertvector(round_to_bf16(load(x)), UIntVec); }
INLINE UIntVec load_words(const bfloat16* x) { return zero_extend(x); }

template <bool STREAM> INLINE void store_words(uint32_t* to, FloatVec words) {
    if constexpr (STREAM) store_streaming(to, words);
    else store((float*)to, words);
}

// TILE rows of B from row k, one panel of columns from column c; rows from `depth` on are zeros.
template <bool STREAM, class T>
INLINE void pack_b_tile(const T* b, int64_t stride, int64_t depth, int64_t k, int64_t c, uint32_t* panels) {
    uint32_t* to = panels + panel_words(round_up(depth, TILE), c) + k / 2 * PANEL_WORDS;
    for (int64_t r = k; r < k + TILE; r += 2, to += PANEL_WORDS)
        for (int w = 0; w < PANEL_WORDS; w += W) {
            const T* even = b + r * stride + c + w;
            store_words<STREAM>(to + w, interleave(r < depth ? load_words(even) : UIntVec{},
                                                   r + 1 < depth ? load_words(even + stride) : UIntVec{}));
        }
}

// The same of Bᵀ: one panel of rows from row c, TILE columns from column k.
template <bool STREAM, class T>
INLINE void pack_b_t_tile(const T* b, int64_t stride, int64_t depth, int64_t k, int64_t c, uint32_t* panels) {
    uint32_t* to = panels + panel_words(depth, c) + k / 2 * PANEL_WORDS;
    for (int row = 0; row < TILE / 2; row += W)
        for (int w = 0; w < PANEL_WORDS; w += W)
            transpose_square(
                [&](int i) { return load_pairs(b + (c + w + i) * stride + k + 2 * row); },
                [&](int i, FloatVec words) { store_words<STREAM>(to + (row + i) * PANEL_WORDS + w, words); });
}

// For a B that is padded with zeros to whole tiles; the depth is a multiple of TILE.
static void pack_b(const bfloat16* b, int64_t stride, int64_t depth, int64_t columns, uint32_t* panels) {
    for (int64_t c = 0; c < columns; c += PANEL_WORDS)
        for (int64_t k = 0; k < depth; k += TILE) pack_b_tile<false>(b, stride, depth, k, c, panels);
}
static void pack_b_t(const bfloat16* b, int64_t stride, int64_t columns, int64_t depth, uint32_t* panels) {
    for (int64_t c = 0; c < columns; c += PANEL_WORDS)
        for (int64_t k = 0; k < depth; k += TILE) pack_b_t_tile<false>(b, stride, depth, k, c, panels);
}

// x (rows × columns) as the panels of x and of its transpose, each unless it is null; memory is read once for both.
template <class T>
static void pack_weight(const T* x, int64_t rows, int64_t columns, uint32_t* plain, uint32_t* transposed,
                        int64_t threads) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < rows; r += TILE)
            for (int64_t c = 0; c < columns; c += TILE)
                for (int half = 0; half < TILE; half += PANEL_WORDS) {
                    if (plain) pack_b_tile<true>(x, columns, rows, r, c + half, plain);
                    if (transposed) pack_b_t_tile<true>(x, columns, columns, c, r + half, transposed);
                }
        streaming_fence();
    }
}
#endif
