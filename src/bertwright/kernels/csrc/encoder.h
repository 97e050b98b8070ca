// All layers of an encoder in one call, in bfloat16: the same bits as `Layer.forward` of bert_encoder.py kernel by
// kernel.
// Between two calls Python evicts the first-level caches, which for a few hundred tokens costs as much as a kernel.
#pragma once
#include "attention.h"
#include "encoder_args.h"
#include "gelu.h"
#include "gemm_bf16.h"
#include "layer_norm.h"

#if HAS_BF16_ISA

// T tokens enter, R leave attention; hidden size H, feed-forward size F.
struct LayerShape {
    int64_t T, R, H, F;
    const int64_t* positions;   // R of the tokens; null with has_positions if R is 0
    bool has_positions, saves;  // saves: there will be a backward pass
};

// Pointers to a layer's parameters or their gradients.
#define LAYER_PARAMETERS(X)                                                                                     \
    X(P*, qkv_weight) X(P*, qkv_bias) X(P*, attention_output_weight) X(P*, attention_output_bias)               \
    X(P*, attention_norm_weight) X(P*, attention_norm_bias) X(P*, intermediate_weight) X(P*, intermediate_bias) \
    X(P*, output_weight) X(P*, output_bias) X(P*, output_norm_weight) X(P*, output_norm_bias)
template <class P> struct LayerParameters {
    LAYER_PARAMETERS(DECLARE_FIELD)
};

struct LayerMaskKeys {
    MaskKey weights, attention_output, output;
};

// What the backward pass needs of the forward pass. `y` comes first: layers that save nothing share their memory, and
// the next layer reads y before it is overwritten.
struct SavedActivations {
    bfloat16 *y, *qkv, *context, *selected, *attention_sum, *attended, *output_sum, *intermediate, *activated;
    uint32_t *qkv_panels, *attention_output_panels, *intermediate_panels, *output_panels;  // null without backward
    float* lse;
    Moments *attention_moments, *output_moments;
    SavedActivations(Arena arena, const LayerShape& s, int64_t heads, int64_t* bytes = nullptr) {
        const auto panels = [&](int64_t out, int64_t in) {
            return s.saves ? arena.take<uint32_t>(panel_words(in, out)) : nullptr;
        };
        y = arena.take<bfloat16>(std::max(s.T, s.R) * s.H);
        qkv = arena.take<bfloat16>(3 * s.T * s.H);
        context = arena.take<bfloat16>(s.T * s.H);
        selected = s.has_positions ? arena.take<bfloat16>(s.R * s.H) : context;
        attention_sum = arena.take<bfloat16>(s.R * s.H);
        attended = arena.take<bfloat16>(s.R * s.H);
        output_sum = arena.take<bfloat16>(s.R * s.H);
        intermediate = arena.take<bfloat16>(s.R * s.F);
        activated = arena.take<bfloat16>(s.R * s.F);
        qkv_panels = panels(3 * s.H, s.H);
        attention_output_panels = panels(s.H, s.H);
        intermediate_panels = panels(s.F, s.H);
        output_panels = panels(s.H, s.F);
        lse = arena.take<float>(s.T * heads);
        attention_moments = arena.take<Moments>(s.R);
        output_moments = arena.take<Moments>(s.R);
        if (bytes) *bytes = arena.used;
    }
};

// One layer as both passes read it.
struct Layer {
    const EncoderArgs& args;
    LayerShape shape;
    const LayerParameters<const float>& parameters;
    SavedActivations saved;
    LayerMaskKeys keys;  // of attention's weights, and of the outputs of both sub-layers
    int64_t threads;
    AttentionArgs attention() const {
        const int64_t H = shape.H, heads = args.num_heads;
        return {saved.qkv, saved.qkv, 3,         3,          args.cu_seqlens, args.cu_seqlens, args.sequences,
                heads,     H / heads, args.causal, nullptr,   0,          0};
    }
};

