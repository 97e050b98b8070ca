// The transpose of a bfloat16 matrix, at the speed of memory.
#pragma once
#include "row_reduction.h"
#include "transpose_in_register.h"

// x: rows × columns, `x_stride` from row to row → y: columns × rows, `y_stride` from row to row, a multiple of a cache
// line. The gaps between the rows of y become 0: oneDNN reads them, and NaN there would spread. Unless it is null,
// `column_sums` gets the sum of each column of x.
static void transpose(const bfloat16* x, int64_t x_stride, bfloat16* y, int64_t y_stride, float* column_sums,
                      int64_t rows, int64_t columns, int64_t threads) {
    const RowReduction reduction(rows, column_sums ? columns : 0, 1);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t c = 0; c < columns; c++) memset(y + c * y_stride + rows, 0, (y_stride - rows) * sizeof *y);
#pragma omp for schedule(static) nowait
        for (int64_t block = 0; block < reduction.blocks; block++) {
            float* sums = reduction.sums(block, 0);
            if (column_sums) reduction.zero(block);
            for (int64_t top = reduction.begin(block); top < reduction.end(block); top += 2 * W) {
                const int64_t bottom = std::min(rows, top + 2 * W);
                int64_t c = 0;
                if (bottom == top + 2 * W)
                    for (; c + W <= columns; c += W)
                        transpose_pairs(x + top * x_stride + c, x_stride, [&](int i, FloatVec numbers) {
                            store_streaming(y + (c + i) * y_stride + top, numbers);
                        });
                for (; c < columns; c++)
                    for (int64_t r = top; r < bottom; r++) y[c * y_stride + r] = x[r * x_stride + c];
                if (column_sums)
                    for_each_vector(columns, [&](int64_t c, auto load, auto store) {
                        FloatVec sum = load(sums + c);
                        for (int64_t r = top; r < bottom; r++) sum += load(x + r * x_stride + c);
                        store(sums + c, sum);
                    });
            }
        }
        streaming_fence();
    }
    if (column_sums) reduction.finish(column_sums, 0, threads);
}
