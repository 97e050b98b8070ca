// All layers of an encoder at once, in bfloat16: what `Layer.forward` of encoder.py does kernel by kernel,
// with the same bits. Between two calls Python's own code has left the nearest caches; for a few hundred tokens that costs as
// much as a kernel.
#pragma once
#include "attention.h"
#include "gelu.h"
#include "norm.h"
#include "products.h"
#include <utility>

#if BFLOAT16_UNITS

// T tokens, of which R are `kept` after attention (`rows`, or all of them); widths H and F.
struct LayerShape {
    Sequences sequences;
    const int64_t* rows;
    int64_t tokens, kept, width, inner, heads;
    bool some;  // whether there are `rows`, whose pointer may be null if they are none
    bool causal, tanh;
    float eps;
    bool backward;  // whether there will be a backward pass
};

// A layer's parameters or their gradients, in the order of encoder.py.
template <class P> struct Parameters {
    P *qkv, *qkv_bias, *mix, *mix_bias, *mix_norm, *mix_norm_bias, *inner, *inner_bias, *outer, *outer_bias, *outer_norm, *outer_norm_bias;
};

// Which elements are dropped: attention's weights, and the outputs of both sub-layers.
struct Draws { Draw weights, mixed, outer; };

// What the backward pass needs of the forward pass. The output comes first, so that where all layers keep their numbers at one
// place, the next one reads it before it is overwritten.
struct Kept {
    bfloat16 *y, *qkv, *context, *chosen, *mix_sum, *attended, *inner, *active, *outer_sum;
    uint32_t *qkv_panels, *mix_panels, *inner_panels, *outer_panels;  // null without a backward pass
    float* lse;
    Moments *mix_moments, *outer_moments;
    static int64_t halves(const LayerShape& shape) {
        return (std::max(shape.tokens, shape.kept) + 4 * shape.tokens + (3 + shape.some) * shape.kept) * shape.width +
               2 * shape.kept * shape.inner + (shape.backward ? 4 * shape.width * shape.width + 2 * shape.width * shape.inner : 0);
    }
    static int64_t floats(const LayerShape& shape) { return shape.tokens * shape.heads + 4 * shape.kept; }
    Kept(const LayerShape& shape, bfloat16* halves, float* floats) {
        const auto take = [](auto*& from, int64_t count) { return std::exchange(from, from + count); };
        const int64_t all = shape.tokens * shape.width, some = shape.kept * shape.width;
        y = take(halves, std::max(all, some));
        qkv = take(halves, 3 * all);
        context = take(halves, all);
        chosen = shape.some ? take(halves, some) : context;
        mix_sum = take(halves, some);
        attended = take(halves, some);
        outer_sum = take(halves, some);
        inner = take(halves, shape.kept * shape.inner);
        active = take(halves, shape.kept * shape.inner);
        const auto take_panels = [&](int64_t outer, int64_t inner) {
            return shape.backward ? (uint32_t*)take(halves, outer * inner) : nullptr;
        };
        qkv_panels = take_panels(3 * shape.width, shape.width);
        mix_panels = take_panels(shape.width, shape.width);
        inner_panels = take_panels(shape.inner, shape.width);
        outer_panels = take_panels(shape.width, shape.inner);
        lse = take(floats, shape.tokens * shape.heads);
        mix_moments = (Moments*)take(floats, 2 * shape.kept);
        outer_moments = (Moments*)floats;
    }
};

INLINE const uint16_t* bits(const bfloat16* x) { return (const uint16_t*)x; }

