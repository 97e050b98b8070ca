// The arguments of all layers of an encoder in one call, in bfloat16 (encoder.h) and in int8 (int8_encoder.h).
#pragma once
#include "interface.h"

// `EncoderArgs` of fused_encoder.py, which explains the fields.
#define ENCODER_ARGS(X)                                                                                      \
    X(const int32_t*, cu_seqlens) X(const int64_t*, positions) X(const float*, bias) X(int64_t, reach)       \
    X(int64_t, sequences) X(int64_t, num_layers) X(int64_t, first_saved) X(int64_t, has_positions)           \
    X(int64_t, tokens) X(int64_t, selected) X(int64_t, hidden_size) X(int64_t, intermediate_size)            \
    X(int64_t, num_heads) X(int64_t, causal) X(int64_t, activation) X(double, eps)
struct EncoderArgs {
    ENCODER_ARGS(DECLARE_FIELD)
};
