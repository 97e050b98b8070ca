// Attention over packed sequences, one task for each (sequence, head).
//
// n tokens of one sequence, D head size. Small matrix products carry the work. In float32, `product` multiplies rows read in
// any order by a right-hand side packed into panels, so that its inner loop touches memory in order. bfloat16 is float32
// inside, too, but where the machine has units for it: there the factors of all products are bfloat16, and so softmax's
// weights and the scores' gradients are rounded once, as in the attention kernels of GPUs.
#pragma once
#include "dropout.h"
#include "squares.h"
#include "tiles.h"
#include <tuple>

// The block of the product that stays in registers: ROWS × (VECTORS vectors).
#if defined(__AVX512F__)
constexpr int ROWS = 12, VECTORS = 2;
#elif defined(__AVX__)
constexpr int ROWS = 6, VECTORS = 2;
#else
constexpr int ROWS = 6, VECTORS = 4;  // NEON: 32 registers of 4
#endif
constexpr int PANEL = VECTORS * W;

INLINE int64_t padded(int64_t columns) { return (columns + PANEL - 1) / PANEL * PANEL; }

// A matrix for reading: element (i, k) is at data[i * row + k * column].
struct Strided { const float* data; int64_t row, column; };

// c[0 … R)[0 … PANEL) (+)= a[0 … R)[0 … depth) · panel, where panel is depth × PANEL.
template <int R, bool ADD>
INLINE void block_product(Strided a, const float* panel, int64_t depth, float* c, int64_t c_row) {
    Lanes sums[R][VECTORS];
    for (int i = 0; i < R; i++)
        for (int v = 0; v < VECTORS; v++) sums[i][v] = ADD ? load(c + i * c_row + v * W) : Lanes{};
    const float* at = a.data;
    for (int64_t k = 0; k < depth; k++, at += a.column, panel += PANEL) {
        Lanes right[VECTORS];
        for (int v = 0; v < VECTORS; v++) right[v] = load(panel + v * W);
#pragma GCC unroll 12
        for (int i = 0; i < R; i++) {
            Lanes left = all(at[i * a.row]);
            for (int v = 0; v < VECTORS; v++) sums[i][v] += left * right[v];
        }
    }
    for (int i = 0; i < R; i++)
        for (int v = 0; v < VECTORS; v++) store(c + i * c_row + v * W, sums[i][v]);
}

template <int R, bool ADD>
static void ragged_product(int rows, Strided a, const float* panel, int64_t depth, float* c, int64_t c_row) {
    if (rows == R) return block_product<R, ADD>(a, panel, depth, c, c_row);
    if constexpr (R > 1) ragged_product<R - 1, ADD>(rows, a, panel, depth, c, c_row);
}

// c (+)= a · b: a is rows × depth, b is packed (depth × columns), c has row stride c_row ≥ padded(columns).
template <bool ADD>
static void product(Strided a, const float* b, int64_t rows, int64_t depth, int64_t columns, int64_t b_depth,
                    float* c, int64_t c_row) {
    for (int64_t j = 0; j < columns; j += PANEL, b += b_depth * PANEL)
        for (int64_t i = 0; i < rows; i += ROWS) {
            Strided from{a.data + i * a.row, a.row, a.column};
            int left = (int)std::min<int64_t>(ROWS, rows - i);
            if (left == ROWS) block_product<ROWS, ADD>(from, b, depth, c + i * c_row + j, c_row);
            else ragged_product<ROWS - 1, ADD>(left, from, b, depth, c + i * c_row + j, c_row);
        }
}

// Rows of D elements, `stride` apart → float32 rows, scaled.
template <class T>
static void copy_rows(const T* x, int64_t stride, int64_t rows, int64_t columns, float scale, float* y) {
    for (int64_t r = 0; r < rows; r++)
        sweep(columns, [&](int64_t c, auto load, auto store) { store(y + r * columns + c, load(x + r * stride + c) * scale); });
}

// rows × columns, rows `stride` apart → panels[columns / PANEL][rows][PANEL], the last one filled up with zeros.
template <class T>
static void pack(const T* x, int64_t stride, int64_t rows, int64_t columns, float* panels) {
    for (int64_t j = 0; j < columns; j += PANEL)
        for (int64_t r = 0; r < rows; r++, panels += PANEL)
            for (int v = 0; v < PANEL; v += W) {
                int64_t rest = columns - j - v;
                const T* from = x + r * stride + j + v;
                store(panels + v, rest >= W ? load(from) : rest > 0 ? load(from, rest) : Lanes{});
            }
}

