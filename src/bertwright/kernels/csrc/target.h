// What the compiler's flags allow: the only header that reads their macros. The flags are in
// `kernels/instruction_sets.py`; a new width of vectors or a new micro-kernel enters here.
#pragma once

#if defined(__AVX512F__)
#define HAS_AVX512 1
#endif
#if defined(__AVX512VNNI__)
#define HAS_AVX512_VNNI 1
#endif
#if defined(__AVXVNNI__)
#define HAS_AVX_VNNI 1
#endif
#if defined(__AVX512F__) || defined(__AVX2__)
#define HAS_X86_INT8 1
#if !defined(__clang__)  // false alarms in GCC 12's own header (PR 105593)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif
#endif

#if defined(__AVX512BF16__)
#define HAS_AVX512_BF16 1
#endif
#if (defined(__AMX_BF16__) || defined(__AMXBF16__)) && defined(__linux__)  // the latter by clang 14
#define HAS_AMX 1  // AMX-INT8, too
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)  // vectors of 128 bits
#define HAS_NEON_BF16 1
#endif
#if defined(__ARM_FEATURE_DOTPROD)
#define HAS_NEON_DOT 1
#endif
#if HAS_NEON_BF16 || HAS_NEON_DOT
#include <arm_neon.h>
#endif
#define HAS_INT8 (HAS_X86_INT8 || HAS_NEON_DOT)
#define HAS_BF16_ISA (HAS_AVX512_BF16 || HAS_NEON_BF16)

// W: numbers in a vector. BLOCK_ROWS × PANEL_VECTORS vectors: the block of C that a float32 micro-kernel holds in
// registers, which leaves some for both factors.
#if HAS_AVX512
constexpr int W = 16, BLOCK_ROWS = 12, PANEL_VECTORS = 2;  // 32 registers
#elif defined(__AVX__)
constexpr int W = 8, BLOCK_ROWS = 6, PANEL_VECTORS = 2;  // 16
#elif defined(__SSE__)
constexpr int W = 4, BLOCK_ROWS = 6, PANEL_VECTORS = 2;  // 16
#else
constexpr int W = 4, BLOCK_ROWS = 6, PANEL_VECTORS = 4;  // 32, of NEON
#endif
