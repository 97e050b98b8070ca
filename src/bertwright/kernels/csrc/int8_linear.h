// Linear layers in int8: weights with a scale per output, rows of activations with a scale and a zero point each.
//
//   y(r, c) = (Σ a(r, k) · w(c, k) - zero(r) · Σ w(c, k)) · scale(r) · scale(c) + bias(c)
//
// a: 0 to 255; w: -64 to 64, so that two products fit into the 16 bits of AVX2's instruction. All instruction sets have
// the same integers, and a row's results depend on nothing but the row.
#pragma once
#include "bf16_isa.h"
#include "gelu.h"
#include "interface.h"
#include "memory.h"

#if HAS_INT8

constexpr int INT8_PANEL = PANEL_VECTORS * W;  // columns that are multiplied together
constexpr int GROUP = 4;                       // bytes of a row that one lane multiplies
constexpr int64_t TASK_ROWS = 96, TASKS_PER_THREAD = 4;
#if HAS_AMX
constexpr int64_t DEPTH_UNIT = amx::TILE_BYTES, TILE_BLOCK = 2 * TILE_ROWS;
static bool has_tiles() {
    static const bool granted = amx::available();
    return granted;
}
#else
constexpr int64_t DEPTH_UNIT = GROUP, TILE_BLOCK = BLOCK_ROWS;
constexpr bool has_tiles() { return false; }
#endif
static_assert(TASK_ROWS % BLOCK_ROWS == 0 && TASK_ROWS % TILE_BLOCK == 0, "a task is whole blocks");
static int64_t block_rows() { return has_tiles() ? TILE_BLOCK : BLOCK_ROWS; }

typedef uint8_t ByteVec __attribute__((vector_size(W)));

// sums + the four products of bytes in each lane, a · b, of signed b; a is unsigned, less BYTE_SHIFT if that is not 0.
#if HAS_NEON_DOT
constexpr const char* INT8_ISA = "neon_dot";
constexpr int BYTE_SHIFT = 128;
INLINE IntVec add_products(IntVec sums, IntVec a, IntVec b) {
    return (IntVec)vdotq_s32((int32x4_t)sums, (int8x16_t)a, (int8x16_t)b);
}
#else
constexpr int BYTE_SHIFT = 0;
#if HAS_AVX512_VNNI
constexpr const char* INT8_ISA = "avx512_vnni";
INLINE IntVec add_products(IntVec sums, IntVec a, IntVec b) {
    return (IntVec)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
}
#elif HAS_AVX512
constexpr const char* INT8_ISA = "avx512";
INLINE IntVec add_products(IntVec sums, IntVec a, IntVec b) {
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)a, (__m512i)b);
    return sums + (IntVec)_mm512_madd_epi16(pairs, (__m512i)(IntVec{} + 0x10001));
}
#elif HAS_AVX_VNNI
constexpr const char* INT8_ISA = "avx_vnni";
INLINE IntVec add_products(IntVec sums, IntVec a, IntVec b) {
    return (IntVec)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)a, (__m256i)b);
}
#else
constexpr const char* INT8_ISA = "avx2";
INLINE IntVec add_products(IntVec sums, IntVec a, IntVec b) {
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)a, (__m256i)b);
    return sums + (IntVec)_mm256_madd_epi16(pairs, (__m256i)(IntVec{} + 0x10001));
}
#endif
#endif

// To nearest, ties to even.
INLINE IntVec round_to_int(FloatVec x) {
#if HAS_NEON_DOT
    return (IntVec)vcvtnq_s32_f32((float32x4_t)x);
#elif HAS_AVX512
    return (IntVec)_mm512_cvtps_epi32((__m512)x);
#else
    return (IntVec)_mm256_cvtps_epi32((__m256)x);
#endif
}

constexpr int64_t panel_bytes(int64_t depth, int64_t columns) {
    return round_up(depth, DEPTH_UNIT) * round_up(columns, INT8_PANEL);
}

// weight (columns × depth) as panels: [c / INT8_PANEL][k / GROUP][c % INT8_PANEL][k % GROUP], zeros where it has none.
static void pack_int8(const int8_t* weight, int8_t* panels, int64_t depth, int64_t columns) {
    const int64_t padded = round_up(depth, DEPTH_UNIT);
    memset(panels, 0, panel_bytes(depth, columns));
    for (int64_t c = 0; c < columns; c++)
        for (int64_t k = 0; k < depth; k++)
            panels[(c / INT8_PANEL * padded + k / GROUP * GROUP) * INT8_PANEL + c % INT8_PANEL * GROUP + k % GROUP] =
                weight[c * depth + k];
}

