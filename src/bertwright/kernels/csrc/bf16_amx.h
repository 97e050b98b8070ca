// Products of bfloat16 tiles on Intel processors with AMX (since Sapphire Rapids).
#pragma once
#include "pack.h"
#include <sys/syscall.h>
#include <unistd.h>

// A tile register holds 16 rows of 64 bytes: of A 16 rows × 32 columns as
// in memory, of B one panel of 32 rows, of C 16 × 16. Registers 0 to 3 hold C, 4 and 5 A, 6 and 7 B.
namespace amx {

constexpr int TILE_BYTES = 64, NUM_REGISTERS = 8;

// Linux grants the registers to a process that requests them; containers and old kernels may not.
static bool available() {
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static void begin_thread() {
    struct alignas(64) Config {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < NUM_REGISTERS; i++) config.row_bytes[i] = TILE_BYTES, config.rows[i] = TILE_ROWS;
    asm volatile("" ::"m"(config));  // GCC 12 does not know that all of it is read (PR 114098)
    _tile_loadconfig(&config);
}

static void end_thread() { _tile_release(); }

// Adds the product of I × 16 rows of a and J panels of b to registers 0 to 3. PREFETCH: fetch b's next tiles meanwhile,
// for a b that is larger than the first-level cache.
template <int I, int J, bool PREFETCH>
INLINE void add_tiles(const bfloat16* a, int64_t a_stride, const uint32_t* b, int64_t depth, int64_t b_depth) {
    const bfloat16* a_lower = a + TILE_ROWS * a_stride;
    const uint32_t* b_right = b + panel_words(b_depth, PANEL_WORDS);
    constexpr int STEP = TILE / 2 * PANEL_WORDS;  // words of one tile of B
    for (int64_t k = 0; k < depth; k += TILE, a += TILE, a_lower += TILE, b += STEP, b_right += STEP) {
        if constexpr (PREFETCH)
            for (int r = 0; r < TILE_ROWS; r++) {
                __builtin_prefetch(b + STEP + r * PANEL_WORDS);
                __builtin_prefetch(b_right + STEP + r * PANEL_WORDS);
            }
        _tile_loadd(4, a, a_stride * sizeof *a);
        _tile_loadd(6, b, TILE_BYTES);
        if constexpr (J == 2) _tile_loadd(7, b_right, TILE_BYTES);
        if constexpr (I == 2) _tile_loadd(5, a_lower, a_stride * sizeof *a);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (J == 2) _tile_dpbf16ps(1, 4, 7);
        if constexpr (I == 2) _tile_dpbf16ps(2, 5, 6);
        if constexpr (I == 2 && J == 2) _tile_dpbf16ps(3, 5, 7);
    }
}

INLINE void zero_tiles() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

template <int I, int J> INLINE void load_tiles(const float* c, int64_t stride) {
    const int64_t bytes = stride * sizeof *c;
    _tile_loadd(0, c, bytes);
    if constexpr (J == 2) _tile_loadd(1, c + PANEL_WORDS, bytes);
    if constexpr (I == 2) _tile_loadd(2, c + TILE_ROWS * stride, bytes);
    if constexpr (I == 2 && J == 2) _tile_loadd(3, c + TILE_ROWS * stride + PANEL_WORDS, bytes);
}

template <int I, int J> INLINE void store_tiles(float* c, int64_t stride) {
    const int64_t bytes = stride * sizeof *c;
    _tile_stored(0, c, bytes);
    if constexpr (J == 2) _tile_stored(1, c + PANEL_WORDS, bytes);
    if constexpr (I == 2) _tile_stored(2, c + TILE_ROWS * stride, bytes);
    if constexpr (I == 2 && J == 2) _tile_stored(3, c + TILE_ROWS * stride + PANEL_WORDS, bytes);
}

static void multiply_block(const bfloat16* a, int64_t a_stride, const uint32_t* b, int64_t depth, float* c) {
    asm volatile("" ::: "memory");  // GCC does not know that tiles read memory: pending stores must be done
    zero_tiles();
    add_tiles<2, 2, true>(a, a_stride, b, depth, depth);
    store_tiles<2, 2>(c, TILE);
}

template <bool ADD, int I, int J>
INLINE void multiply_tiles(const bfloat16* a, int64_t a_stride, const uint32_t* b, int64_t depth, int64_t b_depth,
                           float* c, int64_t c_stride) {
    if constexpr (ADD) load_tiles<I, J>(c, c_stride);
    else zero_tiles();
    add_tiles<I, J, false>(a, a_stride, b, depth, b_depth);
    store_tiles<I, J>(c, c_stride);
}

template <bool ADD>
static void multiply(const bfloat16* a, int64_t a_stride, const uint32_t* b, int64_t rows, int64_t depth,
                     int64_t columns, int64_t b_depth, float* c, int64_t c_stride) {
    asm volatile("" ::: "memory");  // as above
    for (int64_t j = 0; j < columns; j += TILE)
        for (int64_t i = 0; i < rows; i += TILE) {
            const auto run = [&](auto high, auto wide) {
                multiply_tiles<ADD, high, wide>(a + i * a_stride, a_stride, b + panel_words(b_depth, j), depth, b_depth,
                                                c + i * c_stride + j, c_stride);
            };
            constexpr std::integral_constant<int, 1> one;
            constexpr std::integral_constant<int, 2> two;
            const bool high = i + TILE_ROWS < rows, wide = j + PANEL_WORDS < columns;
            if (high && wide) run(two, two);
            else if (high) run(two, one);
            else if (wide) run(one, two);
            else run(one, one);
        }
}
}  // namespace amx