// The same of the transpose: rows × columns → panels[rows / PANEL][columns][PANEL].
template <class T>
static void pack_transposed(const T* x, int64_t stride, int64_t rows, int64_t columns, float* panels) {
    for (int64_t j = 0; j < rows; j += PANEL, panels += columns * PANEL)
        for (int v = 0; v < PANEL; v += W)
            for (int64_t c = 0; c < columns; c += W) {
                const int64_t count = std::min<int64_t>(W, columns - c), first = j + v;
                Lanes square[W];
                for (int i = 0; i < W; i++) {
                    const T* from = x + (first + i) * stride + c;
                    square[i] = first + i >= rows ? Lanes{} : count == W ? load(from) : load(from, count);
                }
                swap_blocks<1>(square);
                for (int i = 0; i < count; i++) store(panels + (c + i) * PANEL + v, square[i]);
            }
}

// Where one thread works, in whole cache lines; grown to the longest sequence it meets.
struct Scratch {
    std::vector<float> floats;
    float* next = nullptr;
    float* take(int64_t size) {
        float* here = next;
        next += (size + 15) / 16 * 16;
        return here;
    }
    uint16_t* take_halves(int64_t size) { return (uint16_t*)take((size + 1) / 2); }
    void reset(int64_t size) {
        if ((int64_t)floats.size() < size + 16) floats.resize(size + 16);
        next = (float*)(((uintptr_t)floats.data() + 63) / 64 * 64);
    }
};

// Query rows worked on at once: their scores (128 KB at most) stay in the second-level cache.
INLINE int64_t query_rows(int64_t n) { return std::clamp<int64_t>(32768 / n / ROWS * ROWS, 2 * ROWS, 10 * ROWS); }

// Scores lie in rows this far apart: not a power of two, whose columns would fight for the same cache lines.
INLINE int64_t score_row(int64_t n) { return padded(n) + 16; }

struct Shape {
    int64_t heads, size;  // A and D
    int64_t token() const { return 3 * heads * size; }  // from one token to the next in qkv
};

// One head's rows lie pages apart, which no processor foresees: what is written next, and what the next head reads, is asked
// for while there is something to compute.
template <class T> INLINE void fetch_to_write(T* row, int64_t size) {
    for (int64_t c = 0; c < size; c += 64 / sizeof(T)) __builtin_prefetch(row + c, 1);
}
template <class T> INLINE void fetch_to_read(const T* row, int64_t size) {
    for (int64_t c = 0; c < size; c += 64 / sizeof(T)) __builtin_prefetch(row + c, 0, 2);
}

template <class T> INLINE void fetch_next_head(Shape shape, const T* qkv) {
    for (int part = 0; part < 3; part++) fetch_to_read(qkv + (part * shape.heads + 1) * shape.size, shape.size);
}

// Of one token and head: `out` is written soon, and so is `dqkv`, which lies like qkv; of the others the next head is read.
template <class T>
INLINE void fetch_for_row(Shape shape, int64_t head, const T* qkv, T* out) {
    fetch_to_write(out, shape.size);
    if (head + 1 < shape.heads) fetch_next_head(shape, qkv);
}
template <class T>
INLINE void fetch_for_row(Shape shape, int64_t head, const T* qkv, T* dqkv, const T* dout, const T* out) {
    for (int part = 0; part < 3; part++) fetch_to_write(dqkv + part * shape.heads * shape.size, shape.size);
    if (head + 1 < shape.heads) {
        fetch_next_head(shape, qkv);
        fetch_to_read(dout + shape.size, shape.size);
        fetch_to_read(out + shape.size, shape.size);
    }
}

struct Softmax {
    float top, total;
    float log() const { return top + std::log(total); }
};

// A row of scores, in units of 1 / scale, of which `columns` count → e to their distance from the highest, dropped out.
template <class P>
INLINE Softmax weigh(float* s, int64_t columns, int64_t width, float scale, const Row& mask, P* weights) {
    for (int64_t c = columns; c < width; c++) s[c] = -INFINITY;
    Lanes best = all(-INFINITY);
    for (int64_t c = 0; c < width; c += W) best = max(best, load(s + c));
    const float top = highest(best) * scale;
    Lanes total{};
    auto spread = [&](bool drops) {
        for (int64_t c = 0; c < width; c += W) {
            Lanes e = exp(load(s + c) * scale - top);
            total += e;
            store(weights + c, drops ? mask.apply(e, c) : e);
        }
    };
    if (mask.threshold) spread(true); else spread(false);
    return {top, sum(total)};
}

