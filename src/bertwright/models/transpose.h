// The transpose of a matrix of half-size numbers, at the speed of memory.
#pragma once
#include "squares.h"

// A whole line of the cache, which is not read before it is overwritten; `to` lies at its beginning.
INLINE void store_line(uint16_t* to, Lanes x) {
#if defined(__AVX512F__)
    _mm512_stream_ps((float*)to, (__m512)x);
#else
    memcpy(to, &x, sizeof x);
#endif
}

// Such stores are seen by other threads when they have all been made.
INLINE void lines_stored() {
#if defined(__AVX512F__)
    _mm_sfence();
#endif
}

// x: rows × columns → y: columns × rows; `x_row` and `y_row` from one row to the next, y_row whole cache lines. What lies
// between the rows of y becomes 0: products on tile registers read it, too, and a NaN there would count.
static void transpose(const uint16_t* x, int64_t x_row, uint16_t* y, int64_t y_row, int64_t rows, int64_t columns,
                      int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c = 0; c < columns; c++) std::fill(y + c * y_row + rows, y + (c + 1) * y_row, (uint16_t)0);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t top = 0; top < rows; top += 2 * W) {
            const int64_t bottom = std::min(rows, top + 2 * W);
            int64_t c = 0;
            if (bottom == top + 2 * W)
                for (; c + W <= columns; c += W)
                    turn_halves(x + top * x_row + c, x_row,
                                [&](int i, Lanes line) { store_line(y + (c + i) * y_row + top, line); });
            for (; c < columns; c++)
                for (int64_t r = top; r < bottom; r++) y[c * y_row + r] = x[r * x_row + c];
        }
        lines_stored();
    }
}
