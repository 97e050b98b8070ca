// Counter-based dropout: the same masks as dropout.py, which explains them.
#pragma once
#include "interface.h"
#include "simd.h"

// `MaskKey` of dropout.py, which explains the fields; a threshold of 0 keeps everything.
#define MASK_KEY(X)                                                         \
    X(uint32_t, key0) X(uint32_t, key1) X(uint32_t, threshold) X(float, scale) \
    X(int64_t, first_token) X(const int64_t*, positions)
struct MaskKey {
    MASK_KEY(DECLARE_FIELD)
    int64_t token_index(int64_t r) const { return first_token + (positions ? positions[r] : r); }
};

constexpr uint32_t GOLDEN = 0x9E3779B9u;  // 2^32 / golden ratio

INLINE uint32_t lowbias32(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

// The mask of one row.
struct RowMask {
    uint32_t word0, word1, threshold;
    float scale;
    RowMask(const MaskKey& key, int64_t row) : threshold(key.threshold), scale(key.scale) {
        const uint32_t low = (uint32_t)row, high = (uint32_t)(row >> 32);
        word0 = lowbias32(low ^ (key.key0 + high * GOLDEN));
        word1 = lowbias32(low + key.key1 + high);
    }
    // Which of the columns column … column + W stay.
    INLINE_MEMBER IntVec keep(int64_t column) const {
        UIntVec h = (lane_indices() + (uint32_t)column) * GOLDEN + word0;
        h = ((h ^ (h >> 16)) * 0x7FEB352Du) ^ word1;
        h = (h ^ (h >> 15)) * 0x846CA68Bu;
        h = h ^ (h >> 16);
        return h >= threshold;
    }
    INLINE_MEMBER FloatVec apply(FloatVec x, int64_t column) const {
        return select(keep(column), x * scale, FloatVec{});
    }
};

template <class T>
static void dropout(const T* x, const MaskKey& key, T* y, int64_t rows, int64_t columns, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const RowMask mask(key, key.token_index(r));
        for_each_vector(columns, [&](int64_t c, auto load, auto store) {
            store(y + r * columns + c, mask.apply(load(x + r * columns + c), c));
        });
    }
}