template <class T>
static void forward_head(const T* qkv, Shape shape, int64_t first, int64_t n, int64_t head, bool causal, const Draw& draw,
                         T* out, float* lse, Scratch& scratch) {
    const int64_t D = shape.size, H = shape.heads * D, wide = padded(D), block = query_rows(n), ld = score_row(n);
    scratch.reset(padded(n) * D + n * wide + block * (D + ld + wide) + 128);
    float *keys = scratch.take(padded(n) * D), *values = scratch.take(n * wide);
    float *queries = scratch.take(block * D), *scores = scratch.take(block * ld), *context = scratch.take(block * wide);
    const T* q = qkv + first * shape.token() + head * D;
    pack_transposed(q + H, shape.token(), n, D, keys);
    pack(q + 2 * H, shape.token(), n, D, values);
    for (int64_t start = 0; start < n; start += block) {
        const int64_t rows = std::min(block, n - start), seen = causal ? start + rows : n;
        copy_rows(q + start * shape.token(), shape.token(), rows, D, 1.0f / std::sqrt((float)D), queries);
        product<false>({queries, D, 1}, keys, rows, D, seen, D, scores, ld);
        for (int64_t i = 0; i < rows; i++) {
            float* s = scores + i * ld;
            const int64_t token = (first + start + i) * shape.heads + head;
            const Row mask(draw, draw.first_token * shape.heads + token);
            fetch_for_row(shape, head, q + (start + i) * shape.token(), out + token * D);
            Softmax sums = weigh(s, causal ? start + i + 1 : n, padded(seen), 1.0f, mask, s);
            lse[token] = sums.log();
            s[ld - 1] = 1.0f / sums.total;  // beyond the padded columns
        }
        product<false>({scores, ld, 1}, values, rows, seen, D, n, context, wide);
        for (int64_t i = 0; i < rows; i++) {
            T* o = out + (first + start + i) * H + head * D;
            const float inverse = scores[i * ld + ld - 1];
            sweep(D, [&](int64_t c, auto, auto store) { store(o + c, load(context + i * wide + c) * inverse); });
        }
    }
}

// Makes of a row of scores s, in units of 1 / scale, and of dP (the gradient with respect to the dropped-out weights): the
// dropped-out weights, and the gradient with respect to the scores, P ∘ (dropout(dP) - delta).
template <class P>
INLINE void score_gradients(float* s, const float* dp, int64_t columns, int64_t width, float scale, float lse, float delta,
                            const Row& mask, P* weights, P* ds) {
    for (int64_t c = columns; c < width; c++) s[c] = -INFINITY;
    auto spread = [&](bool drops) {
        for (int64_t c = 0; c < width; c += W) {
            Lanes p = exp(load(s + c) * scale - lse), g = load(dp + c), kept = p;
            if (drops) {
                Ints yes = mask.kept(c);
                kept = where(yes, p * mask.scale, Lanes{});
                g = where(yes, g * mask.scale, Lanes{});
            }
            store(weights + c, kept);
            store(ds + c, p * (g - delta));
        }
    };
    if (mask.threshold) spread(true); else spread(false);
}

template <class T>
static void write_rows(const float* x, int64_t x_row, int64_t rows, int64_t columns, float scale, T* y, int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
        sweep(columns, [&](int64_t c, auto load, auto store) { store(y + r * stride + c, load(x + r * x_row + c) * scale); });
}

template <class A, class B> INLINE float dot(const A* a, const B* b, int64_t size) {
    Lanes total{};
    sweep(size, [&](int64_t c, auto load, auto) { total += load(a + c) * load(b + c); });
    return sum(total);
}

