// Vectors of the machine's own width, in the compiler's portable notation, and the functions on them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float Lanes __attribute__((vector_size(W * 4)));
typedef uint32_t Words __attribute__((vector_size(W * 4)));
typedef int32_t Ints __attribute__((vector_size(W * 4)));
typedef uint16_t Halves __attribute__((vector_size(W * 2)));

enum Type { FLOAT32 = 0, BFLOAT16 = 1 };
struct bfloat16 { uint16_t bits; };

#define INLINE static inline __attribute__((always_inline))

INLINE Lanes all(float x) { return x - Lanes{}; }
INLINE Words all(uint32_t x) { return x - Words{}; }
INLINE Words iota() { Words w; for (int i = 0; i < W; i++) w[i] = i; return w; }
INLINE Lanes where(Ints yes, Lanes a, Lanes b) { return yes ? a : b; }
INLINE Lanes max(Lanes a, Lanes b) { return a > b ? a : b; }

#if defined(__AVX512F__)
INLINE float sum(Lanes x) { return _mm512_reduce_add_ps((__m512)x); }
INLINE float highest(Lanes x) { return _mm512_reduce_max_ps((__m512)x); }
#else
INLINE float sum(Lanes x) {
    for (int width = W / 2; width >= 1; width /= 2)
        for (int i = 0; i < width; i++) x[i] += x[i + width];
    return x[0];
}
INLINE float highest(Lanes x) { float m = x[0]; for (int i = 1; i < W; i++) m = x[i] > m ? x[i] : m; return m; }
#endif

// A whole vector in memory, whatever its type there.
INLINE Lanes load(const float* p) { Lanes x; memcpy(&x, p, sizeof x); return x; }
INLINE void store(float* p, Lanes x) { memcpy(p, &x, sizeof x); }
INLINE Lanes load(const bfloat16* p) {
    Halves h; memcpy(&h, p, sizeof h);
    return (Lanes)(__builtin_convertvector(h, Words) << 16);
}
INLINE void store(bfloat16* p, Lanes x) {  // to the nearest, ties to even; NaN stays NaN
#if defined(__AVX512BF16__)
    __m256bh h = _mm512_cvtneps_pbh((__m512)x);  // what is below 2^-126 becomes 0
    memcpy(p, &h, sizeof h);
#else
    Words bits = (Words)x;
    Words rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    Words kept = (x == x) ? rounded : (bits >> 16) | 0x40;
    Halves h = __builtin_convertvector(kept, Halves); memcpy(p, &h, sizeof h);
#endif
}

// A whole line of the cache, which is not read before it is overwritten; `to` lies at its beginning.
INLINE void store_line(void* to, Lanes x) {
#if defined(__AVX512F__)
    _mm512_stream_ps((float*)to, (__m512)x);
#else
    memcpy(to, &x, sizeof x);
#endif
}

// Such stores are seen by other threads when they have all been made.
INLINE void lines_stored() {
#if defined(__AVX512F__)
    _mm_sfence();
#endif
}

// The first `count` < W elements of a vector; the others read as 0 and are not written.
template <class T> INLINE Lanes load(const T* p, int count) {
    T whole[W] = {}; memcpy(whole, p, count * sizeof(T)); return load(whole);
}
template <class T> INLINE void store(T* p, Lanes x, int count) {
    T whole[W]; store(whole, x); memcpy(p, whole, count * sizeof(T));
}

// f(place, count) over `columns` elements; count is the constant W but for the last, ragged one.
template <class F> INLINE void sweep(int64_t columns, F f) {
    int64_t c = 0;
    for (; c + W <= columns; c += W) f(c, [](auto* p) { return load(p); }, [](auto* p, Lanes x) { store(p, x); });
    if (int rest = columns - c)
        f(c, [rest](auto* p) { return load(p, rest); }, [rest](auto* p, Lanes x) { store(p, x, rest); });
}

// e^x to 1 ulp or so: 2^n · e^r with |r| ≤ ln 2 / 2 (Cephes). Below e^-87 it is 0, above e^88 it stays there; NaN stays NaN.
INLINE Lanes exp(Lanes x) {
    x = x > 88.0f ? all(88.0f) : x;
    const float magic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to a whole number, kept in the low bits
    Lanes shifted = x * 1.44269504f + magic;
    Lanes n = shifted - magic;
    Lanes r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    Lanes p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    Lanes scaled = (Lanes)((Ints)p + ((Ints)shifted << 23));  // the whole number moves into the exponent
    return x < -87.0f ? Lanes{} : scaled;
}

INLINE Lanes sqrt(Lanes x) { for (int i = 0; i < W; i++) x[i] = std::sqrt(x[i]); return x; }
