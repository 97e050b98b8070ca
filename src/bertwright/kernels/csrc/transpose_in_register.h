// Transposition of squares of 32-bit words and of 16-bit numbers, in registers.
#pragma once
#include "simd.h"
#include <utility>

// Elements J… of a and b, end to end. clang has no __builtin_shuffle, GCC 11 no __builtin_shufflevector.
template <int... J> INLINE FloatVec shuffle(FloatVec a, FloatVec b) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, J...);
#else
    return __builtin_shuffle(a, b, IntVec{J...});
#endif
}

// One step of a transposition: swaps the blocks of S × S elements off the diagonal.
template <int S, int... J> INLINE void swap_blocks(FloatVec (&rows)[W], std::integer_sequence<int, J...> lanes) {
    for (int i = 0; i < W; i++)
        if (!(i & S)) {
            const FloatVec a = rows[i], b = rows[i + S];
            rows[i] = shuffle<(J & S ? W + J - S : J)...>(a, b);
            rows[i + S] = shuffle<(J & S ? W + J : J + S)...>(a, b);
        }
    if constexpr (2 * S < W) swap_blocks<2 * S>(rows, lanes);
}

INLINE void transpose_square(FloatVec (&rows)[W]) { swap_blocks<1>(rows, std::make_integer_sequence<int, W>()); }

// load_row(i) for each of W rows of W words → f(i, column i).
template <class R, class F> INLINE void transpose_square(R load_row, F f) {
    FloatVec square[W];
    for (int i = 0; i < W; i++) square[i] = load_row(i);
    transpose_square(square);
    for (int i = 0; i < W; i++) f(i, square[i]);
}

// W 16-bit numbers as words with zeros above.
INLINE UIntVec zero_extend(const bfloat16* x) {
    HalfVec bits;
    memcpy(&bits, x, sizeof bits);
    return __builtin_convertvector(bits, UIntVec);
}

// Two rows of zero-extended numbers → one word per column, the first row's number in the lower half.
INLINE FloatVec interleave(UIntVec even, UIntVec odd) { return (FloatVec)(even | odd << 16); }

// 2W rows × W columns of 16-bit numbers, transposed: f(column, its 2W numbers as W words).
template <class F> INLINE void transpose_pairs(const bfloat16* x, int64_t stride, F f) {
    transpose_square(
        [&](int i) { return interleave(zero_extend(x + 2 * i * stride), zero_extend(x + (2 * i + 1) * stride)); }, f);
}