// The output goes to kept.y, which may be `hidden` itself.
static void layer(const bfloat16* hidden, const Parameters<const float>& given, const Kept& kept, const LayerShape& shape,
                  const Draws& draws, int64_t threads) {
    const int64_t R = shape.kept, H = shape.width, F = shape.inner;
    auto product = buffer<bfloat16>(R * H), chosen = buffer<bfloat16>(shape.some ? R * H : 0);
    const bfloat16* residual = hidden;
    dense(bits(hidden), given.qkv, given.qkv_bias, kept.qkv, kept.qkv_panels, shape.tokens, H, 3 * H, threads);
    attention(kept.qkv, shape.sequences, {shape.heads, H / shape.heads}, shape.causal, draws.weights, kept.context, kept.lse, threads);
    if (shape.some) {
        for (int64_t r = 0; r < R; r++) {
            memcpy(kept.chosen + r * H, kept.context + shape.rows[r] * H, H * sizeof *hidden);
            memcpy(chosen.get() + r * H, hidden + shape.rows[r] * H, H * sizeof *hidden);
        }
        residual = chosen.get();
    }
    dense(bits(kept.chosen), given.mix, nullptr, product.get(), kept.mix_panels, R, H, H, threads);
    add_dropout_norm(product.get(), given.mix_bias, residual, given.mix_norm, given.mix_norm_bias, shape.eps, draws.mixed,
                     kept.mix_sum, kept.mix_moments, kept.attended, R, H, threads);
    dense(bits(kept.attended), given.inner, nullptr, kept.inner, kept.inner_panels, R, H, F, threads);
    with_form(shape.tanh, [&](auto form) {
        bias_gelu<bfloat16, form.value>(kept.inner, given.inner_bias, kept.active, R, F, threads);
    });
    dense(bits(kept.active), given.outer, nullptr, product.get(), kept.outer_panels, R, F, H, threads);
    add_dropout_norm(product.get(), given.outer_bias, kept.attended, given.outer_norm, given.outer_norm_bias, shape.eps,
                     draws.outer, kept.outer_sum, kept.outer_moments, kept.y, R, H, threads);
}

// x += y, each sum rounded.
static void add_to(bfloat16* x, const bfloat16* y, int64_t rows, int64_t columns, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        sweep(columns, [&](int64_t c, auto load, auto store) { store(x + r * columns + c, load(x + r * columns + c) + load(y + r * columns + c)); });
}

// The end of a sub-layer, whose output's bias is summed together with its norm.
static void norm_backward(const bfloat16* sum, const Moments* moments, const float* weight, const bfloat16* dy, const Draw& draw,
                          bfloat16* dx, bfloat16* dresidual, float* dbias, float* dweight, float* dnorm_bias, int64_t rows,
                          int64_t columns, int64_t threads) {
    std::vector<float> sums(3 * columns);
    add_dropout_norm_backward(sum, moments, weight, dy, draw, dx, dresidual, sums.data(), rows, columns, threads);
    if (!draw.threshold) memcpy(dx, dresidual, rows * columns * sizeof *dx);
    float* const totals[] = {dbias, dweight, dnorm_bias};
    for (int kind = 0; kind < 3; kind++)
        if (totals[kind]) memcpy(totals[kind], sums.data() + kind * columns, columns * sizeof(float));
}

