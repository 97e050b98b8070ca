// Emulation of the AVX-512, AVX512-BF16 and AMX intrinsics that the kernels use, for processors without them.
//
// Compile with -I of this folder, -D__AVX512F__=1, and as wanted -D__AVX512VNNI__=1, -D__AVX512BF16__=1,
// -D__AMX_BF16__=1; or with -D__AVXVNNI__=1 alone, for AVX-VNNI, beside the processor's own AVX2. Misaligned streaming
// stores and tile registers that were not configured or not written end the process.
#pragma once
#include <cstdint>

namespace emulation {
inline int clamp_to_16_bits(int x) { return x < -32768 ? -32768 : x > 32767 ? 32767 : x; }
// c + the four products of bytes in each lane, of a unsigned and of b signed.
template <class V> inline V add_products_of_bytes(V c, V a, V b) {
    int32_t sums[sizeof(V) / 4];
    uint8_t left[sizeof(V)];
    int8_t right[sizeof(V)];
    __builtin_memcpy(sums, &c, sizeof c), __builtin_memcpy(left, &a, sizeof a), __builtin_memcpy(right, &b, sizeof b);
    for (unsigned i = 0; i < sizeof(V); i++) sums[i / 4] += left[i] * right[i];
    __builtin_memcpy(&c, sums, sizeof c);
    return c;
}
}  // namespace emulation

#ifndef __AVX512F__
#undef __AVXVNNI__
#include_next <immintrin.h>
#define __AVXVNNI__ 1
#define _mm256_dpbusd_avx_epi32 emulation::add_products_of_bytes<__m256i>
#else
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

typedef float __m512 __attribute__((vector_size(64)));
typedef long long __m512i __attribute__((vector_size(64)));
typedef short __m512bh __attribute__((vector_size(64)));
typedef short __m256bh __attribute__((vector_size(32)));

namespace emulation {
constexpr int LANES = 16;

inline void require(bool condition, const char* message) {
    if (condition) return;
    fprintf(stderr, "emulated intrinsics: %s\n", message);
    abort();
}
inline uint32_t to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
inline float flush(float x) { return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.0f, x) : x; }  // denormals
inline uint16_t to_bf16(float x) {  // to nearest, ties to even; denormals become 0
    if (x != x) return (to_bits(x) >> 16) | 0x40;
    const uint32_t bits = to_bits(flush(x));
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}
inline float from_bf16(uint16_t bits) { return flush(from_bits((uint32_t)bits << 16)); }
}  // namespace emulation

static inline float _mm512_reduce_add_ps(__m512 x) {
    for (int width = 8; width >= 1; width /= 2)
        for (int i = 0; i < width; i++) x[i] += x[i + width];
    return x[0];
}
static inline float _mm512_reduce_max_ps(__m512 x) {
    for (int width = 8; width >= 1; width /= 2)
        for (int i = 0; i < width; i++) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
    return x[0];
}
static inline __m512 _mm512_setzero_ps() { return __m512{}; }
static inline __m512 _mm512_loadu_ps(const void* p) {
    __m512 x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline void _mm512_storeu_ps(void* p, __m512 x) { memcpy(p, &x, sizeof x); }
static inline __m512i _mm512_loadu_si512(const void* p) {
    __m512i x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline void _mm512_stream_ps(float* p, __m512 x) {
    emulation::require((uintptr_t)p % sizeof x == 0, "misaligned streaming store");
    memcpy(p, &x, sizeof x);
}
static inline void _mm_sfence() {}
static inline __m512i _mm512_set1_epi32(int value) {
    int words[emulation::LANES];
    for (int& word : words) word = value;
    __m512i x;
    memcpy(&x, words, sizeof x);
    return x;
}
static inline __m512i _mm512_cvtps_epi32(__m512 x) {
    int words[emulation::LANES];
    for (int i = 0; i < emulation::LANES; i++)
        words[i] = std::fabs(x[i]) < 2147483648.0f ? (int)std::nearbyint(x[i]) : INT32_MIN;  // also NaN
    __m512i y;
    memcpy(&y, words, sizeof y);
    return y;
}
static inline __m512i _mm512_dpbusd_epi32(__m512i c, __m512i a, __m512i b) {
    return emulation::add_products_of_bytes(c, a, b);
}
static inline __m512i _mm512_maddubs_epi16(__m512i a, __m512i b) {
    uint8_t left[64];
    int8_t right[64];
    int16_t sums[32];
    memcpy(left, &a, sizeof left), memcpy(right, &b, sizeof right);
    for (int i = 0; i < 32; i++)
        sums[i] = (int16_t)emulation::clamp_to_16_bits(left[2 * i] * right[2 * i] + left[2 * i + 1] * right[2 * i + 1]);
    memcpy(&a, sums, sizeof a);
    return a;
}
static inline __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
    int16_t left[32], right[32];
    int32_t sums[16];
    memcpy(left, &a, sizeof left), memcpy(right, &b, sizeof right);
    for (int i = 0; i < 16; i++) sums[i] = left[2 * i] * right[2 * i] + left[2 * i + 1] * right[2 * i + 1];
    memcpy(&a, sums, sizeof a);
    return a;
}
static inline __m512 _mm512_rcp14_ps(__m512 x) {
    for (int i = 0; i < emulation::LANES; i++) {
        const float exact = 1.0f / x[i];
        x[i] = std::isfinite(exact) ? emulation::from_bits(emulation::to_bits(exact) & 0xFFFFFE00u) : exact;
    }
    return x;
}
static inline __m256bh _mm512_cvtneps_pbh(__m512 x) {
    __m256bh h;
    for (int i = 0; i < emulation::LANES; i++) h[i] = (short)emulation::to_bf16(x[i]);
    return h;
}
static inline __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
    __m512bh h;
    for (int i = 0; i < emulation::LANES; i++) {
        h[i] = (short)emulation::to_bf16(low[i]);
        h[emulation::LANES + i] = (short)emulation::to_bf16(high[i]);
    }
    return h;
}
static inline __m512 _mm512_dpbf16_ps(__m512 c, __m512bh a, __m512bh b) {
    using namespace emulation;
    for (int i = 0; i < LANES; i++) {
        float sum = flush(c[i]);
        for (int k : {2 * i + 1, 2 * i}) {
            volatile float product = from_bf16((uint16_t)a[k]) * from_bf16((uint16_t)b[k]);  // volatile: not fused
            sum += product;
        }
        c[i] = flush(sum);
    }
    return c;
}