template <class T>
static void backward_head(const T* qkv, const T* out, const float* lse, const T* dout, Shape shape, int64_t first, int64_t n,
                          int64_t head, bool causal, const Draw& draw, T* dqkv, Scratch& scratch) {
    const int64_t D = shape.size, H = shape.heads * D, wide = padded(D), block = query_rows(n), ld = score_row(n);
    scratch.reset(2 * padded(n) * D + 3 * n * wide + block * (2 * D + 3 * wide + 2 * ld + 2) + 256);
    float *keys_t = scratch.take(padded(n) * D), *values_t = scratch.take(padded(n) * D);
    float *keys = scratch.take(n * wide), *dkeys = scratch.take(n * wide), *dvalues = scratch.take(n * wide);
    float *queries = scratch.take(block * D), *douts = scratch.take(block * D), *delta = scratch.take(block);
    float *queries_p = scratch.take(block * wide), *douts_p = scratch.take(block * wide), *dquery = scratch.take(block * wide);
    float *scores = scratch.take(block * ld), *dscores = scratch.take(block * ld);
    const float scale = 1.0f / std::sqrt((float)D);
    const int64_t stride = shape.token(), base = first * stride + head * D;
    pack_transposed(qkv + base + H, stride, n, D, keys_t);
    pack(qkv + base + H, stride, n, D, keys);
    pack_transposed(qkv + base + 2 * H, stride, n, D, values_t);
    std::fill(dkeys, dkeys + n * wide, 0.0f);
    std::fill(dvalues, dvalues + n * wide, 0.0f);
    for (int64_t start = 0; start < n; start += block) {
        const int64_t rows = std::min(block, n - start), seen = causal ? start + rows : n, token = first + start;
        copy_rows(qkv + base + start * stride, stride, rows, D, scale, queries);
        copy_rows(dout + token * H + head * D, H, rows, D, 1.0f, douts);
        for (int64_t i = 0; i < rows; i++) delta[i] = dot(douts + i * D, out + (token + i) * H + head * D, D);
        product<false>({queries, D, 1}, keys_t, rows, D, seen, D, scores, ld);
        product<false>({douts, D, 1}, values_t, rows, D, seen, D, dscores, ld);
        for (int64_t i = 0; i < rows; i++) {
            fetch_for_row(shape, head, qkv + base + (start + i) * stride, dqkv + base + (start + i) * stride,
                          dout + (token + i) * H + head * D, out + (token + i) * H + head * D);
            score_gradients(scores + i * ld, dscores + i * ld, causal ? start + i + 1 : n, padded(seen), 1.0f,
                            lse[(token + i) * shape.heads + head], delta[i],
                            Row(draw, (draw.first_token + token + i) * shape.heads + head), scores + i * ld, dscores + i * ld);
        }
        pack(queries, D, rows, D, queries_p);
        pack(douts, D, rows, D, douts_p);
        product<true>({scores, 1, ld}, douts_p, seen, rows, D, rows, dvalues, wide);
        product<true>({dscores, 1, ld}, queries_p, seen, rows, D, rows, dkeys, wide);  // queries are scaled already
        product<false>({dscores, ld, 1}, keys, rows, seen, D, n, dquery, wide);
        write_rows(dquery, wide, rows, D, scale, dqkv + base + start * stride, stride);
    }
    write_rows(dkeys, wide, n, D, 1.0f, dqkv + base + H, stride);
    write_rows(dvalues, wide, n, D, 1.0f, dqkv + base + 2 * H, stride);
}

#if BFLOAT16_UNITS
// The two once more, in bfloat16. Padding is zeros, and so are the weights of padded keys and queries. Queries and keys are
// filled up to multiples of HALF, and where they are the depth of a product to whole tiles.
INLINE int64_t tile_rows(int64_t n) { return std::clamp<int64_t>(32768 / tiled(n) / TILE * TILE, TILE, 4 * TILE); }

// The padding of rows of weights: from `seen` columns on, and from row `rows` on.
static void fill_up(uint16_t* weights, int64_t row, int64_t rows, int64_t seen) {
    if (seen < tiled(seen))
        for (int64_t i = 0; i < rows; i++) memset(weights + i * row + seen, 0, 2 * HALF);
    for (int64_t i = rows; i < tiled(rows); i++) memset(weights + i * row, 0, 2 * tiled(seen));
}

