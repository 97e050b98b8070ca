// Cross entropy of rows of logits, which become its gradient in place.
#pragma once
#include "row_reduction.h"

// s = x + bias; returns the largest element of s.
template <class T> INLINE float add_bias(const T* x, const float* bias, float* s, int64_t columns) {
    FloatVec best = broadcast(-INFINITY);
    int64_t c = 0;
    for (; c + W <= columns; c += W) {
        const FloatVec sum = load(x + c) + load(bias + c);
        store(s + c, sum);
        best = max(best, sum);
    }
    float top = reduce_max(best);
    if (const int rest = (int)(columns - c)) store(s + c, load(x + c, rest) + load(bias + c, rest), rest);
    for (; c < columns; c++) top = s[c] > top ? s[c] : top;
    return top;
}

// losses[r] = -log softmax(x + bias)[label]; correct[r] = whether the label is the first column with the largest logit.
// A row with a negative label is ignored: its loss and gradient are 0. Rows are `stride` apart. Unless dbias is null, x
// becomes scale · (softmax - onehot) and dbias its sum over rows.
template <class T>
static void cross_entropy(T* x, int64_t stride, const float* bias, const int64_t* labels, float scale, float* losses,
                          int64_t* correct, float* dbias, int64_t rows, int64_t columns, int64_t threads) {
    constexpr int TOTALS = 4;  // independent sums, which hide the latency of addition
    const RowReduction reduction(rows, dbias ? columns : 0, 1);
    const PerThread<float> sums(columns, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t block = 0; block < reduction.blocks; block++) {
        float *s = sums.mine(), *dsum = reduction.sums(block, 0);
        if (dbias) reduction.zero(block);
        for (int64_t r = reduction.begin(block); r < reduction.end(block); r++) {
            T* xr = x + r * stride;
            if (labels[r] < 0) {
                losses[r] = 0;
                correct[r] = 0;
                if (dbias) std::fill(xr, xr + columns, T{});
                continue;
            }
            const float top = add_bias(xr, bias, s, columns);
            float* at_label = s + labels[r];
            correct[r] = *at_label == top && std::find(s, at_label, top) == at_label;
            losses[r] = *at_label;
            FloatVec totals[TOTALS] = {};
            int64_t c = 0;
            for (; c + W <= columns; c += W) {
                const FloatVec e = exp(load(s + c) - top);
                store(s + c, e);
                totals[c / W % TOTALS] += e;
            }
            float total = reduce_add((totals[0] + totals[1]) + (totals[2] + totals[3]));
            for (; c < columns; c++) total += s[c] = std::exp(s[c] - top);
            losses[r] = std::log(total) + top - losses[r];
            if (!dbias) continue;
            *at_label -= total;
            const float factor = scale / total;
            for_each_vector(columns, [&](int64_t c, auto load, auto store) {
                const FloatVec g = load(s + c) * factor;
                store(xr + c, g);
                store(dsum + c, load(dsum + c) + g);
            });
        }
    }
    if (dbias) reduction.finish(dbias, 0, threads);
}