#ifdef __AMX_BF16__
namespace emulation {
constexpr int NUM_TILES = 8, ROWS = 16, ROW_BYTES = 64;

struct TileRegisters {
    bool configured = false, written[NUM_TILES] = {};
    unsigned char data[NUM_TILES][ROWS][ROW_BYTES];
};
inline thread_local TileRegisters tiles;

inline void require_configured() { require(tiles.configured, "tile registers are not configured"); }
inline void require_written(int tile) { require_configured(), require(tiles.written[tile], "tile was not written"); }
inline void load_tile(int tile, const void* from, int64_t stride) {
    require_configured();
    tiles.written[tile] = true;
    for (int r = 0; r < ROWS; r++) memcpy(tiles.data[tile][r], (const char*)from + r * stride, ROW_BYTES);
}
inline void store_tile(int tile, void* to, int64_t stride) {
    require_written(tile);
    for (int r = 0; r < ROWS; r++) memcpy((char*)to + r * stride, tiles.data[tile][r], ROW_BYTES);
}
inline void zero_tile(int tile) {
    require_configured();
    tiles.written[tile] = true;
    memset(tiles.data[tile], 0, sizeof tiles.data[tile]);
}
inline void multiply_add(int c, int a, int b) {
    for (int tile : {a, b, c}) require_written(tile);
    constexpr int DEPTH = ROW_BYTES / 2;
    uint16_t bits[ROWS][DEPTH];
    float left[ROWS][DEPTH], right[DEPTH][ROWS], sums[ROWS][ROWS];
    memcpy(bits, tiles.data[a], sizeof bits);
    for (int m = 0; m < ROWS; m++)
        for (int k = 0; k < DEPTH; k++) left[m][k] = from_bf16(bits[m][k]);
    memcpy(bits, tiles.data[b], sizeof bits);
    for (int k = 0; k < DEPTH; k++)
        for (int n = 0; n < ROWS; n++) right[k][n] = from_bf16(bits[k / 2][2 * n + k % 2]);
    memcpy(sums, tiles.data[c], sizeof sums);
    for (int m = 0; m < ROWS; m++)
        for (int k = 0; k < DEPTH; k++)
            for (int n = 0; n < ROWS; n++)  // the product is exact: the sum is rounded once, as on the processor
                sums[m][n] = flush(flush(sums[m][n]) + left[m][k] * right[k][n]);
    memcpy(tiles.data[c], sums, sizeof sums);
}
inline void multiply_add_bytes(int c, int a, int b) {
    for (int tile : {a, b, c}) require_written(tile);
    uint8_t left[ROWS][ROW_BYTES];
    int8_t right[ROWS][ROW_BYTES];
    int32_t sums[ROWS][ROWS];
    memcpy(left, tiles.data[a], sizeof left), memcpy(right, tiles.data[b], sizeof right);
    memcpy(sums, tiles.data[c], sizeof sums);
    for (int m = 0; m < ROWS; m++)
        for (int k = 0; k < ROW_BYTES; k++)
            for (int n = 0; n < ROWS; n++) sums[m][n] += left[m][k] * right[k / 4][4 * n + k % 4];
    memcpy(tiles.data[c], sums, sizeof sums);
}
}  // namespace emulation

#define _tile_loadd(tile, from, stride) emulation::load_tile(tile, from, stride)
#define _tile_stored(tile, to, stride) emulation::store_tile(tile, to, stride)
#define _tile_zero(tile) emulation::zero_tile(tile)
#define _tile_dpbf16ps(c, a, b) emulation::multiply_add(c, a, b)
#define _tile_dpbusd(c, a, b) emulation::multiply_add_bytes(c, a, b)  // of a unsigned, of b signed
static inline void _tile_loadconfig(const void* config) {
    using namespace emulation;
    const unsigned char* bytes = (const unsigned char*)config;
    require(bytes[0] == 1, "tile configuration: palette");
    for (int tile = 0; tile < NUM_TILES; tile++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, bytes + 16 + 2 * tile, sizeof row_bytes);
        require(row_bytes == ROW_BYTES && bytes[48 + tile] == ROWS, "tile configuration: sizes");
    }
    tiles.configured = true;
    memset(tiles.written, 0, sizeof tiles.written);
}
static inline void _tile_release() { emulation::tiles.configured = false; }

// The request for the tile registers is denied if EMULATED_TILES is 0.
#define syscall emulated_syscall
extern "C" inline long emulated_syscall(long, ...) noexcept {
    const char* granted = getenv("EMULATED_TILES");
    return granted && *granted == '0' ? -1 : 0;
}
#endif
#endif  // __AVX512F__
