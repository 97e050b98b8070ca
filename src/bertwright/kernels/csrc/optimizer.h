// AdamW in one pass over its four tensors, and the sum of squares for clipping: of float32, as weights and gradients are.
#pragma once
#include "lanes.h"

struct AdamStep { double lr, beta1, beta2, eps, weight_decay, clip_scale, correction1, correction2; };

// The update of `count` neighbours.
INLINE void adamw_span(float* p, const float* g, float* m, float* v, int64_t count, const AdamStep& step) {
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

// Many tensors as pieces of at most CHUNK neighbours: few large ones and many small ones are shared out alike.
constexpr int64_t CHUNK = 1 << 14;
struct Piece { int64_t tensor, first, count; };
static std::vector<Piece> pieces(const int64_t* sizes, int64_t tensors) {
    std::vector<Piece> all;
    for (int64_t t = 0; t < tensors; t++)
        for (int64_t first = 0; first < sizes[t]; first += CHUNK) all.push_back({t, first, std::min(CHUNK, sizes[t] - first)});
    return all;
}

static void adamw(float* const* parameters, const float* const* gradients, float* const* exp_avg, float* const* exp_avg_sq,
                  const int64_t* sizes, int64_t tensors, const AdamStep& step, int64_t threads) {
    const std::vector<Piece> all = pieces(sizes, tensors);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t i = 0; i < all.size(); i++) {
        const auto [t, first, count] = all[i];
        adamw_span(parameters[t] + first, gradients[t] + first, exp_avg[t] + first, exp_avg_sq[t] + first, count, step);
    }
}

// The same bits for a table most of whose rows have no gradient: places[r] is the row of `gradient` that belongs to row r,
// or -1. A row that never had one (`touched`) has moments of zero and only decays.
static void adamw_rows(float* parameter, const float* gradient, const int64_t* places, uint8_t* touched, float* exp_avg,
                       float* exp_avg_sq, const AdamStep& step, int64_t rows, int64_t columns, int64_t threads) {
    const std::vector<float> zeros(columns);
    const float decay = 1 - step.lr * step.weight_decay;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float* p = parameter + r * columns;
        if (places[r] >= 0) touched[r] = 1;
        if (touched[r]) {
            const float* g = places[r] >= 0 ? gradient + places[r] * columns : zeros.data();
            adamw_span(p, g, exp_avg + r * columns, exp_avg_sq + r * columns, columns, step);
        } else if (decay != 1) {
            sweep(columns, [&](int64_t c, auto load, auto store) { store(p + c, load(p + c) * decay); });
        }
    }
}

// In double precision, piece by piece, added in order: the same for any number of threads.
static double square_sum(const float* const* x, const int64_t* sizes, int64_t tensors, int64_t threads) {
    const std::vector<Piece> all = pieces(sizes, tensors);
    std::vector<double> sums(all.size());
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t i = 0; i < all.size(); i++) {
        const float* from = x[all[i].tensor] + all[i].first;
        int64_t count = all[i].count, c = 0;
        double lanes[2 * W] = {};  // independent sums, for the processor's sake
        for (; c + 2 * W <= count; c += 2 * W) {
            float values[2 * W];
            store(values, load(from + c));
            store(values + W, load(from + c + W));
            for (int k = 0; k < 2 * W; k++) lanes[k] += (double)values[k] * values[k];
        }
        for (; c < count; c++) {
            double value = load(from + c, 1)[0];
            lanes[0] += value * value;
        }
        for (double lane : lanes) sums[i] += lane;
    }
    double total = 0;
    for (double s : sums) total += s;
    return total;
}
