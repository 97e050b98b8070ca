// AdamW in one pass over its four float32 tensors, and the sum of squares for gradient clipping.
#pragma once
#include "interface.h"
#include "simd.h"
#include <vector>

// `AdamStep` of reference.py, which explains the fields.
#define ADAM_STEP(X)                                                                 \
    X(double, lr) X(double, beta1) X(double, beta2) X(double, eps) X(double, weight_decay) \
    X(double, clip_scale) X(double, correction1) X(double, correction2)
struct AdamStep {
    ADAM_STEP(DECLARE_FIELD)
};

// Updates `count` consecutive elements.
INLINE void adamw_span(float* p, const float* g, float* m, float* v, int64_t count, const AdamStep& step) {
    const float b1 = step.beta1, b2 = step.beta2, rest1 = 1 - step.beta1, rest2 = 1 - step.beta2;
    const float clip = step.clip_scale, eps = step.eps, rate = step.lr / step.correction1;
    const float decay = 1 - step.lr * step.weight_decay, root = 1 / std::sqrt(step.correction2);
    for_each_vector(count, [&](int64_t c, auto load, auto store) {
        const FloatVec grad = load(g + c) * clip;
        const FloatVec mean = load(m + c) * b1 + grad * rest1;
        const FloatVec square = load(v + c) * b2 + grad * grad * rest2;
        store(m + c, mean);
        store(v + c, square);
        store(p + c, load(p + c) * decay - rate * mean / (root * sqrt(square) + eps));
    });
}

// Many tensors as spans of at most SPAN elements, so that a few large and many small ones are shared out evenly.
constexpr int64_t SPAN = 1 << 14;
struct Span {
    int64_t tensor, first, count;
};
static std::vector<Span> split_into_spans(const int64_t* sizes, int64_t tensors) {
    std::vector<Span> spans;
    for (int64_t t = 0; t < tensors; t++)
        for (int64_t first = 0; first < sizes[t]; first += SPAN)
            spans.push_back({t, first, std::min(SPAN, sizes[t] - first)});
    return spans;
}

static void adamw(float* const* parameters, const float* const* gradients, float* const* exp_avg,
                  float* const* exp_avg_sq, const int64_t* sizes, int64_t tensors, const AdamStep& step,
                  int64_t threads) {
    const std::vector<Span> spans = split_into_spans(sizes, tensors);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t i = 0; i < spans.size(); i++) {
        const Span span = spans[i];
        adamw_span(parameters[span.tensor] + span.first, gradients[span.tensor] + span.first,
                   exp_avg[span.tensor] + span.first, exp_avg_sq[span.tensor] + span.first, span.count, step);
    }
}

// The same bits for a table most of whose rows have no gradient: gradient_rows[r] is the row of `gradient` that belongs
// to row r, or -1. A row that never had a gradient (`touched` is 0) has moments of zero and only decays.
static void adamw_rows(float* parameter, const float* gradient, const int64_t* gradient_rows, uint8_t* touched,
                       float* exp_avg, float* exp_avg_sq, const AdamStep& step, int64_t rows, int64_t columns,
                       int64_t threads) {
    const std::vector<float> zeros(columns);
    const float decay = 1 - step.lr * step.weight_decay;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float* p = parameter + r * columns;
        const bool has_gradient = gradient_rows[r] >= 0;
        if (has_gradient) touched[r] = 1;
        if (touched[r]) {
            const float* g = has_gradient ? gradient + gradient_rows[r] * columns : zeros.data();
            adamw_span(p, g, exp_avg + r * columns, exp_avg_sq + r * columns, columns, step);
        } else if (decay != 1) {
            for_each_vector(columns, [&](int64_t c, auto load, auto store) { store(p + c, load(p + c) * decay); });
        }
    }
}

// In double precision, span by span, added in order: the bits do not depend on the number of threads.
static double square_sum(const float* const* x, const int64_t* sizes, int64_t tensors, int64_t threads) {
    constexpr int LANES = 2 * W;  // independent sums, which hide the latency of addition
    const std::vector<Span> spans = split_into_spans(sizes, tensors);
    std::vector<double> sums(spans.size());
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t i = 0; i < spans.size(); i++) {
        const float* from = x[spans[i].tensor] + spans[i].first;
        const int64_t count = spans[i].count;
        int64_t c = 0;
        double lanes[LANES] = {};
        for (; c + LANES <= count; c += LANES) {
            float values[LANES];
            store(values, load(from + c));
            store(values + W, load(from + c + W));
            for (int k = 0; k < LANES; k++) lanes[k] += (double)values[k] * values[k];
        }
        for (; c < count; c++) lanes[0] += (double)from[c] * from[c];
        for (double lane : lanes) sums[i] += lane;
    }
    double total = 0;
    for (double sum : sums) total += sum;
    return total;
}
