// gelu(x + bias) and its gradients.
#pragma once
#include "row_reduction.h"

enum Activation { NO_ACTIVATION, GELU_ERF, GELU_TANH, RELU };  // as ACTIVATIONS of reference.py

// Value and derivative of gelu.
struct Gelu {
    FloatVec value, slope;
};

// From e = e^(-z²/2) and erfcx(|z|/√2) = p · t.
INLINE Gelu gelu_from_erfcx(FloatVec z, FloatVec e, FloatVec p, FloatVec t) {
    FloatVec tail = 0.5f * e * p * t;
    FloatVec cdf = z < 0.0f ? tail : 1.0f - tail;
    return {z * cdf, cdf + z * e * 0.398942280f};
}

// z · Φ(z). One exponential serves both Φ(z) = ½ · e^(-z²/2) · erfcx(-z/√2) and its derivative, the normal density.
// erfcx(u) = t · P(t), t = 1 / (1 + 0.33 u): a minimax fit on [0, 10], relative error below 1e-7.
INLINE Gelu gelu_erf(FloatVec z) {
    FloatVec u = (FloatVec)((UIntVec)z & 0x7FFFFFFFu) * 0.707106781f;
    FloatVec t = 1.0f / (1.0f + 0.33f * u);
    FloatVec p = broadcast(-0.13534471461538813f);
    p = p * t + 0.46023321313819715f;
    p = p * t - 0.35114322921137125f;
    p = p * t + 0.40849423602513485f;
    p = p * t + 0.04722359423638842f;
    p = p * t + 0.20122302124713531f;
    p = p * t + 0.18295607706601502f;
    p = p * t + 0.18635779459225849f;
    return gelu_from_erfcx(z, exp(z * z * -0.5f), p, t);
}

// ½ z (1 + tanh(√(2/π) (z + 0.044715 z³))), with ½ (1 + tanh(v)) = 1 / (1 + e^(-2v)).
INLINE Gelu gelu_tanh(FloatVec z) {
    const float k = 1.59576912f;  // 2 √(2/π)
    FloatVec s = 1.0f / (1.0f + exp(-k * z * (1.0f + 0.044715f * z * z)));
    return {z * s, s + z * s * (1.0f - s) * k * (1.0f + 0.134145f * z * z)};
}

// Faster versions for results that are rounded to 8 bits: relative error below 2^-12.
namespace approx {
INLINE FloatVec reciprocal(FloatVec x) {
#if HAS_AVX512
    return (FloatVec)_mm512_rcp14_ps((__m512)x);
#else
    return 1.0f / x;
#endif
}
// 2^x for x ≤ 127; 0 below -126.
INLINE FloatVec exp2(FloatVec x) {
    FloatVec shifted = x + ROUND_TO_INT;
    FloatVec f = x - (shifted - ROUND_TO_INT);
    FloatVec p = broadcast(0.0551717746f);  // minimax on [-½, ½]
    p = p * f + 0.242611372f;
    p = p * f + 0.693260970f;
    p = p * f + 0.999928027f;
    return x < -126.0f ? FloatVec{} : scale_by_power(p, shifted);
}
INLINE Gelu gelu_erf(FloatVec z) {
    FloatVec u = (FloatVec)((UIntVec)z & 0x7FFFFFFFu);
    FloatVec t = reciprocal(1.0f + (0.54f * 0.707106781f) * u);  // erfcx as above with four terms fewer
    FloatVec p = broadcast(-0.178802891f);
    p = p * t + 0.368530040f;
    p = p * t + 0.190529270f;
    p = p * t + 0.315662727f;
    p = p * t + 0.304041946f;
    return gelu_from_erfcx(z, exp2(z * z * -0.721347520f), p, t);
}
INLINE Gelu gelu_tanh(FloatVec z) {
    const float k = 1.59576912f;
    FloatVec v = -1.44269504f * k * z * (1.0f + 0.044715f * z * z);
    FloatVec e = exp2(v > 127.0f ? broadcast(127.0f) : v), s = reciprocal(1.0f + e);
    return {z * s, s + z * s * (e * s) * k * (1.0f + 0.134145f * z * z)};  // e · s = 1 - s without cancellation
}
}  // namespace approx

// f(std::bool_constant<tanh>).
template <class F> INLINE void with_tanh(bool tanh, F f) {
    if (tanh) f(std::true_type{});
    else f(std::false_type{});
}

template <class T, bool TANH> INLINE Gelu gelu(FloatVec z) {
    if constexpr (std::is_same_v<T, bfloat16>) return TANH ? approx::gelu_tanh(z) : approx::gelu_erf(z);
    else return TANH ? gelu_tanh(z) : gelu_erf(z);
}

template <class T, bool TANH>
static void bias_gelu(const T* x, const float* bias, T* y, int64_t rows, int64_t columns, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for_each_vector(columns, [&](int64_t c, auto load, auto store) {
            store(y + r * columns + c, gelu<T, TANH>(load(x + r * columns + c) + load(bias + c)).value);
        });
}

template <class T, bool TANH>
static void bias_gelu_backward(const T* x, const float* bias, const T* dy, T* dx, float* dbias, int64_t rows,
                               int64_t columns, int64_t threads) {
    const RowReduction reduction(rows, columns, 1);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t block = 0; block < reduction.blocks; block++) {
        float* sum = reduction.sums(block, 0);
        reduction.zero(block);
        for (int64_t r = reduction.begin(block); r < reduction.end(block); r++)
            for_each_vector(columns, [&](int64_t c, auto load, auto store) {
                FloatVec g =
                    load(dy + r * columns + c) * gelu<T, TANH>(load(x + r * columns + c) + load(bias + c)).slope;
                store(dx + r * columns + c, g);
                store(sum + c, load(sum + c) + g);
            });
    }
    reduction.finish(dbias, 0, threads);
}