// The output goes to layer.saved.y, which may be `hidden` itself.
static void layer_forward(const Layer& layer, const bfloat16* hidden) {
    const EncoderArgs& args = layer.args;
    const LayerShape& s = layer.shape;
    const LayerParameters<const float>& p = layer.parameters;
    const SavedActivations& saved = layer.saved;
    const LayerMaskKeys& keys = layer.keys;
    const int64_t threads = layer.threads;
    const Buffer<bfloat16> product(s.R * s.H), selected(s.has_positions ? s.R * s.H : 0);
    const bfloat16* residual = hidden;
    const float eps = args.eps;
    linear_forward(hidden, p.qkv_weight, p.qkv_bias, saved.qkv, saved.qkv_panels, s.T, s.H, 3 * s.H, threads);
    attention(layer.attention(), keys.weights, saved.context, saved.lse, threads);
    if (s.has_positions) {
        for (int64_t r = 0; r < s.R; r++) {
            memcpy(saved.selected + r * s.H, saved.context + s.positions[r] * s.H, s.H * sizeof *hidden);
            memcpy(selected.get() + r * s.H, hidden + s.positions[r] * s.H, s.H * sizeof *hidden);
        }
        residual = selected.get();
    }
    linear_forward(saved.selected, p.attention_output_weight, nullptr, product.get(), saved.attention_output_panels,
                   s.R, s.H, s.H, threads);
    add_dropout_norm(product.get(), p.attention_output_bias, residual, p.attention_norm_weight, p.attention_norm_bias,
                     eps, keys.attention_output, s.saves ? saved.attention_sum : nullptr, saved.attention_moments,
                     saved.attended, s.R, s.H, threads);
    linear_forward(saved.attended, p.intermediate_weight, nullptr, saved.intermediate, saved.intermediate_panels, s.R,
                   s.H, s.F, threads);
    with_tanh(args.activation == GELU_TANH, [&](auto tanh) {
        bias_gelu<bfloat16, tanh>(saved.intermediate, p.intermediate_bias, saved.activated, s.R, s.F, threads);
    });
    linear_forward(saved.activated, p.output_weight, nullptr, product.get(), saved.output_panels, s.R, s.F, s.H,
                   threads);
    add_dropout_norm(product.get(), p.output_bias, saved.attended, p.output_norm_weight, p.output_norm_bias, eps,
                     keys.output, s.saves ? saved.output_sum : nullptr, saved.output_moments, saved.y, s.R, s.H,
                     threads);
}

// x += y, each sum rounded.
static void add_to(bfloat16* x, const bfloat16* y, int64_t rows, int64_t columns, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for_each_vector(columns, [&](int64_t c, auto load, auto store) {
            store(x + r * columns + c, load(x + r * columns + c) + load(y + r * columns + c));
        });
}

// add_dropout_norm_backward with separate gradients of the three vectors, each unless it is null.
static void norm_backward(const bfloat16* sum, const Moments* moments, const float* weight, const bfloat16* dy,
                          const MaskKey& key, bfloat16* dx, bfloat16* dresidual, float* dbias, float* dweight,
                          float* dnorm_bias, int64_t rows, int64_t columns, int64_t threads) {
    const Buffer<float> sums(3 * columns);
    add_dropout_norm_backward(sum, moments, weight, dy, key, dx, dresidual, sums.get(), rows, columns, threads);
    if (!key.threshold) memcpy(dx, dresidual, rows * columns * sizeof *dx);
    float* const totals[] = {dbias, dweight, dnorm_bias};
    for (int kind = 0; kind < 3; kind++)
        if (totals[kind]) memcpy(totals[kind], sums.get() + kind * columns, columns * sizeof(float));
}

