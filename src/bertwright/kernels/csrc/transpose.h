// The transpose of a matrix of half-size numbers, at the speed of memory.
#pragma once
#include "squares.h"
#include "sums.h"

// x: rows × columns → y: columns × rows; `x_row` and `y_row` from one row to the next, y_row whole cache lines. What lies
// between the rows of y becomes 0: products of bfloat16 read it, too, and a NaN there would count. With `total`, the sum
// of each column, of bfloat16 numbers, goes there: they are at hand.
static void transpose(const uint16_t* x, int64_t x_row, uint16_t* y, int64_t y_row, float* total, int64_t rows,
                      int64_t columns, int64_t threads) {
    Sums sums(rows, total ? columns : 0, 1);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c = 0; c < columns; c++) std::fill(y + c * y_row + rows, y + (c + 1) * y_row, (uint16_t)0);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t block = 0; block < sums.blocks; block++)
            for (int64_t top = sums.begin(block); top < sums.end(block); top += 2 * W) {
                const int64_t bottom = std::min(rows, top + 2 * W);
                int64_t c = 0;
                if (bottom == top + 2 * W)
                    for (; c + W <= columns; c += W)
                        turn_halves(x + top * x_row + c, x_row,
                                    [&](int i, Lanes line) { store_line(y + (c + i) * y_row + top, line); });
                for (; c < columns; c++)
                    for (int64_t r = top; r < bottom; r++) y[c * y_row + r] = x[r * x_row + c];
                if (total)
                    sweep(columns, [&](int64_t c, auto load, auto store) {
                        Lanes sum = load(sums.of(block, 0) + c);
                        for (int64_t r = top; r < bottom; r++) sum += load((const bfloat16*)x + r * x_row + c);
                        store(sums.of(block, 0) + c, sum);
                    });
            }
        lines_stored();
    }
    if (total) sums.into(total, 0, threads);
}
