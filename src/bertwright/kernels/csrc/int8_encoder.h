// All layers of an encoder in one call, without gradients: linear layers in int8, all else in float32. The same bits as
// `Layer.forward` of bert_encoder.py with modules in int8.
#pragma once
#include "attention.h"
#include "int8_linear.h"
#include "layer_norm.h"

#if HAS_INT8

// `Int8EncoderArgs` of int8_linear.py.
#define INT8_ENCODER_ARGS(X)                                                                                 \
    X(const int32_t*, cu_seqlens) X(const int64_t*, positions) X(const float*, bias) X(int64_t, reach)       \
    X(int64_t, sequences) X(int64_t, num_layers) X(int64_t, has_positions) X(int64_t, tokens)                \
    X(int64_t, selected) X(int64_t, hidden_size) X(int64_t, intermediate_size) X(int64_t, num_heads)         \
    X(int64_t, causal) X(int64_t, activation) X(double, eps)
struct Int8EncoderArgs {
    INT8_ENCODER_ARGS(DECLARE_FIELD)
};

#define INT8_LINEAR(X, name)                                                                            \
    X(const int8_t*, name##_panels) X(const float*, name##_scales) X(const int32_t*, name##_sums)       \
    X(const float*, name##_bias)
#define INT8_LAYER(X)                                                                                   \
    INT8_LINEAR(X, qkv) INT8_LINEAR(X, attention_output) INT8_LINEAR(X, intermediate) INT8_LINEAR(X, output) \
    X(const float*, attention_norm_weight) X(const float*, attention_norm_bias)                         \
    X(const float*, output_norm_weight) X(const float*, output_norm_bias)
struct Int8Layer {
    INT8_LAYER(DECLARE_FIELD)
};

// hidden, T H, through all layers → y, R H; R = T without positions.
static void int8_encoder(const Int8EncoderArgs& args, const Int8Layer* layers, const float* hidden, float* y,
                         int64_t threads) {
    const int64_t T = args.tokens, H = args.hidden_size, F = args.intermediate_size, heads = args.num_heads;
    const Buffer<float> wide(T * std::max(3 * H, F)), context(T * H), product(T * H), attended(T * H), states(T * H);
    const Buffer<float> lse(T * heads);
    const MaskKey none{};
    for (int64_t l = 0; l < args.num_layers; l++) {
        const Int8Layer& p = layers[l];
        const bool is_last = l + 1 == args.num_layers, selects = is_last && args.has_positions;
        const int64_t R = selects ? args.selected : T;
        const float *residual = hidden, *read = context.get();
        int8_linear(hidden, {p.qkv_panels, p.qkv_scales, p.qkv_sums, p.qkv_bias, H, 3 * H}, NO_ACTIVATION, wide.get(), T,
                    threads);
        attention(AttentionArgs{wide.get(), wide.get(), 3, 3, args.cu_seqlens, args.cu_seqlens, args.sequences, heads,
                                H / heads, args.causal, args.bias, args.reach},
                  none, context.get(), lse.get(), threads);
        if (selects) {  // into memory that no longer holds queries, keys and values
            for (int64_t r = 0; r < R; r++) {
                memcpy(wide.get() + r * H, context.get() + args.positions[r] * H, H * sizeof *hidden);
                memcpy(wide.get() + (R + r) * H, hidden + args.positions[r] * H, H * sizeof *hidden);
            }
            read = wide.get(), residual = wide.get() + R * H;
        }
        int8_linear(read, {p.attention_output_panels, p.attention_output_scales, p.attention_output_sums, nullptr, H, H},
                    NO_ACTIVATION, product.get(), R, threads);
        add_dropout_norm(product.get(), p.attention_output_bias, residual, p.attention_norm_weight,
                         p.attention_norm_bias, (float)args.eps, none, (float*)nullptr, nullptr, attended.get(), R, H,
                         threads);
        int8_linear(attended.get(),
                    {p.intermediate_panels, p.intermediate_scales, p.intermediate_sums, p.intermediate_bias, H, F},
                    args.activation, wide.get(), R, threads);
        int8_linear(wide.get(), {p.output_panels, p.output_scales, p.output_sums, nullptr, F, H}, NO_ACTIVATION,
                    product.get(), R, threads);
        float* out = is_last ? y : states.get();
        add_dropout_norm(product.get(), p.output_bias, attended.get(), p.output_norm_weight, p.output_norm_bias,
                         (float)args.eps, none, (float*)nullptr, nullptr, out, R, H, threads);
        hidden = out;
    }
}
#endif
