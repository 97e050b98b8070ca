// Dot products of a query in 16 bits and vectors in int8, exact: the reference implementation is in int8_scores.py.
#include <cstdint>

extern "C" void int8_scores(const int16_t* query, const int8_t* vectors, int64_t rows, int64_t dims, int32_t* scores) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const int8_t* vector = vectors + row * dims;
        int32_t sum = 0;
        for (int64_t d = 0; d < dims; d++) sum += (int32_t)query[d] * (int32_t)(int16_t)vector[d];
        scores[row] = sum;
    }
}