static void forward_head(const bfloat16* qkv, Shape shape, int64_t first, int64_t n, int64_t head, bool causal, const Draw& draw,
                         bfloat16* out, float* lse, Scratch& scratch, const Tiles&) {
    const int64_t D = shape.size, H = shape.heads * D, deep = tiled(n), wide = tiled(D), block = tile_rows(n), ld = deep + 16;
    const int64_t ldw = deep + TILE;
    scratch.reset(3 * deep * wide + block * (ld + wide + 1) + block * ldw / 2 + 128);
    uint16_t *queries = scratch.take_halves(deep * wide), *plain = scratch.take_halves(deep * wide);
    uint32_t *keys = (uint32_t*)scratch.take(deep * wide / 2), *values = (uint32_t*)scratch.take(deep * wide / 2);
    float *scores = scratch.take(block * ld), *context = scratch.take(block * wide), *totals = scratch.take(block);
    uint16_t* weights = scratch.take_halves(block * ldw);
    const bfloat16* q = qkv + first * shape.token() + head * D;
    const float scale = 1.0f / std::sqrt((float)D);
    copy_padded(q, shape.token(), n, D, queries);
    copy_padded(q + H, shape.token(), n, D, plain);
    pack_tiles_transposed(plain, half_tiled(n), wide, keys);
    copy_padded(q + 2 * H, shape.token(), n, D, plain);
    pack_tiles(plain, deep, wide, values);
    for (int64_t start = 0; start < n; start += block) {
        const int64_t rows = std::min(block, n - start), seen = half_tiled(causal ? start + rows : n);
        tile_product<false>(queries + start * wide, wide, keys, half_tiled(rows), wide, seen, wide, scores, ld);
        for (int64_t i = 0; i < rows; i++) {
            const int64_t token = (first + start + i) * shape.heads + head;
            const Row mask(draw, draw.first_token * shape.heads + token);
            fetch_for_row(shape, head, q + (start + i) * shape.token(), out + token * D);
            Softmax sums = weigh(scores + i * ld, causal ? start + i + 1 : n, seen, scale, mask, (bfloat16*)weights + i * ldw);
            lse[token] = sums.log();
            totals[i] = sums.total;
        }
        fill_up(weights, ldw, rows, seen);
        tile_product<false>(weights, ldw, values, half_tiled(rows), tiled(seen), wide, deep, context, wide);
        for (int64_t i = 0; i < rows; i++)
            write_rows(context + i * wide, wide, 1, D, 1.0f / totals[i], out + (first + start + i) * H + head * D, H);
    }
}

static void backward_head(const bfloat16* qkv, const bfloat16* out, const float* lse, const bfloat16* dout, Shape shape,
                          int64_t first, int64_t n, int64_t head, bool causal, const Draw& draw, bfloat16* dqkv,
                          Scratch& scratch, const Tiles&) {
    const int64_t D = shape.size, H = shape.heads * D, deep = tiled(n), wide = tiled(D), block = tile_rows(n), ld = deep + 16;
    const int64_t ldw = deep + TILE, ldt = block + TILE, whole = deep * wide;
    scratch.reset(2 * whole + 3 * whole / 2 + 2 * whole + 2 * block * wide + block * (2 * ld + ldw) + deep * ldt + 512);
    uint16_t *queries = scratch.take_halves(whole), *keys = scratch.take_halves(whole), *values = scratch.take_halves(whole);
    uint16_t* douts = scratch.take_halves(whole);
    uint32_t *keys_t = (uint32_t*)scratch.take(whole / 2), *values_t = (uint32_t*)scratch.take(whole / 2);
    uint32_t *keys_p = (uint32_t*)scratch.take(whole / 2), *part = (uint32_t*)scratch.take(block * wide / 2);
    float *dkeys = scratch.take(whole), *dvalues = scratch.take(whole), *dquery = scratch.take(block * wide);
    float *scores = scratch.take(block * ld), *dweights = scratch.take(block * ld);
    uint16_t *weights = scratch.take_halves(block * ldw), *dscores = scratch.take_halves(block * ldw);
    uint16_t* turned = scratch.take_halves(deep * ldt);
    const float scale = 1.0f / std::sqrt((float)D);
    const int64_t stride = shape.token(), base = first * stride + head * D;
    copy_padded(qkv + base, stride, n, D, queries);
    copy_padded(qkv + base + H, stride, n, D, keys);
    copy_padded(qkv + base + 2 * H, stride, n, D, values);
    copy_padded(dout + first * H + head * D, H, n, D, douts);
    pack_tiles_transposed(keys, half_tiled(n), wide, keys_t);
    pack_tiles(keys, deep, wide, keys_p);
    pack_tiles_transposed(values, half_tiled(n), wide, values_t);
    std::fill(dkeys, dkeys + whole, 0.0f);
    std::fill(dvalues, dvalues + whole, 0.0f);
    for (int64_t start = 0; start < n; start += block) {
        const int64_t rows = std::min(block, n - start), high = half_tiled(rows), seen = half_tiled(causal ? start + rows : n);
        tile_product<false>(queries + start * wide, wide, keys_t, high, wide, seen, wide, scores, ld);
        tile_product<false>(douts + start * wide, wide, values_t, high, wide, seen, wide, dweights, ld);
        for (int64_t i = 0; i < rows; i++) {
            const int64_t token = first + start + i;
            fetch_for_row(shape, head, qkv + base + (start + i) * stride, dqkv + base + (start + i) * stride,
                          dout + token * H + head * D, out + token * H + head * D);
            const float delta = dot((bfloat16*)douts + (start + i) * wide, out + token * H + head * D, D);
            score_gradients(scores + i * ld, dweights + i * ld, causal ? start + i + 1 : n, seen, scale,
                            lse[token * shape.heads + head], delta, Row(draw, (draw.first_token + token) * shape.heads + head),
                            (bfloat16*)weights + i * ldw, (bfloat16*)dscores + i * ldw);
        }
        fill_up(weights, ldw, rows, seen);
        fill_up(dscores, ldw, rows, seen);
        turn(weights, ldw, tiled(rows), seen, turned, ldt);
        pack_tiles(douts + start * wide, tiled(rows), wide, part);
        tile_product<true>(turned, ldt, part, seen, tiled(rows), wide, tiled(rows), dvalues, wide);
        turn(dscores, ldw, tiled(rows), seen, turned, ldt);
        pack_tiles(queries + start * wide, tiled(rows), wide, part);
        tile_product<true>(turned, ldt, part, seen, tiled(rows), wide, tiled(rows), dkeys, wide);
        tile_product<false>(dscores, ldw, keys_p, high, tiled(seen), wide, deep, dquery, wide);
        write_rows(dquery, wide, rows, D, scale, dqkv + base + start * stride, stride);
    }
    write_rows(dkeys, wide, n, D, scale, dqkv + base + H, stride);
    write_rows(dvalues, wide, n, D, 1.0f, dqkv + base + 2 * H, stride);
}
#endif

