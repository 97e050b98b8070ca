// Sums over rows whose bits do not depend on the number of threads.
#pragma once
#include "memory.h"

// Each block of rows is summed by one thread, then the blocks' sums in order; `kinds` different sums at once.
struct RowReduction {
    static constexpr int64_t ROWS_PER_BLOCK = 64;
    static constexpr int64_t TASK_COLUMNS = 256;  // whole cache lines, and enough tasks for all threads
    int64_t rows, columns, kinds, blocks;
    Buffer<float> partial;  // blocks × kinds × columns
    RowReduction(int64_t rows, int64_t columns, int64_t kinds)
        : rows(rows),
          columns(columns),
          kinds(kinds),
          blocks((rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK),
          partial(blocks * kinds * columns) {}
    int64_t begin(int64_t block) const { return block * ROWS_PER_BLOCK; }
    int64_t end(int64_t block) const { return std::min(rows, (block + 1) * ROWS_PER_BLOCK); }
    float* sums(int64_t block, int64_t kind) const { return partial.get() + (block * kinds + kind) * columns; }
    void zero(int64_t block) const { std::fill(sums(block, 0), sums(block + 1, 0), 0.0f); }
    void finish(float* total, int64_t kind, int64_t threads) const {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t first = 0; first < columns; first += TASK_COLUMNS) {
            const int64_t last = std::min(columns, first + TASK_COLUMNS);
            std::fill(total + first, total + last, 0.0f);
            for (int64_t block = 0; block < blocks; block++) {
                const float* sum = sums(block, kind);
                for (int64_t c = first; c < last; c++) total[c] += sum[c];
            }
        }
    }
};