// Gradients of all inputs of layer_forward; `dhidden` may be null, and so may all of the parameters' gradients, `d`.
static void layer_backward(const Layer& layer, const bfloat16* dy, const bfloat16* hidden, bfloat16* dhidden,
                           const LayerParameters<float>& d) {
    const EncoderArgs& args = layer.args;
    const LayerShape& s = layer.shape;
    const LayerParameters<const float>& p = layer.parameters;
    const SavedActivations& saved = layer.saved;
    const LayerMaskKeys& keys = layer.keys;
    const int64_t threads = layer.threads;
    const Buffer<bfloat16> dnormed(s.R * s.H), dattended(s.R * s.H), dintermediate(s.R * s.F), dresidual(s.R * s.H);
    const Buffer<bfloat16> dlinear(std::max(s.T, s.R) * s.H), dcontext(s.T * s.H), dqkv(3 * s.T * s.H);
    const Buffer<float> unused(d.intermediate_bias ? 0 : s.F);
    norm_backward(saved.output_sum, saved.output_moments, p.output_norm_weight, dy, keys.output, dnormed.get(),
                  dattended.get(), d.output_bias, d.output_norm_weight, d.output_norm_bias, s.R, s.H, threads);
    linear_backward(dnormed.get(), saved.activated, saved.output_panels, dintermediate.get(), d.output_weight, nullptr,
                    s.R, s.F, s.H, threads);
    with_tanh(args.activation == GELU_TANH, [&](auto tanh) {
        bias_gelu_backward<bfloat16, tanh>(saved.intermediate, p.intermediate_bias, dintermediate.get(),
                                           dintermediate.get(),
                                           d.intermediate_bias ? d.intermediate_bias : unused.get(), s.R, s.F, threads);
    });
    linear_backward(dintermediate.get(), saved.attended, saved.intermediate_panels, dlinear.get(),
                    d.intermediate_weight, nullptr, s.R, s.H, s.F, threads);
    add_to(dattended.get(), dlinear.get(), s.R, s.H, threads);

    norm_backward(saved.attention_sum, saved.attention_moments, p.attention_norm_weight, dattended.get(),
                  keys.attention_output, dnormed.get(), dresidual.get(), d.attention_output_bias,
                  d.attention_norm_weight, d.attention_norm_bias, s.R, s.H, threads);
    bfloat16* dselected = s.has_positions ? dlinear.get() : dcontext.get();
    linear_backward(dnormed.get(), saved.selected, saved.attention_output_panels, dselected, d.attention_output_weight,
                    nullptr, s.R, s.H, s.H, threads);
    if (s.has_positions) {
        memset(dcontext.get(), 0, s.T * s.H * sizeof *hidden);
        for (int64_t r = 0; r < s.R; r++) add_to(dcontext.get() + s.positions[r] * s.H, dselected + r * s.H, 1, s.H, 1);
    }
    attention_backward(layer.attention(), keys.weights,
                       Backward<bfloat16>{saved.context, saved.lse, dcontext.get(), dqkv.get(), dqkv.get(), nullptr},
                       threads);
    linear_backward(dqkv.get(), hidden, saved.qkv_panels, dhidden, d.qkv_weight, d.qkv_bias, s.T, s.H, 3 * s.H,
                    threads);
    if (!dhidden) return;
    if (!s.has_positions) return add_to(dhidden, dresidual.get(), s.R, s.H, threads);
    for (int64_t r = 0; r < s.R; r++) add_to(dhidden + s.positions[r] * s.H, dresidual.get() + r * s.H, 1, s.H, 1);
}

// The operands of a call for all layers. Saved activations are in one block of memory, `workspace`; layers below
// `first_saved` share theirs.
struct Layers {
    const EncoderArgs& args;
    const LayerParameters<const float>* parameters;
    const MaskKey* keys;  // three per layer
    void* workspace;
    int64_t threads;
    LayerShape shape(int64_t l) const {
        const bool selects = args.has_positions && l + 1 == args.num_layers;
        return {args.tokens,
                selects ? args.selected : args.tokens,
                args.hidden_size,
                args.intermediate_size,
                selects ? args.positions : nullptr,
                selects,
                l >= args.first_saved};
    }
    int64_t bytes(int64_t l) const {
        int64_t bytes;
        SavedActivations({}, shape(l), args.num_heads, &bytes);
        return bytes;
    }
    // Bytes before a layer's own; for `num_layers`, the bytes of all layers.
    int64_t offset(int64_t layer) const {
        if (layer < args.first_saved) return 0;
        int64_t total = args.first_saved ? std::max(bytes(0), bytes(args.first_saved - 1)) : 0;
        for (int64_t l = args.first_saved; l < layer; l++) total += bytes(l);
        return total;
    }
    Layer at(int64_t l) const {
        const SavedActivations saved{Arena{(char*)workspace + offset(l)}, shape(l), args.num_heads};
        return {args, shape(l), parameters[l], saved, {keys[3 * l], keys[3 * l + 1], keys[3 * l + 2]}, threads};
    }
};

// hidden, T H, through all layers → y, R H.
static void encoder_forward(const Layers& layers, const bfloat16* hidden, bfloat16* y) {
    const EncoderArgs& args = layers.args;
    for (int64_t l = 0; l < args.num_layers; l++) {
        const Layer layer = layers.at(l);
        layer_forward(layer, hidden);
        hidden = layer.saved.y;
    }
    std::copy_n(hidden, args.selected * args.hidden_size, y);  // y is null if nothing is selected
}

// From the last layer down to `first_saved`; the gradient of that layer's input goes to `dhidden` unless it is null.
static void encoder_backward(const Layers& layers, const bfloat16* dy, const bfloat16* hidden, bfloat16* dhidden,
                             const LayerParameters<float>* gradients) {
    const EncoderArgs& args = layers.args;
    const int64_t size = args.tokens * args.hidden_size;
    const Buffer<bfloat16> between(2 * size);
    for (int64_t l = args.num_layers - 1; l >= args.first_saved; l--) {
        bfloat16* dx = l == args.first_saved ? dhidden : between.get() + l % 2 * size;
        layer_backward(layers.at(l), dy, l ? layers.at(l - 1).saved.y : hidden, dx, gradients[l]);
        dy = dx;
    }
}
#endif
