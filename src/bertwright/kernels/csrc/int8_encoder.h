// All layers of an encoder in one call, without gradients: linear layers in int8, all else in float32. The same bits as
// `Layer.forward` of bert_encoder.py with modules in int8.
#pragma once
#include "attention.h"
#include "encoder_args.h"
#include "int8_linear.h"
#include "layer_norm.h"

#if HAS_INT8

// hidden, T H, through all layers → y, R H; R = T without positions. Of each layer four `layers`, in the order of
// LINEAR_NAMES, and four `norms`: weight and bias behind attention, and behind the feed-forward layers.
static void int8_encoder(const EncoderArgs& args, const Int8Layer* layers, const float* const* norms,
                         const float* hidden, float* y, int64_t threads) {
    const int64_t T = args.tokens, H = args.hidden_size, F = args.intermediate_size, heads = args.num_heads;
    const Buffer<float> wide(T * std::max(3 * H, F)), context(T * H), product(T * H), attended(T * H), states(T * H);
    const Buffer<float> lse(T * heads);
    const MaskKey none{};
    const AttentionArgs sequences{wide.get(), wide.get(), 3, 3, args.cu_seqlens, args.cu_seqlens, args.sequences, heads,
                                  H / heads, args.causal, args.bias, args.reach, 0};
    const auto multiply_without_bias = [&](const float* x, Int8Layer layer, int64_t rows) {
        layer.bias = nullptr;
        int8_linear(x, layer, NO_ACTIVATION, product.get(), rows, threads);
    };
    for (int64_t l = 0; l < args.num_layers; l++, layers += 4, norms += 4) {
        const bool is_last = l + 1 == args.num_layers, selects = is_last && args.has_positions;
        const int64_t R = selects ? args.selected : T;
        const float *residual = hidden, *read = context.get();
        const auto add_norm = [&](const float* bias, const float* other, const float* const* norm, float* result) {
            add_dropout_norm(product.get(), bias, other, norm[0], norm[1], (float)args.eps, none, (float*)nullptr,
                             nullptr, result, R, H, threads);
        };
        int8_linear(hidden, layers[0], NO_ACTIVATION, wide.get(), T, threads);
        attention(sequences, none, context.get(), lse.get(), threads);
        if (selects) {  // into memory that no longer holds queries, keys and values
            for (int64_t r = 0; r < R; r++) {
                memcpy(wide.get() + r * H, context.get() + args.positions[r] * H, H * sizeof *hidden);
                memcpy(wide.get() + (R + r) * H, hidden + args.positions[r] * H, H * sizeof *hidden);
            }
            read = wide.get(), residual = wide.get() + R * H;
        }
        multiply_without_bias(read, layers[1], R);
        add_norm(layers[1].bias, residual, norms, attended.get());
        int8_linear(attended.get(), layers[2], args.activation, wide.get(), R, threads);
        multiply_without_bias(wide.get(), layers[3], R);
        float* out = is_last ? y : states.get();
        add_norm(layers[3].bias, attended.get(), norms + 2, out);
        hidden = out;
    }
}
#endif
