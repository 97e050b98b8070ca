// AdamW in one pass over its four tensors, and the sum of squares for clipping.
#pragma once
#include "lanes.h"

struct AdamStep { double lr, beta1, beta2, eps, weight_decay, clip_scale, correction1, correction2; };

// The update of `count` neighbours.
template <class T>
INLINE void adamw_span(T* p, const T* g, float* m, float* v, int64_t count, const AdamStep& step) {
    const float b1 = step.beta1, b2 = step.beta2, rest1 = 1 - step.beta1, rest2 = 1 - step.beta2, clip = step.clip_scale;
    const float eps = step.eps, rate = step.lr / step.correction1, decay = 1 - step.lr * step.weight_decay;
    const float root = 1 / std::sqrt(step.correction2);
    sweep(count, [&](int64_t c, auto load, auto store) {
        Lanes grad = load(g + c) * clip;
        Lanes mean = load(m + c) * b1 + grad * rest1;
        Lanes square = load(v + c) * b2 + grad * grad * rest2;
        store(m + c, mean);
        store(v + c, square);
        store(p + c, load(p + c) * decay - rate * mean / (root * sqrt(square) + eps));
    });
}

template <class T>
static void adamw(T* parameter, const T* gradient, float* exp_avg, float* exp_avg_sq, const AdamStep& step,
                  int64_t size, int64_t threads) {
    const int64_t chunk = 1 << 14;
#pragma omp parallel for num_threads(threads) schedule(static) if (size > chunk)
    for (int64_t first = 0; first < size; first += chunk)
        adamw_span(parameter + first, gradient + first, exp_avg + first, exp_avg_sq + first, std::min(chunk, size - first), step);
}

// The same bits for a table most of whose rows have no gradient: places[r] is the row of `gradient` that belongs to row r,
// or -1. A row that never had one (`touched`) has moments of zero and only decays.
template <class T>
static void adamw_rows(T* parameter, const T* gradient, const int64_t* places, uint8_t* touched, float* exp_avg,
                       float* exp_avg_sq, const AdamStep& step, int64_t rows, int64_t columns, int64_t threads) {
    const std::vector<T> zeros(columns);
    const float decay = 1 - step.lr * step.weight_decay;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        T* p = parameter + r * columns;
        if (places[r] >= 0) touched[r] = 1;
        if (touched[r]) {
            const T* g = places[r] >= 0 ? gradient + places[r] * columns : zeros.data();
            adamw_span(p, g, exp_avg + r * columns, exp_avg_sq + r * columns, columns, step);
        } else if (decay != 1) {
            sweep(columns, [&](int64_t c, auto load, auto store) { store(p + c, load(p + c) * decay); });
        }
    }
}

// In double precision, in blocks of fixed size added in order: the same for any number of threads.
template <class T>
static double square_sum(const T* x, int64_t size, int64_t threads) {
    const int64_t chunk = 1 << 14, blocks = (size + chunk - 1) / chunk;
    std::vector<double> sums(blocks);
#pragma omp parallel for num_threads(threads) schedule(static) if (blocks > 1)
    for (int64_t block = 0; block < blocks; block++) {
        const T* from = x + block * chunk;
        int64_t count = std::min(chunk, size - block * chunk), c = 0;
        double lanes[2 * W] = {};  // independent sums, for the processor's sake
        for (; c + 2 * W <= count; c += 2 * W) {
            float values[2 * W];
            store(values, load(from + c));
            store(values + W, load(from + c + W));
            for (int i = 0; i < 2 * W; i++) lanes[i] += (double)values[i] * values[i];
        }
        for (; c < count; c++) {
            double value = load(from + c, 1)[0];
            lanes[0] += value * value;
        }
        for (double lane : lanes) sums[block] += lane;
    }
    double total = 0;
    for (double s : sums) total += s;
    return total;
}
