// Rotary positions of queries and keys (Su et al. 2021).
#pragma once
#include "simd.h"

// q and k of x = qkv, T 3 A D, turned by the angles of the tokens' positions; v is copied. `cosines` and `sines` have a
// row of D / 2 numbers for each position: numbers c and c + D / 2 of a head are the coordinates of one point. `direction`:
// 1, or -1 to turn back.
template <class T>
static void rotate(const T* x, const float* cosines, const float* sines, const int64_t* positions, float direction, T* y,
                   int64_t tokens, int64_t heads, int64_t size, int64_t threads) {
    const int64_t half = size / 2, turned = 2 * heads * size, width = 3 * heads * size;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t t = 0; t < tokens; t++) {
        const float *cosine = cosines + positions[t] * half, *sine = sines + positions[t] * half;
        const T* from = x + t * width;
        T* to = y + t * width;
        for (int64_t h = 0; h < turned; h += size)
            for_each_vector(half, [&](int64_t c, auto load, auto store) {
                const FloatVec a = load(from + h + c), b = load(from + h + half + c);
                const FloatVec cos = load(cosine + c), sin = load(sine + c) * direction;
                store(to + h + c, a * cos - b * sin);
                store(to + h + half + c, b * cos + a * sin);
            });
        memcpy(to + turned, from + turned, (width - turned) * sizeof *to);
    }
}