// Rows as bytes: x = (bytes - zero) · scale, both less BYTE_SHIFT. 0 is exact; an infinity or NaN makes the scale NaN.
struct QuantizedRows {
    int64_t stride;
    Buffer<uint8_t> bytes;
    Buffer<float> scales;
    Buffer<int32_t> zeros;
    QuantizedRows(int64_t rows, int64_t depth)
        : stride(round_up(depth, DEPTH_UNIT)), bytes(round_up(rows, block_rows()) * stride), scales(rows), zeros(rows) {
        memset(bytes.get() + rows * stride, 0, (round_up(rows, block_rows()) - rows) * stride);
    }
    __attribute__((noinline)) void quantize(const float* x, int64_t depth, int64_t row) const {
        FloatVec high = {}, low = {}, odd = {};
        for_each_vector(depth, [&](int64_t k, auto load, auto) {
            const FloatVec v = load(x + k);
            high = max(high, v), low = max(low, -v), odd += v - v;
        });
        const float nan = reduce_add(odd), bottom = nan == 0 ? reduce_max(low) : 0, range = reduce_max(high) + bottom;
        const float inverse = range > 0 && nan == 0 ? 255 / range : 0;
        const IntVec zero = round_to_int(broadcast(bottom * inverse));
        scales.get()[row] = range / 255 + nan;
        zeros.get()[row] = zero[0] - BYTE_SHIFT;
        uint8_t* to = bytes.get() + row * stride;
        memset(to + depth, 0, stride - depth);
        for_each_vector(depth, [&](int64_t k, auto load, auto) {
            IntVec v = round_to_int(load(x + k) * inverse) + zero;
            v = v < 0 ? IntVec{} : v > 255 ? IntVec{} + 255 : v;
            const ByteVec narrow = __builtin_convertvector(v - BYTE_SHIFT, ByteVec);
            memcpy(to + k, &narrow, std::min<int64_t>(W, depth - k));
        });
    }
};

// BLOCK_ROWS rows of bytes times one panel.
static __attribute__((noinline)) void multiply_panel(const uint8_t* a, int64_t stride, const int8_t* panel, IntVec* block) {
    IntVec sums[BLOCK_ROWS][PANEL_VECTORS];
    for (int i = 0; i < BLOCK_ROWS; i++)
        for (int v = 0; v < PANEL_VECTORS; v++) sums[i][v] = IntVec{};
    for (int64_t k = 0; k < stride; k += GROUP, panel += INT8_PANEL * GROUP) {
        IntVec right[PANEL_VECTORS];
        for (int v = 0; v < PANEL_VECTORS; v++) memcpy(&right[v], panel + v * sizeof(IntVec), sizeof(IntVec));
#pragma GCC unroll 12
        for (int i = 0; i < BLOCK_ROWS; i++) {
            int32_t four;
            memcpy(&four, a + i * stride + k, sizeof four);
            const IntVec left = four - IntVec{};
            for (int v = 0; v < PANEL_VECTORS; v++) sums[i][v] = add_products(sums[i][v], left, right[v]);
        }
    }
    for (int i = 0; i < BLOCK_ROWS; i++)  // one by one: a copy of the whole array would keep it in memory
        for (int v = 0; v < PANEL_VECTORS; v++) block[i * PANEL_VECTORS + v] = sums[i][v];
}

