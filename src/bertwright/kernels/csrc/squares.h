// Squares of words turned in registers.
#pragma once
#include "lanes.h"

// One step of a transposition: swaps the blocks of S × S elements off the diagonal.
template <int S> INLINE void swap_blocks(Lanes (&rows)[W]) {
    Ints upper, lower;
    for (int j = 0; j < W; j++) {
        upper[j] = j & S ? W + j - S : j;
        lower[j] = j & S ? W + j : j + S;
    }
    for (int i = 0; i < W; i++)
        if (!(i & S)) {
            Lanes a = rows[i], b = rows[i + S];
            rows[i] = __builtin_shuffle(a, b, upper);
            rows[i + S] = __builtin_shuffle(a, b, lower);
        }
    if constexpr (2 * S < W) swap_blocks<2 * S>(rows);
}

// A square of words, transposed: row(i) → f(i, column i).
template <class R, class F> INLINE void turn_square(R row, F f) {
    Lanes square[W];
    for (int i = 0; i < W; i++) square[i] = row(i);
    swap_blocks<1>(square);
    for (int i = 0; i < W; i++) f(i, square[i]);
}

// W numbers of half size as words, in their lower halves.
INLINE Words widened(const uint16_t* x) {
    Halves bits;
    memcpy(&bits, x, sizeof bits);
    return __builtin_convertvector(bits, Words);
}

// Two rows of such words → one word a column, the first row's number in the lower half.
INLINE Lanes woven(Words even, Words odd) { return (Lanes)(even | odd << 16); }
INLINE Lanes woven(const uint16_t* even, const uint16_t* odd) { return woven(widened(even), widened(odd)); }

// 2W rows × W columns of half-size numbers, transposed: f(column, its 2W numbers as W words).
template <class F> INLINE void turn_halves(const uint16_t* x, int64_t row, F f) {
    turn_square([&](int i) { return woven(x + 2 * i * row, x + (2 * i + 1) * row); }, f);
}
