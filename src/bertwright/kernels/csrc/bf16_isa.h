// The choice among the bfloat16 micro-kernels that this library was compiled with, made once, at the first use.
#pragma once
#include "pack.h"

#if HAS_BF16_ISA
#if HAS_AMX
#include "bf16_amx.h"
#endif
#if HAS_AVX512_BF16
#include "bf16_avx512.h"
#endif
#if HAS_NEON_BF16
#include "bf16_neon.h"
#endif

// Small products on one thread, summed in float32: C (+)= A · B with B packed (pack.h). One namespace or type per
// instruction set has these functions.
struct Bf16Isa {
    const char* name;
    bool (*available)();                      // on this machine, for this process
    void (*begin_thread)(), (*end_thread)();  // around all products of one thread
    // c (TILE × TILE) = a · b, for TILE rows of a and two panels of b, which are `depth` deep.
    void (*multiply_block)(const bfloat16* a, int64_t a_stride, const uint32_t* b, int64_t depth, float* c);
    // c = a · b or c += a · b. Rows and columns are multiples of 16, the depth of TILE; b has panels of b_depth rows.
    using Multiply = void(const bfloat16* a, int64_t a_stride, const uint32_t* b, int64_t rows, int64_t depth,
                          int64_t columns, int64_t b_depth, float* c, int64_t c_stride);
    Multiply *multiply, *multiply_add;
};

#define BF16_ISA(isa)                                                                                          \
    {                                                                                                          \
#isa, isa::available, isa::begin_thread, isa::end_thread, isa::multiply_block, isa::multiply < false>, \
            isa::multiply < true>                                                                              \
    }

// The fastest first.
static constexpr Bf16Isa BF16_ISAS[] = {
#if HAS_AMX
    BF16_ISA(amx),
#endif
#if HAS_AVX512_BF16
    BF16_ISA(avx512_bf16),
#endif
#if HAS_NEON_BF16
    BF16_ISA(neon_bf16),
#endif
};

static const Bf16Isa& bf16_isa() {
    static const Bf16Isa& isa = *std::find_if(std::begin(BF16_ISAS), std::end(BF16_ISAS) - 1,
                                              [](const Bf16Isa& candidate) { return candidate.available(); });
    return isa;
}

// Prepares the current thread for products, for as long as the object lives.
struct Bf16Thread {
    Bf16Thread() { bf16_isa().begin_thread(); }
    ~Bf16Thread() { bf16_isa().end_thread(); }
    Bf16Thread(const Bf16Thread&) = delete;
    Bf16Thread& operator=(const Bf16Thread&) = delete;
};
#endif
