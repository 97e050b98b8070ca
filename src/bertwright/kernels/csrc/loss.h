// Cross entropy of rows of logits, which become the loss's gradient in place.
#pragma once
#include "sums.h"

struct Best { float value; int64_t place; };

// The largest logit + bias and its first place; the sums are stored.
template <class T>
INLINE Best add_bias(const T* x, const float* bias, float* s, int64_t columns) {
    Lanes best = all(-INFINITY);
    sweep(columns, [&](int64_t c, auto load, auto store) { store(s + c, load(x + c) + load(bias + c)); });
    int64_t c = 0;
    for (; c + W <= columns; c += W) best = max(best, load(s + c));
    float m = highest(best);
    for (; c < columns; c++) m = s[c] > m ? s[c] : m;
    int64_t place = 0;
    while (place < columns && s[place] != m) place++;
    return {m, place};
}

// losses[r] = -log softmax(x + bias)[label]; correct[r] = whether the label has the highest logit.
// Rows lie `stride` apart. With `dbias`, x becomes scale · (softmax - onehot) and dbias their sum over rows.
template <class T>
static void cross_entropy(T* x, int64_t stride, const float* bias, const int64_t* labels, float scale, float* losses,
                          int64_t* correct, float* dbias, int64_t rows, int64_t columns, int64_t threads) {
    Sums sums(rows, dbias ? columns : 0, 1);
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> row_sum(columns + W);
        float* s = row_sum.data();
#pragma omp for schedule(static)
        for (int64_t block = 0; block < sums.blocks; block++) {
            float* dsum = sums.of(block, 0);
            for (int64_t r = sums.begin(block); r < sums.end(block); r++) {
                T* xr = x + r * stride;
                Best best = add_bias(xr, bias, s, columns);
                float at_label = s[labels[r]];
                Lanes totals[4] = {};
                int64_t c = 0;
                for (; c + W <= columns; c += W) {
                    Lanes e = exp(load(s + c) - best.value);
                    store(s + c, e);
                    totals[c / W % 4] += e;
                }
                float total = sum((totals[0] + totals[1]) + (totals[2] + totals[3]));
                for (; c < columns; c++) total += s[c] = std::exp(s[c] - best.value);
                losses[r] = std::log(total) + best.value - at_label;
                correct[r] = best.place == labels[r];
                if (!dbias) continue;
                s[labels[r]] -= total;
                float factor = scale / total;
                sweep(columns, [&](int64_t c, auto load, auto store) {
                    Lanes g = load(s + c) * factor;
                    store(xr + c, g);
                    store(dsum + c, load(dsum + c) + g);
                });
            }
        }
    }
    if (dbias) sums.into(dbias, 0, threads);
}
