// AdamW in one pass over its four tensors, and the sum of squares for clipping.
#pragma once
#include "lanes.h"

struct AdamStep { double lr, beta1, beta2, eps, weight_decay, clip_scale, correction1, correction2; };

template <class T>
static void adamw(T* parameter, const T* gradient, float* exp_avg, float* exp_avg_sq, const AdamStep& step,
                  int64_t size, int64_t threads) {
    const float b1 = step.beta1, b2 = step.beta2, rest1 = 1 - step.beta1, rest2 = 1 - step.beta2, clip = step.clip_scale;
    const float eps = step.eps, rate = step.lr / step.correction1, decay = 1 - step.lr * step.weight_decay;
    const float root = 1 / std::sqrt(step.correction2);
    const int64_t chunk = 1 << 14;
#pragma omp parallel for num_threads(threads) schedule(static) if (size > chunk)
    for (int64_t first = 0; first < size; first += chunk) {
        T* p = parameter + first;
        const T* g = gradient + first;
        float *m = exp_avg + first, *v = exp_avg_sq + first;
        sweep(std::min(chunk, size - first), [&](int64_t c, auto load, auto store) {
            Lanes grad = load(g + c) * clip;
            Lanes mean = load(m + c) * b1 + grad * rest1;
            Lanes square = load(v + c) * b2 + grad * grad * rest2;
            store(m + c, mean);
            store(v + c, square);
            store(p + c, load(p + c) * decay - rate * mean / (root * sqrt(square) + eps));
        });
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
