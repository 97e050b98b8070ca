// gelu(x + bias), its gradient, and the sum of gradients over rows that every bias needs.
#pragma once
#include "sums.h"
#include <type_traits>

// The value of gelu and its derivative at z.
struct Gelu { Lanes value, slope; };

// Of e = e^(-z²/2) and erfcx(|z|/√2) = p · t.
INLINE Gelu gelu_of(Lanes z, Lanes e, Lanes p, Lanes t) {
    Lanes tail = 0.5f * e * p * t;
    Lanes cdf = z < 0.0f ? tail : 1.0f - tail;
    return {z * cdf, cdf + z * e * 0.398942280f};
}

// z · Φ(z). One exponential serves both Φ(z) = ½ · e^(-z²/2) · erfcx(-z/√2) and its derivative, the normal density.
// erfcx(u) = t · P(t), t = 1 / (1 + 0.33 u): a minimax fit on [0, 10], relative error below 1e-7.
INLINE Gelu gelu_erf(Lanes z) {
    Lanes u = (Lanes)((Words)z & 0x7FFFFFFFu) * 0.707106781f;
    Lanes t = 1.0f / (1.0f + 0.33f * u);
    Lanes p = all(-0.13534471461538813f);
    p = p * t + 0.46023321313819715f;
    p = p * t - 0.35114322921137125f;
    p = p * t + 0.40849423602513485f;
    p = p * t + 0.04722359423638842f;
    p = p * t + 0.20122302124713531f;
    p = p * t + 0.18295607706601502f;
    p = p * t + 0.18635779459225849f;
    return gelu_of(z, exp(z * z * -0.5f), p, t);
}

// ½ z (1 + tanh(√(2/π) (z + 0.044715 z³))), with ½ (1 + tanh(v)) = 1 / (1 + e^(-2v)).
INLINE Gelu gelu_tanh(Lanes z) {
    const float k = 1.59576912f;  // 2 √(2/π)
    Lanes s = 1.0f / (1.0f + exp(-k * z * (1.0f + 0.044715f * z * z)));
    return {z * s, s + z * s * (1.0f - s) * k * (1.0f + 0.134145f * z * z)};
}

// The same for results that keep 8 bits, in less time: each term is right to 2^-12 of itself.
namespace rough {
INLINE Lanes inverse(Lanes x) {
#if defined(__AVX512F__)
    return (Lanes)_mm512_rcp14_ps((__m512)x);
#else
    return 1.0f / x;
#endif
}
// 2^x for x ≤ 127; below 2^-126 it is 0.
INLINE Lanes exp2(Lanes x) {
    const float magic = 12582912.0f;  // as in exp
    Lanes shifted = x + magic;
    Lanes f = x - (shifted - magic);
    Lanes p = all(0.0551717746f);  // minimax on [-½, ½]
    p = p * f + 0.242611372f;
    p = p * f + 0.693260970f;
    p = p * f + 0.999928027f;
    Lanes scaled = (Lanes)((Ints)p + ((Ints)shifted << 23));
    return x < -126.0f ? Lanes{} : scaled;
}
INLINE Gelu gelu_erf(Lanes z) {
    Lanes u = (Lanes)((Words)z & 0x7FFFFFFFu);
    Lanes t = inverse(1.0f + (0.54f * 0.707106781f) * u);  // erfcx as above, four terms fewer
    Lanes p = all(-0.178802891f);
    p = p * t + 0.368530040f;
    p = p * t + 0.190529270f;
    p = p * t + 0.315662727f;
    p = p * t + 0.304041946f;
    return gelu_of(z, exp2(z * z * -0.721347520f), p, t);
}
INLINE Gelu gelu_tanh(Lanes z) {
    const float k = 1.59576912f;
    Lanes v = -1.44269504f * k * z * (1.0f + 0.044715f * z * z);
    Lanes e = exp2(v > 127.0f ? all(127.0f) : v), s = inverse(1.0f + e);
    return {z * s, s + z * s * (e * s) * k * (1.0f + 0.134145f * z * z)};  // e · s is 1 - s without its cancellation
}
}  // namespace rough

// f is called with the form as a type.
template <class F> INLINE void with_form(bool tanh, F f) { if (tanh) f(std::true_type{}); else f(std::false_type{}); }

template <class T, bool TANH> INLINE Gelu gelu(Lanes z) {
    if constexpr (std::is_same_v<T, bfloat16>) return TANH ? rough::gelu_tanh(z) : rough::gelu_erf(z);
    else return TANH ? gelu_tanh(z) : gelu_erf(z);
}

template <class T, bool TANH>
static void bias_gelu(const T* x, const float* bias, T* y, int64_t rows, int64_t columns, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        sweep(columns, [&](int64_t c, auto load, auto store) {
            store(y + r * columns + c, gelu<T, TANH>(load(x + r * columns + c) + load(bias + c)).value);
        });
}

template <class T, bool TANH>
static void bias_gelu_backward(const T* x, const float* bias, const T* dy, T* dx, float* dbias,
                               int64_t rows, int64_t columns, int64_t threads) {
    Sums sums(rows, columns, 1);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t block = 0; block < sums.blocks; block++) {
        float* sum = sums.of(block, 0);
        for (int64_t r = sums.begin(block); r < sums.end(block); r++)
            sweep(columns, [&](int64_t c, auto load, auto store) {
                Lanes g = load(dy + r * columns + c) * gelu<T, TANH>(load(x + r * columns + c) + load(bias + c)).slope;
                store(dx + r * columns + c, g);
                store(sum + c, load(sum + c) + g);
            });
    }
    sums.into(dbias, 0, threads);
}
