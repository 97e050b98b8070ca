// Products of bfloat16 matrices, summed in float32, where the machine has units for them: the tile registers of Intel's AMX, or
// vectors that add up products of pairs (AVX512-BF16, AMD's processors since Zen 4).
//
// A tile is 16 rows of 64 bytes. The left factor is read as it lies, 16 rows × 32 of its columns; of the right factor a tile
// holds 32 rows × 16 columns, two rows woven into one: panels[columns / 16][rows / 2][16 words]. Sizes are padded with
// zeros, to TILE where they are a product's depth, so that two by two tiles of the result are made at once.
#pragma once
#include "squares.h"

constexpr int TILE = 32, HALF = TILE / 2;
INLINE int64_t tiled(int64_t size) { return (size + TILE - 1) / TILE * TILE; }
INLINE int64_t half_tiled(int64_t size) { return (size + HALF - 1) / HALF * HALF; }

#if defined(__AVX512BF16__)
#define BFLOAT16_UNITS 1

#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

// Linux asks a process to ask for the registers' 8 KB.
static bool tiles_allowed() {
    static const bool allowed = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
    return allowed;
}

// A thread's tile registers, for as long as it lives.
struct Tiles {
    Tiles() {
        tiles_allowed();  // without having asked, the first use would be an illegal instruction
        struct alignas(64) { uint8_t palette = 1, start = 0, reserved[14] = {}; uint16_t bytes[16] = {}; uint8_t rows[16] = {}; } shape;
        for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = 16;
        asm volatile("" ::"m"(shape));  // GCC 12 does not know that all of it is read (PR 114098)
        _tile_loadconfig(&shape);
    }
    ~Tiles() { _tile_release(); }
};

