// Dropout by counters: the same masks as dropout.py, which says why.
#pragma once
#include "lanes.h"

struct Draw {
    uint32_t key0, key1, threshold;
    float scale;
    int64_t first_token;
    const int64_t* rows;  // which of the tokens are given; null for all of them in order
    int64_t place(int64_t r) const { return first_token + (rows ? rows[r] : r); }
};

INLINE uint32_t mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

// One row's draw.
struct Row {
    uint32_t row0, row1, threshold;
    float scale;
    Row(const Draw& draw, int64_t row) : threshold(draw.threshold), scale(draw.scale) {
        uint32_t low = (uint32_t)row, high = (uint32_t)(row >> 32);
        row0 = mix(low ^ (draw.key0 + high * 0x9E3779B9u));
        row1 = mix(low + draw.key1 + high);
    }
    // Which of columns c … c + W are kept.
    inline __attribute__((always_inline)) Ints kept(int64_t column) const {
        Words h = (iota() + (uint32_t)column) * 0x9E3779B9u + row0;
        h = ((h ^ (h >> 16)) * 0x7FEB352Du) ^ row1;
        h = (h ^ (h >> 15)) * 0x846CA68Bu;
        h = h ^ (h >> 16);
        return h >= threshold;
    }
    // x dropped out: scaled where kept, 0 where not.
    inline __attribute__((always_inline)) Lanes apply(Lanes x, int64_t column) const {
        return where(kept(column), x * scale, Lanes{});
    }
};