struct Sequences { const int32_t* starts; int64_t count; };

// f(first token, length, head, scratch, …) for every head of every sequence, on all threads; what follows scratch is made
// once a thread.
template <class... Own, class F>
static void share_heads(Sequences sequences, int64_t heads, int64_t threads, F f) {
#pragma omp parallel num_threads(threads)
    {
        std::tuple<Scratch, Own...> own;
        const int64_t share = std::clamp<int64_t>(sequences.count * heads / (8 * threads), 1, heads);  // heads side by side
#pragma omp for schedule(dynamic, share)
        for (int64_t task = 0; task < sequences.count * heads; task++) {
            const int32_t* sequence = sequences.starts + task / heads;
            const int64_t first = sequence[0], n = sequence[1] - first;
            if (n > 0) std::apply([&](auto&... mine) { f(first, n, task % heads, mine...); }, own);
        }
    }
}

// The same for tensors of T, in bfloat16 where the machine has units for it.
template <class T, class F>
static void for_heads(Sequences sequences, int64_t heads, int64_t threads, F f) {
#if BFLOAT16_UNITS
    if constexpr (std::is_same_v<T, bfloat16>)
        if (tiles_allowed()) return share_heads<Tiles>(sequences, heads, threads, f);
#endif
    share_heads<>(sequences, heads, threads, f);
}

// qkv, T 3 A D → out T A D and the logarithm of each softmax's denominator, T A.
template <class T>
static void attention(const T* qkv, Sequences sequences, Shape shape, bool causal, const Draw& draw, T* out, float* lse,
                      int64_t threads) {
    for_heads<T>(sequences, shape.heads, threads, [&](int64_t first, int64_t n, int64_t head, Scratch& scratch, auto&... tiles) {
        forward_head(qkv, shape, first, n, head, causal, draw, out, lse, scratch, tiles...);
    });
}

template <class T>
static void attention_backward(const T* qkv, const T* out, const float* lse, const T* dout, Sequences sequences, Shape shape,
                               bool causal, const Draw& draw, T* dqkv, int64_t threads) {
    for_heads<T>(sequences, shape.heads, threads, [&](int64_t first, int64_t n, int64_t head, Scratch& scratch, auto&... tiles) {
        backward_head(qkv, out, lse, dout, shape, first, n, head, causal, draw, dqkv, scratch, tiles...);
    });
}