// The gradients of all that `layer` was given; `dhidden` may be null, and so may all of the parameters'.
static void layer_backward(const bfloat16* dy, const bfloat16* hidden, const Parameters<const float>& given, const Kept& kept,
                           bfloat16* dhidden, const Parameters<float>& gradients, const LayerShape& shape, const Draws& draws,
                           int64_t threads) {
    const int64_t T = shape.tokens, R = shape.kept, H = shape.width, F = shape.inner;
    auto from_norm = buffer<bfloat16>(R * H), attended = buffer<bfloat16>(R * H), inner = buffer<bfloat16>(R * F);
    auto product = buffer<bfloat16>(std::max(T, R) * H), context = buffer<bfloat16>(T * H), qkv = buffer<bfloat16>(3 * T * H);
    norm_backward(kept.outer_sum, kept.outer_moments, given.outer_norm, dy, draws.outer, from_norm.get(), attended.get(),
                  gradients.outer_bias, gradients.outer_norm, gradients.outer_norm_bias, R, H, threads);
    dense_backward(bits(from_norm.get()), bits(kept.active), kept.outer_panels, inner.get(), gradients.outer, nullptr, R, F, H, threads);
    std::vector<float> unasked(gradients.inner_bias ? 0 : F);
    with_form(shape.tanh, [&](auto form) {
        bias_gelu_backward<bfloat16, form.value>(kept.inner, given.inner_bias, inner.get(), inner.get(),
                                                 gradients.inner_bias ? gradients.inner_bias : unasked.data(), R, F, threads);
    });
    dense_backward(bits(inner.get()), bits(kept.attended), kept.inner_panels, product.get(), gradients.inner, nullptr, R, H, F, threads);
    add_to(attended.get(), product.get(), R, H, threads);

    auto residual = buffer<bfloat16>(R * H);
    norm_backward(kept.mix_sum, kept.mix_moments, given.mix_norm, attended.get(), draws.mixed, from_norm.get(), residual.get(),
                  gradients.mix_bias, gradients.mix_norm, gradients.mix_norm_bias, R, H, threads);
    bfloat16* of_chosen = shape.some ? product.get() : context.get();
    dense_backward(bits(from_norm.get()), bits(kept.chosen), kept.mix_panels, of_chosen, gradients.mix, nullptr, R, H, H, threads);
    if (shape.some) {
        memset(context.get(), 0, T * H * sizeof *hidden);
        for (int64_t r = 0; r < R; r++) add_to(context.get() + shape.rows[r] * H, of_chosen + r * H, 1, H, 1);
    }
    attention_backward(kept.qkv, kept.context, kept.lse, context.get(), shape.sequences, {shape.heads, H / shape.heads}, shape.causal,
                       draws.weights, qkv.get(), threads);
    dense_backward(bits(qkv.get()), bits(hidden), kept.qkv_panels, dhidden, gradients.qkv, gradients.qkv_bias, T, H, 3 * H, threads);
    if (!dhidden) return;
    if (!shape.some) return add_to(dhidden, residual.get(), R, H, threads);
    for (int64_t r = 0; r < R; r++) add_to(dhidden + shape.rows[r] * H, residual.get() + r * H, 1, H, 1);
}

// Where the layers keep their numbers: those that the backward pass will not reach, below `first`, all at one place.
struct Shelf {
    LayerShape shape;  // the last layer's
    int64_t count, first;
    bfloat16* halves;
    float* floats;
    LayerShape of(int64_t number) const {
        LayerShape own = shape;
        if (number + 1 < count) own.rows = nullptr, own.some = false, own.kept = shape.tokens;
        own.backward = number >= first;
        return own;
    }
    // How many numbers lie before a layer's own; before `count`, that is all of them.
    int64_t before(int64_t number, int64_t (*size)(const LayerShape&)) const {
        if (number < first) return 0;
        int64_t total = first ? std::max(size(of(0)), size(of(first - 1))) : 0;
        for (int64_t kept = first; kept < number; kept++) total += size(of(kept));
        return total;
    }
    Kept at(int64_t number) const { return {of(number), halves + before(number, Kept::halves), floats + before(number, Kept::floats)}; }
};

// hidden, T H, through all layers; the last one's output, R H, is `at(count - 1).y`.
static void layers(const bfloat16* hidden, const Parameters<const float>* given, const Shelf& shelf, const Draws* draws,
                   int64_t threads) {
    for (int64_t number = 0; number < shelf.count; number++) {
        const Kept kept = shelf.at(number);
        layer(hidden, given[number], kept, shelf.of(number), draws[number], threads);
        hidden = kept.y;
    }
}

// From the last layer down to the first that keeps, whose input's gradient goes to `dhidden` unless that is null.
static void layers_backward(const bfloat16* dy, const bfloat16* hidden, const Parameters<const float>* given, const Shelf& shelf,
                            bfloat16* dhidden, const Parameters<float>* gradients, const Draws* draws, int64_t threads) {
    const int64_t size = shelf.shape.tokens * shelf.shape.width;
    auto between = buffer<bfloat16>(2 * size);
    for (int64_t number = shelf.count - 1; number >= shelf.first; number--) {
        bfloat16* dx = number == shelf.first ? dhidden : between.get() + number % 2 * size;
        layer_backward(dy, number ? shelf.at(number - 1).y : hidden, given[number], shelf.at(number), dx, gradients[number],
                       shelf.of(number), draws[number], threads);
        dy = dx;
    }
}
#endif