// Adds to registers 0 to 3 the product of I × 16 rows of a, `a_row` apart, and J × 16 columns of b, in panels of b_depth rows.
// AHEAD: b's next tiles are fetched meanwhile, where it is larger than the nearest cache.
template <int I, int J, bool AHEAD>
INLINE void add_tiles(const uint16_t* a, int64_t a_row, const uint32_t* b, int64_t depth, int64_t b_depth) {
    const uint16_t* lower = a + 16 * a_row;
    const uint32_t* right = b + 8 * b_depth;
    for (int64_t k = 0; k < depth; k += TILE) {
        if constexpr (AHEAD)
            for (int r = 0; r < 16; r++) {
                __builtin_prefetch(b + 8 * (k + TILE) + 16 * r);
                __builtin_prefetch(right + 8 * (k + TILE) + 16 * r);
            }
        _tile_loadd(4, a + k, 2 * a_row);
        _tile_loadd(6, b + 8 * k, 64);
        if constexpr (J == 2) _tile_loadd(7, right + 8 * k, 64);
        if constexpr (I == 2) _tile_loadd(5, lower + k, 2 * a_row);
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

template <int I, int J> INLINE void load_tiles(const float* c, int64_t c_row) {
    _tile_loadd(0, c, 4 * c_row);
    if constexpr (J == 2) _tile_loadd(1, c + 16, 4 * c_row);
    if constexpr (I == 2) _tile_loadd(2, c + 16 * c_row, 4 * c_row);
    if constexpr (I == 2 && J == 2) _tile_loadd(3, c + 16 * c_row + 16, 4 * c_row);
}

template <int I, int J> INLINE void store_tiles(float* c, int64_t c_row) {
    _tile_stored(0, c, 4 * c_row);
    if constexpr (J == 2) _tile_stored(1, c + 16, 4 * c_row);
    if constexpr (I == 2) _tile_stored(2, c + 16 * c_row, 4 * c_row);
    if constexpr (I == 2 && J == 2) _tile_stored(3, c + 16 * c_row + 16, 4 * c_row);
}

// One block of a product: TILE rows of a, TILE columns of b.
INLINE void tile_block(const uint16_t* a, int64_t a_row, const uint32_t* b, int64_t depth, float* block) {
    asm volatile("" ::: "memory");  // the compiler does not know that tiles are loaded: what was stored must be there
    zero_tiles();
    add_tiles<2, 2, true>(a, a_row, b, depth, depth);
    store_tiles<2, 2>(block, TILE);
}

// c (+)= a · b: a is rows × depth with row stride a_row; b has panels of b_depth rows; c has row stride c_row. Rows and columns
// are multiples of HALF, the depth is one of TILE.
template <bool ADD>
static void tile_product(const uint16_t* a, int64_t a_row, const uint32_t* b, int64_t rows, int64_t depth, int64_t columns,
                         int64_t b_depth, float* c, int64_t c_row) {
    asm volatile("" ::: "memory");  // as above
    for (int64_t j = 0; j < columns; j += TILE)
        for (int64_t i = 0; i < rows; i += TILE) {
            const auto block = [&](auto high, auto wide) {
                constexpr int I = high, J = wide;
                float* out = c + i * c_row + j;
                if constexpr (ADD) load_tiles<I, J>(out, c_row); else zero_tiles();
                add_tiles<I, J, false>(a + i * a_row, a_row, b + j * b_depth / 2, depth, b_depth);
                store_tiles<I, J>(out, c_row);
            };
            constexpr std::integral_constant<int, 1> one;
            constexpr std::integral_constant<int, 2> two;
            const bool high = i + HALF < rows, wide = j + HALF < columns;
            if (high && wide) block(two, two);
            else if (high) block(two, one);
            else if (wide) block(one, two);
            else block(one, one);
        }
}
#else
static bool tiles_allowed() { return true; }
struct Tiles {};  // vectors need no preparation

// c[0 … R)[0 … 16 V) (+)= the product of R rows of a, `a_row` apart, and V panels of b, whose depth is b_depth.
template <int R, int V, bool ADD>
INLINE void add_pairs(const uint16_t* a, int64_t a_row, const uint32_t* b, int64_t depth, int64_t b_depth, float* c, int64_t c_row) {
    __m512 sums[R][V];
    for (int i = 0; i < R; i++)
        for (int v = 0; v < V; v++) sums[i][v] = ADD ? _mm512_loadu_ps(c + i * c_row + v * W) : _mm512_setzero_ps();
    for (int64_t k = 0; k < depth; k += 2) {
        __m512bh right[V];
        for (int v = 0; v < V; v++) right[v] = (__m512bh)_mm512_loadu_si512(b + (v * b_depth + k) * W / 2);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            int32_t pair;
            memcpy(&pair, a + i * a_row + k, sizeof pair);
            const __m512bh left = (__m512bh)_mm512_set1_epi32(pair);
            for (int v = 0; v < V; v++) sums[i][v] = _mm512_dpbf16_ps(sums[i][v], left, right[v]);
        }
    }
    for (int i = 0; i < R; i++)
        for (int v = 0; v < V; v++) _mm512_storeu_ps(c + i * c_row + v * W, sums[i][v]);
}

constexpr int PAIR_ROWS = 8;  // with two panels sixteen sums, which is all that the units have to wait for

INLINE void tile_block(const uint16_t* a, int64_t a_row, const uint32_t* b, int64_t depth, float* block) {
    for (int i = 0; i < TILE; i += PAIR_ROWS)
        add_pairs<PAIR_ROWS, 2, false>(a + i * a_row, a_row, b, depth, depth, block + i * TILE, TILE);
}

template <bool ADD>
static void tile_product(const uint16_t* a, int64_t a_row, const uint32_t* b, int64_t rows, int64_t depth, int64_t columns,
                         int64_t b_depth, float* c, int64_t c_row) {
    for (int64_t j = 0; j < columns; j += TILE)
        for (int64_t i = 0; i < rows; i += PAIR_ROWS) {
            const uint32_t* panels = b + j * b_depth / 2;
            float* out = c + i * c_row + j;
            if (j + HALF < columns) add_pairs<PAIR_ROWS, 2, ADD>(a + i * a_row, a_row, panels, depth, b_depth, out, c_row);
            else add_pairs<PAIR_ROWS, 1, ADD>(a + i * a_row, a_row, panels, depth, b_depth, out, c_row);
        }
}
#endif

// rows × columns, rows `stride` apart → y, padded with zeros.
static void copy_padded(const bfloat16* x, int64_t stride, int64_t rows, int64_t columns, uint16_t* y) {
    const int64_t deep = tiled(rows), wide = tiled(columns);
    if (columns == wide)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < wide; c += 2 * W) store((float*)(y + r * wide + c), load((const float*)(x + r * stride + c)));
    else
        for (int64_t r = 0; r < rows; r++) {
            memcpy(y + r * wide, x + r * stride, 2 * columns);
            memset(y + r * wide + columns, 0, 2 * (wide - columns));
        }
    memset(y + rows * wide, 0, 2 * (deep - rows) * wide);
}

// Padded x, rows × columns → panels of x as a right factor.
static void pack_tiles(const uint16_t* x, int64_t rows, int64_t columns, uint32_t* panels) {
    for (int64_t j = 0; j < columns; j += W)
        for (int64_t r = 0; r < rows; r += 2, panels += W)
            store((float*)panels, woven(x + r * columns + j, x + (r + 1) * columns + j));
}

// The same of x transposed: its columns are the depth.
static void pack_tiles_transposed(const uint16_t* x, int64_t rows, int64_t columns, uint32_t* panels) {
    for (int64_t r = 0; r < rows; r += W)
        for (int64_t c = 0; c < columns; c += 2 * W, panels += W * W)
            turn_square([&](int i) { return load((const float*)(x + (r + i) * columns + c)); },
                        [&](int i, Lanes line) { store((float*)panels + i * W, line); });
}

// Padded x, rows × columns with row stride x_row → y, columns × rows with row stride y_row.
static void turn(const uint16_t* x, int64_t x_row, int64_t rows, int64_t columns, uint16_t* y, int64_t y_row) {
    for (int64_t r = 0; r < rows; r += 2 * W)
        for (int64_t c = 0; c < columns; c += W)
            turn_halves(x + r * x_row + c, x_row, [&](int i, Lanes line) { memcpy(y + (c + i) * y_row + r, &line, sizeof line); });
}
#endif