#if HAS_AMX
// The same for TILE_BLOCK rows, in tile registers.
static void multiply_tiles(const uint8_t* a, int64_t stride, const int8_t* panel, IntVec* block) {
    asm volatile("" ::: "memory");  // GCC does not know that tiles read memory: pending stores must be done
    amx::zero_tiles();
    for (int64_t k = 0; k < stride; k += amx::TILE_BYTES, panel += amx::TILE_BYTES * INT8_PANEL) {
        _tile_loadd(4, a + k, stride);
        _tile_loadd(5, a + TILE_ROWS * stride + k, stride);
        _tile_loadd(6, panel, INT8_PANEL * GROUP);
        _tile_loadd(7, panel + amx::TILE_BYTES, INT8_PANEL * GROUP);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    amx::store_tiles<2, 2>((float*)block, INT8_PANEL);
}

// Prepares the current thread for `multiply_tiles`, for as long as the object lives.
struct TileThread {
    TileThread() {
        if (has_tiles()) amx::begin_thread();
    }
    ~TileThread() {
        if (has_tiles()) amx::end_thread();
    }
};
#endif

static void multiply_block(const uint8_t* a, int64_t stride, const int8_t* panel, IntVec* block) {
#if HAS_AMX
    if (has_tiles()) return multiply_tiles(a, stride, panel, block);
#endif
    multiply_panel(a, stride, panel, block);
}

// A linear layer, `Int8Layer` of int8_linear.py; `bias` may be null.
#define INT8_LAYER(X)                                                                                \
    X(const int8_t*, panels) X(const float*, scales) X(const int32_t*, sums) X(const float*, bias)   \
    X(int64_t, depth) X(int64_t, columns)
struct Int8Layer {
    INT8_LAYER(DECLARE_FIELD)
};

template <int ACTIVATION> INLINE FloatVec activate(FloatVec y) {
    if constexpr (ACTIVATION == GELU_ERF) return gelu_erf(y).value;
    else if constexpr (ACTIVATION == GELU_TANH) return gelu_tanh(y).value;
    else if constexpr (ACTIVATION == RELU) return y < 0.0f ? FloatVec{} : y;  // NaN stays NaN
    else return y;
}

// One vector of columns of a block: y = activation(…) for `rows` of `count` columns; `zeros` and `scales` of the rows.
template <int ACTIVATION>
static void finish_columns(const IntVec* block, const int32_t* zeros, const float* scales, const Int8Layer& layer,
                           int64_t column, float* y, int64_t rows, int count) {
    const auto read = [&](const float* p) { return count == W ? load(p + column) : load(p + column, count); };
    const FloatVec scale = read(layer.scales), bias = layer.bias ? read(layer.bias) : FloatVec{};
    const IntVec sum = (IntVec)read((const float*)layer.sums);
    for (int64_t i = 0; i < rows; i++) {
        const FloatVec product = __builtin_convertvector(block[i * PANEL_VECTORS] - zeros[i] * sum, FloatVec);
        const FloatVec result = activate<ACTIVATION>(product * (scale * scales[i]) + bias);
        memcpy(y + i * layer.columns + column, &result, count * sizeof *y);
    }
}
static decltype(&finish_columns<RELU>) const FINISH[] = {finish_columns<NO_ACTIVATION>, finish_columns<GELU_ERF>,
                                                         finish_columns<GELU_TANH>, finish_columns<RELU>};

// y = activation(x · weightᵀ + bias) for `rows` of x.
static void int8_linear(const float* x, const Int8Layer& layer, int64_t activation, float* y, int64_t rows,
                        int64_t threads) {
    const int64_t depth = layer.depth, columns = layer.columns;
    const QuantizedRows a(rows, depth);
    const int64_t height = block_rows();
    const int64_t down = (rows + TASK_ROWS - 1) / TASK_ROWS, panels = (columns + INT8_PANEL - 1) / INT8_PANEL;
    const int64_t wanted = threads == 1 || !down ? 1 : TASKS_PER_THREAD * threads / down;
    const int64_t across = std::clamp<int64_t>(wanted, 1, panels), width = (panels + across - 1) / across * INT8_PANEL;
#pragma omp parallel num_threads(threads)
    {
#if HAS_AMX
        const TileThread prepared;
#endif
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) a.quantize(x + r * depth, depth, r);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < down * across; task++) {
            const int64_t first = task % across * width, last = std::min(columns, first + width);
            const int64_t begin = task / across * TASK_ROWS, end = std::min(rows, begin + TASK_ROWS);
            IntVec block[std::max<int64_t>(BLOCK_ROWS, TILE_BLOCK) * PANEL_VECTORS];
            for (int64_t c = first; c < last; c += INT8_PANEL)
                for (int64_t r = begin; r < end; r += height) {
                    multiply_block(a.bytes.get() + r * a.stride, a.stride, layer.panels + panel_bytes(depth, c), block);
                    for (int v = 0; v < PANEL_VECTORS && c + v * W < columns; v++)
                        FINISH[activation](block + v, a.zeros.get() + r, a.scales.get() + r, layer, c + v * W,
                                           y + r * columns, std::min(height, end - r),
                                           (int)std::min<int64_t>(W, columns - c - v * W));
                }
        }
    }
}
#endif
