// Vectors of the target's native width in the compiler's portable notation, and functions on them.
#pragma once
#include "target.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

typedef float FloatVec __attribute__((vector_size(W * 4)));
typedef uint32_t UIntVec __attribute__((vector_size(W * 4)));
typedef int32_t IntVec __attribute__((vector_size(W * 4)));
typedef uint16_t HalfVec __attribute__((vector_size(W * 2)));

enum DType { FLOAT32 = 0, BFLOAT16 = 1 };
struct bfloat16 {
    uint16_t bits;
};

#define INLINE static inline __attribute__((always_inline))
#define INLINE_MEMBER inline __attribute__((always_inline))

constexpr int64_t CACHE_LINE = 64;  // bytes
constexpr int64_t round_up(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

INLINE FloatVec broadcast(float x) { return x - FloatVec{}; }
INLINE UIntVec lane_indices() {
    UIntVec w;
    for (int i = 0; i < W; i++) w[i] = i;
    return w;
}
INLINE FloatVec select(IntVec condition, FloatVec a, FloatVec b) { return condition ? a : b; }
INLINE FloatVec max(FloatVec a, FloatVec b) { return a > b ? a : b; }

#if HAS_AVX512
INLINE float reduce_add(FloatVec x) { return _mm512_reduce_add_ps((__m512)x); }
INLINE float reduce_max(FloatVec x) { return _mm512_reduce_max_ps((__m512)x); }
#else
INLINE float reduce_add(FloatVec x) {
    for (int width = W / 2; width >= 1; width /= 2)
        for (int i = 0; i < width; i++) x[i] += x[i + width];
    return x[0];
}
INLINE float reduce_max(FloatVec x) {
    float m = x[0];
    for (int i = 1; i < W; i++) m = x[i] > m ? x[i] : m;
    return m;
}
#endif

// One vector from or to memory, converted from or to the element type there.
INLINE FloatVec load(const float* p) {
    FloatVec x;
    memcpy(&x, p, sizeof x);
    return x;
}
INLINE void store(float* p, FloatVec x) { memcpy(p, &x, sizeof x); }
INLINE FloatVec load(const bfloat16* p) {
    HalfVec h;
    memcpy(&h, p, sizeof h);
    return (FloatVec)(__builtin_convertvector(h, UIntVec) << 16);
}
// To nearest, ties to even; NaN stays NaN.
INLINE HalfVec round_to_bf16(FloatVec x) {
#if HAS_AVX512_BF16
    return (HalfVec)_mm512_cvtneps_pbh((__m512)x);  // flushes numbers below 2^-126 to 0
#elif HAS_NEON_BF16
    return (HalfVec)vcvt_bf16_f32((float32x4_t)x);
#else
    UIntVec bits = (UIntVec)x;
    UIntVec rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return __builtin_convertvector((x == x) ? rounded : (bits >> 16) | 0x40, HalfVec);
#endif
}
INLINE void store(bfloat16* p, FloatVec x) {
    const HalfVec h = round_to_bf16(x);
    memcpy(p, &h, sizeof h);
}

// Writes a vector past the caches where the target can (`p` is aligned to the vector's size).
INLINE void store_streaming(void* p, FloatVec x) {
#if HAS_AVX512
    _mm512_stream_ps((float*)p, (__m512)x);
#else
    memcpy(p, &x, sizeof x);
#endif
}

// Makes a thread's streaming stores visible to the others; call before the barrier.
INLINE void streaming_fence() {
#if HAS_AVX512
    _mm_sfence();
#endif
}

// The first `count` < W elements of a vector; load sets the others to 0.
template <class T> INLINE FloatVec load(const T* p, int count) {
    T all[W] = {};
    memcpy(all, p, count * sizeof(T));
    return load(all);
}
template <class T> INLINE void store(T* p, FloatVec x, int count) {
    T all[W];
    store(all, x);
    memcpy(p, all, count * sizeof(T));
}

// f(c, load, store) for every vector of `columns` elements; for the last, ragged one, `load` and `store` are partial.
template <class F> INLINE void for_each_vector(int64_t columns, F f) {
    int64_t c = 0;
    for (; c + W <= columns; c += W)
        f(
            c, [](auto* p) { return load(p); }, [](auto* p, FloatVec x) { store(p, x); });
    if (const int rest = (int)(columns - c))
        f(
            c, [rest](auto* p) { return load(p, rest); }, [rest](auto* p, FloatVec x) { store(p, x, rest); });
}

// p · 2^n for n = the integer in the low bits of `shifted`; a product, so that NaN in p stays NaN.
INLINE FloatVec scale_by_power(FloatVec p, FloatVec shifted) {
    return p * (FloatVec)(((UIntVec)shifted << 23) + 0x3F800000u);
}
constexpr float ROUND_TO_INT = 12582912.0f;  // 1.5 · 2^23: adding it leaves the nearest integer in the low bits

// e^x within about 1 ulp: 2^n · e^r with |r| ≤ ln 2 / 2 (Cephes). Returns 0 below -87, e^88 above 88, NaN for NaN.
INLINE FloatVec exp(FloatVec x) {
    x = x > 88.0f ? broadcast(88.0f) : x;
    FloatVec shifted = x * 1.44269504f + ROUND_TO_INT;
    FloatVec n = shifted - ROUND_TO_INT;
    FloatVec r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    FloatVec p = broadcast(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return x < -87.0f ? FloatVec{} : scale_by_power(p, shifted);
}

INLINE FloatVec sqrt(FloatVec x) {
    for (int i = 0; i < W; i++) x[i] = std::sqrt(x[i]);
    return x;
}
