// Sums over rows that come out the same, bit by bit, whatever the number of threads.
#pragma once
#include "lanes.h"

// Each block of rows is summed by one thread, then the blocks' sums in order; `kinds` different sums at once.
struct Sums {
    static constexpr int64_t ROWS = 64;
    int64_t rows, columns, kinds, blocks;
    std::vector<float> partial;  // blocks × kinds × columns
    Sums(int64_t rows, int64_t columns, int64_t kinds)
        : rows(rows), columns(columns), kinds(kinds), blocks((rows + ROWS - 1) / ROWS), partial(blocks * kinds * columns) {}
    int64_t begin(int64_t block) const { return block * ROWS; }
    int64_t end(int64_t block) const { return std::min(rows, (block + 1) * ROWS); }
    float* of(int64_t block, int64_t kind) { return partial.data() + (block * kinds + kind) * columns; }
    void into(float* total, int64_t kind, int64_t threads) {
        const int64_t width = 256;  // columns a task: whole cache lines, and enough tasks for all threads
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t first = 0; first < columns; first += width) {
            int64_t last = std::min(columns, first + width);
            std::fill(total + first, total + last, 0.0f);
            for (int64_t block = 0; block < blocks; block++) {
                const float* sum = of(block, kind);
                for (int64_t c = first; c < last; c++) total[c] += sum[c];
            }
        }
    }
};
