// Attention of packed sequences of queries to packed sequences of keys and values, one task for each (sequence, head).
// In self-attention both are the same sequences.
//
// m queries and n keys of one sequence, A heads, D head size. Queries are processed in blocks, whose scores stay in the
// second-level cache. One algorithm serves both dtypes; a Gemm policy says how its products are made.
#pragma once
#include "bf16_isa.h"
#include "dropout.h"
#include "gemm_microkernel_float32.h"

// Products in float32, for float32 and, on machines without bfloat16 units, for bfloat16 states. Queries are scaled by
// 1/√D when they are copied; softmax works in place.
struct Float32Gemm {
    using Element = float;  // of A, and of softmax's weights
    using Panel = float;    // of B
    using Thread = std::false_type;
    static constexpr bool INPLACE = true;
    static constexpr int64_t pad_rows(int64_t n) { return n; }
    static constexpr int64_t pad_depth(int64_t n) { return n; }
    static constexpr int64_t pad_columns(int64_t n) { return round_up(n, PANEL); }
    static constexpr int64_t panel_size(int64_t depth, int64_t columns) { return depth * pad_columns(columns); }
    static constexpr int64_t row_offset(int64_t row) { return row * PANEL; }
    static constexpr int64_t ALIGNMENT = PANEL;  // of the first key of a block of queries
    static constexpr int64_t BLOCK = BLOCK_ROWS, MIN_BLOCKS = 2, MAX_BLOCKS = 10;
    static float query_scale(int64_t size) { return 1.0f / std::sqrt((float)size); }
    static constexpr float score_scale(int64_t) { return 1.0f; }

    // Rows that are packed straight from where they are.
    template <class T> struct Source {
        const T* rows;
        int64_t stride;
    };
    template <class T> static Source<T> stage(const T* x, int64_t stride, int64_t, int64_t, Element*) {
        return {x, stride};
    }
    template <class T>
    static void load_rows(const T* x, int64_t stride, int64_t rows, int64_t size, float scale, float* y) {
        for (int64_t r = 0; r < rows; r++)
            for_each_vector(size, [&](int64_t c, auto load, auto store) {
                store(y + r * size + c, load(x + r * stride + c) * scale);
            });
    }
    static void zero_padding(float*, int64_t, int64_t, int64_t) {}
    template <bool ADD>
    static void multiply(const float* a, int64_t a_stride, const float* b, int64_t rows, int64_t depth, int64_t columns,
                         int64_t b_depth, float* c, int64_t c_stride) {
        ::multiply<ADD>({a, a_stride, 1}, b, rows, depth, columns, b_depth, c, c_stride);
    }
    // c += aᵀ · b for a: depth × rows.
    static void multiply_tn_add(const float* a, int64_t a_stride, const float* b, int64_t rows, int64_t depth,
                                int64_t columns, float* c, int64_t c_stride, Element*, int64_t) {
        ::multiply<true>({a, 1, a_stride}, b, rows, depth, columns, depth, c, c_stride);
    }
};

#if HAS_BF16_ISA
// Products in bfloat16, summed in float32. Softmax's weights and the scores' gradients are rounded once, as in the
// flash attention of GPUs. 1/√D is applied in softmax. Padding is zeros, and so are the weights of padded keys and
// queries.
struct Bf16Gemm {
    using Element = bfloat16;
    using Panel = uint32_t;
    using Thread = Bf16Thread;
    static constexpr bool INPLACE = false;
    static constexpr int64_t pad_rows(int64_t n) { return round_up(n, TILE_ROWS); }
    static constexpr int64_t pad_depth(int64_t n) { return round_up(n, TILE); }
    static constexpr int64_t pad_columns(int64_t n) { return round_up(n, PANEL_WORDS); }
    static constexpr int64_t panel_size(int64_t depth, int64_t columns) {
        return panel_words(pad_depth(depth), pad_columns(columns));
    }
    static constexpr int64_t row_offset(int64_t row) { return row / 2 * PANEL_WORDS; }
    static constexpr int64_t ALIGNMENT = TILE;
    static constexpr int64_t BLOCK = TILE, MIN_BLOCKS = 1, MAX_BLOCKS = 4;
    static constexpr float query_scale(int64_t) { return 1.0f; }
    static float score_scale(int64_t size) { return 1.0f / std::sqrt((float)size); }

    struct Source {
        const bfloat16* rows;
        int64_t stride;
    };
    static Source stage(const bfloat16* x, int64_t stride, int64_t rows, int64_t size, bfloat16* padded) {
        load_rows(x, stride, rows, size, 1.0f, padded);
        return {padded, pad_depth(size)};
    }
    static void load_rows(const bfloat16* x, int64_t stride, int64_t rows, int64_t size, float, bfloat16* y) {
        const int64_t width = pad_depth(size);
        for (int64_t r = 0; r < rows; r++, x += stride) {
            bfloat16* row = y + r * width;
            int64_t c = 0;
            for (; c + 2 * W <= size; c += 2 * W) store((float*)(row + c), load((const float*)(x + c)));
            if (c == width) continue;
            memcpy(row + c, x + c, (size - c) * sizeof *y);
            memset(row + size, 0, (width - size) * sizeof *y);
        }
        memset(y + rows * width, 0, (pad_depth(rows) - rows) * width * sizeof *y);
    }
    // From column `columns` on, to whole tiles, and from row `rows` on.
    static void zero_padding(bfloat16* a, int64_t stride, int64_t rows, int64_t columns) {
        const int64_t width = pad_depth(columns);
        if (columns < width)
            for (int64_t r = 0; r < rows; r++) memset(a + r * stride + columns, 0, (width - columns) * sizeof *a);
        for (int64_t r = rows; r < pad_depth(rows); r++) memset(a + r * stride, 0, width * sizeof *a);
    }
    template <bool ADD>
    static void multiply(const bfloat16* a, int64_t a_stride, const uint32_t* b, int64_t rows, int64_t depth,
                         int64_t columns, int64_t b_depth, float* c, int64_t c_stride) {
        (ADD ? bf16_isa().multiply_add : bf16_isa().multiply)(a, a_stride, b, rows, depth, columns, b_depth, c, c_stride);
    }
    // `a_t`: memory for aᵀ, rows × t_stride.
    static void multiply_tn_add(const bfloat16* a, int64_t a_stride, const uint32_t* b, int64_t rows, int64_t depth,
                                int64_t columns, float* c, int64_t c_stride, bfloat16* a_t, int64_t t_stride) {
        for (int64_t k = 0; k < depth; k += 2 * W)
            for (int64_t r = 0; r < rows; r += W)
                transpose_pairs(a + k * a_stride + r, a_stride, [&](int i, FloatVec numbers) {
                    store((float*)(a_t + (r + i) * t_stride + k), numbers);
                });
        bf16_isa().multiply_add(a_t, t_stride, b, rows, depth, columns, depth, c, c_stride);
    }
};
#endif

// `AttentionArgs` of attention.py, which explains the fields.
#define ATTENTION_ARGS(X)                                                                             \
    X(const void*, q) X(const void*, kv) X(int64_t, parts_q) X(int64_t, parts_kv)                     \
    X(const int32_t*, cu_seqlens_q) X(const int32_t*, cu_seqlens_kv) X(int64_t, sequences)            \
    X(int64_t, heads) X(int64_t, head_size) X(int64_t, causal)                                        \
    X(const float*, bias) X(int64_t, reach) X(int64_t, window)
struct AttentionArgs {
    ATTENTION_ARGS(DECLARE_FIELD)
    int64_t width() const { return heads * head_size; }
    int64_t stride_q() const { return parts_q * width(); }  // from one token to the next
    int64_t stride_kv() const { return parts_kv * width(); }
    int64_t distances() const { return 2 * reach + 1; }  // numbers per head in `bias`
};

// The keys that are seen: from `first` to before `last`.
struct KeyRange {
    int64_t first, last;
};

// One head of one sequence, whose m queries and n keys begin at these rows.
struct Head {
    int64_t task, index, first_query, m, first_key, n;
    Head(const AttentionArgs& args, int64_t task) : task(task), index(task % args.heads) {
        const int32_t *queries = args.cu_seqlens_q + task / args.heads, *keys = args.cu_seqlens_kv + task / args.heads;
        first_query = queries[0], m = queries[1] - first_query;
        first_key = keys[0], n = keys[1] - first_key;
    }
    // The row in tensors with one number per query and head, and in dropout's masks.
    int64_t row(const AttentionArgs& args, int64_t query) const { return (first_query + query) * args.heads + index; }
    // The keys that a query attends to; causal: the last query attends to all keys.
    KeyRange visible(const AttentionArgs& args, int64_t query) const {
        if (args.window) return {std::max<int64_t>(query - args.window, 0), std::min(query + args.window + 1, n)};
        return {0, args.causal ? std::clamp<int64_t>(n - m + query + 1, 0, n) : n};
    }
    // The keys that at least one query of a block attends to, from a whole panel or tile on.
    KeyRange visible(const AttentionArgs& args, int64_t query, int64_t rows, int64_t alignment) const {
        return {visible(args, query).first / alignment * alignment, visible(args, query + rows - 1).last};
    }
};

// The first rows of one head in q, k and v, or in their gradients, which have the same layout.
template <class T> struct Operands {
    T *q, *k, *v;
    Operands(const AttentionArgs& args, const Head& head, T* query_tensor, T* key_tensor) {
        const auto row = [&](T* x, int64_t offset) {
            return x ? x + offset + head.index * args.head_size : x;  // an empty tensor has no address
        };
        const int64_t value = head.first_key * args.stride_kv() + (args.parts_kv - 1) * args.width();  // the last part
        q = row(query_tensor, head.first_query * args.stride_q());
        k = row(key_tensor, value - args.width());
        v = row(key_tensor, value);
    }
};

// s += the bias of a query's keys, by their distance to it, in units of 1 / scale.
INLINE void add_bias(const AttentionArgs& args, const Head& head, int64_t query, float scale, float* s) {
    if (!args.bias) return;
    const float* bias = args.bias + head.index * args.distances() + args.reach - query;
    for_each_vector(head.n, [&](int64_t c, auto load, auto store) { store(s + c, load(s + c) + load(bias + c) / scale); });
}

// Sizes of the work on one head. Strides are not powers of two, whose columns would share few sets of the cache.
template <class Gemm> struct HeadSizes {
    static constexpr int64_t SCORES_IN_L2 = 32768;  // floats
    int64_t block, depth, columns, score_stride, weight_stride;
    HeadSizes(int64_t n, int64_t size)
        : block(std::clamp(SCORES_IN_L2 / Gemm::pad_depth(std::max<int64_t>(n, 1)) / Gemm::BLOCK, Gemm::MIN_BLOCKS,
                           Gemm::MAX_BLOCKS) *
                Gemm::BLOCK),
          depth(Gemm::pad_depth(size)),
          columns(Gemm::pad_columns(size)),
          score_stride(Gemm::pad_columns(n) + CACHE_LINE / sizeof(float)),
          weight_stride(Gemm::INPLACE ? score_stride : Gemm::pad_depth(n) + CACHE_LINE / sizeof(bfloat16)) {}
};

// Softmax's weights overwrite the scores if the policy works in place.
template <class Gemm> typename Gemm::Element* take_weights(Arena& arena, float* scores, int64_t count) {
    if constexpr (Gemm::INPLACE) return scores;
    else return arena.take<typename Gemm::Element>(count);
}

template <class Gemm> struct ForwardBuffers : HeadSizes<Gemm> {
    typename Gemm::Element *staging, *queries, *weights;
    typename Gemm::Panel *keys_t, *values;
    float *scores, *context, *totals;
    ForwardBuffers(Arena& arena, int64_t n, int64_t size) : HeadSizes<Gemm>(n, size) {
        using E = typename Gemm::Element;
        using P = typename Gemm::Panel;
        staging = arena.take<E>(Gemm::INPLACE ? 0 : Gemm::pad_depth(n) * this->depth);
        queries = arena.take<E>(this->block * this->depth);
        keys_t = arena.take<P>(Gemm::panel_size(size, n));
        values = arena.take<P>(Gemm::panel_size(n, size));
        scores = arena.take<float>(this->block * this->score_stride);
        context = arena.take<float>(this->block * this->columns);
        totals = arena.take<float>(this->block);
        weights = take_weights<Gemm>(arena, scores, this->block * this->weight_stride);
    }
};

template <class Gemm> struct BackwardBuffers : HeadSizes<Gemm> {
    typename Gemm::Element *staging, *queries, *douts, *weights, *dscores, *transposed;
    typename Gemm::Panel *keys_t, *values_t, *keys, *rows;
    float *dkeys, *dvalues, *dquery, *scores, *dweights;
    int64_t transposed_stride;
    BackwardBuffers(Arena& arena, int64_t n, int64_t size) : HeadSizes<Gemm>(n, size) {
        using E = typename Gemm::Element;
        using P = typename Gemm::Panel;
        transposed_stride = this->block + CACHE_LINE / sizeof(bfloat16);
        staging = arena.take<E>(Gemm::INPLACE ? 0 : Gemm::pad_depth(n) * this->depth);
        queries = arena.take<E>(this->block * this->depth);
        douts = arena.take<E>(this->block * this->depth);
        keys_t = arena.take<P>(Gemm::panel_size(size, n));
        values_t = arena.take<P>(Gemm::panel_size(size, n));
        keys = arena.take<P>(Gemm::panel_size(n, size));
        rows = arena.take<P>(Gemm::panel_size(this->block, size));
        dkeys = arena.take<float>(Gemm::pad_rows(n) * this->columns);
        dvalues = arena.take<float>(Gemm::pad_rows(n) * this->columns);
        dquery = arena.take<float>(this->block * this->columns);
        scores = arena.take<float>(this->block * this->score_stride);
        dweights = arena.take<float>(this->block * this->score_stride);
        weights = take_weights<Gemm>(arena, scores, this->block * this->weight_stride);
        dscores = take_weights<Gemm>(arena, dweights, this->block * this->weight_stride);
        transposed = arena.take<E>(Gemm::INPLACE ? 0 : Gemm::pad_rows(n) * transposed_stride);
    }
};

// The rows of one head are pages apart, out of the hardware prefetchers' reach. Softmax prefetches them: the rows that
// are written next, and the rows of the next head.
template <class T> INLINE void prefetch_for_write(T* row, int64_t size) {
    for (int64_t c = 0; c < size; c += CACHE_LINE / sizeof(T)) __builtin_prefetch(row + c, 1);
}
template <class T> INLINE void prefetch_for_read(const T* row, int64_t size) {
    for (int64_t c = 0; c < size; c += CACHE_LINE / sizeof(T)) __builtin_prefetch(row + c, 0, 2);
}
// Row i of the next head's queries, keys and values, if it exists.
template <class T>
INLINE void prefetch_next_head(const AttentionArgs& args, const Head& head, const Operands<const T>& from, int64_t i) {
    const int64_t size = args.head_size, stride_q = args.stride_q(), stride_kv = args.stride_kv();
    if (head.index + 1 == args.heads) return;
    prefetch_for_read(from.q + i * stride_q + size, size);
    if (i >= head.n) return;
    prefetch_for_read(from.k + i * stride_kv + size, size);
    prefetch_for_read(from.v + i * stride_kv + size, size);
}
template <class T>
INLINE void prefetch_gradients(const AttentionArgs& args, const Head& head, const Operands<T>& to, int64_t i) {
    const int64_t stride_q = args.stride_q(), stride_kv = args.stride_kv();
    prefetch_for_write(to.q + i * stride_q, args.head_size);
    if (i >= head.n) return;
    prefetch_for_write(to.k + i * stride_kv, args.head_size);
    prefetch_for_write(to.v + i * stride_kv, args.head_size);
}

struct SoftmaxSums {
    float top, total;
    float log() const { return top + std::log(total); }
};

// Hide the scores of keys that a query does not attend to, among those of its block.
INLINE void hide(float* s, KeyRange seen, KeyRange block) {
    for (int64_t c = block.first; c < seen.first; c++) s[c] = -INFINITY;
    for (int64_t c = seen.last; c < block.last; c++) s[c] = -INFINITY;
}

// A row of a block's scores in units of 1 / scale, some of them seen → dropped-out e^(score - top).
template <class E>
INLINE SoftmaxSums softmax_row(float* s, KeyRange seen, KeyRange block, float scale, const RowMask& mask, E* weights) {
    hide(s, seen, block);
    const bool any = seen.first < seen.last;
    FloatVec best = broadcast(any ? -INFINITY : 0.0f);  // without keys all weights are 0
    for (int64_t c = block.first; c < block.last; c += W) best = max(best, load(s + c));
    const float top = reduce_max(best) * scale;
    FloatVec total{};
    const auto write = [&](auto drops) {
        for (int64_t c = block.first; c < block.last; c += W) {
            const FloatVec e = exp(load(s + c) * scale - top);
            total += e;
            if constexpr (drops) store(weights + c, mask.apply(e, c));
            else store(weights + c, e);
        }
    };
    if (mask.threshold) write(std::true_type{});
    else write(std::false_type{});
    return {top, any ? reduce_add(total) : 1.0f};
}

// From a row of scores and of dP, the gradient of the dropped-out weights: these weights, and the gradient of the
// scores, P ∘ (dropout(dP) - delta).
template <class E>
INLINE void score_gradients(float* s, const float* dp, KeyRange seen, KeyRange block, float scale, float lse, float delta,
                            const RowMask& mask, E* weights, E* dscores) {
    hide(s, seen, block);
    const auto write = [&](auto drops) {
        for (int64_t c = block.first; c < block.last; c += W) {
            const FloatVec p = exp(load(s + c) * scale - lse);
            FloatVec dropped = p, g = load(dp + c);
            if constexpr (drops) {
                const IntVec keep = mask.keep(c);
                dropped = select(keep, p * mask.scale, FloatVec{});
                g = select(keep, g * mask.scale, FloatVec{});
            }
            store(weights + c, dropped);
            store(dscores + c, p * (g - delta));
        }
    };
    if (mask.threshold) write(std::true_type{});
    else write(std::false_type{});
}

template <class T>
static void write_rows(const float* x, int64_t x_stride, int64_t rows, int64_t columns, float scale, T* y,
                       int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
        for_each_vector(columns, [&](int64_t c, auto load, auto store) {
            store(y + r * stride + c, load(x + r * x_stride + c) * scale);
        });
}

template <class A, class B> INLINE float dot(const A* a, const B* b, int64_t size) {
    FloatVec total{};
    for_each_vector(size, [&](int64_t c, auto load, auto) { total += load(a + c) * load(b + c); });
    return reduce_add(total);
}

template <class Gemm, class T>
static void forward_head(const AttentionArgs& args, const MaskKey& key, const Head& head, T* out, float* lse,
                         const ForwardBuffers<Gemm>& b) {
    const Operands<const T> from(args, head, (const T*)args.q, (const T*)args.kv);
    const int64_t D = args.head_size, H = args.width(), n = head.n, depth_n = Gemm::pad_depth(n);
    const int64_t stride_q = args.stride_q(), stride_kv = args.stride_kv();
    const float scale = Gemm::score_scale(D);
    const auto keys = Gemm::stage(from.k, stride_kv, n, D, b.staging);
    pack_b_t(keys.rows, keys.stride, Gemm::pad_rows(n), b.depth, b.keys_t);
    const auto values = Gemm::stage(from.v, stride_kv, n, D, b.staging);
    pack_b(values.rows, values.stride, depth_n, D, b.values);
    for (int64_t start = 0; start < head.m; start += b.block) {
        const int64_t rows = std::min(b.block, head.m - start), padded_rows = Gemm::pad_rows(rows);
        const auto [first, seen] = head.visible(args, start, rows, Gemm::ALIGNMENT);
        const KeyRange block{first, Gemm::pad_columns(seen)};
        Gemm::load_rows(from.q + start * stride_q, stride_q, rows, D, Gemm::query_scale(D), b.queries);
        Gemm::template multiply<false>(b.queries, b.depth, b.keys_t + Gemm::panel_size(D, first), padded_rows, b.depth,
                                       block.last - first, b.depth, b.scores + first, b.score_stride);
        for (int64_t i = 0; i < rows; i++) {
            const int64_t row = head.row(args, start + i);
            const RowMask mask(key, key.first_token * args.heads + row);
            prefetch_for_write(out + row * D, D);
            prefetch_next_head(args, head, from, start + i);
            add_bias(args, head, start + i, scale, b.scores + i * b.score_stride);
            const SoftmaxSums sums = softmax_row(b.scores + i * b.score_stride, head.visible(args, start + i), block,
                                                 scale, mask, b.weights + i * b.weight_stride);
            lse[row] = sums.log();
            b.totals[i] = sums.total;
        }
        Gemm::zero_padding(b.weights, b.weight_stride, rows, block.last);
        Gemm::template multiply<false>(b.weights + first, b.weight_stride, b.values + Gemm::row_offset(first),
                                       padded_rows, Gemm::pad_depth(seen) - first, b.columns, depth_n, b.context,
                                       b.columns);
        for (int64_t i = 0; i < rows; i++)
            write_rows(b.context + i * b.columns, b.columns, 1, D, 1.0f / b.totals[i],
                       out + head.row(args, start + i) * D, H);
    }
}

// What the backward pass reads and writes: the results of the forward pass, T A D and T A (the logarithm of each
// softmax's denominator), and gradients; the gradients of q and kv have the layout of q and kv.
template <class T> struct Backward {
    const T* out;
    const float* lse;
    const T* dout;
    T *dq, *dkv;
    float* dbias;  // of each sequence, all 0 before: B A distances(); null without a bias
};

template <class Gemm, class T>
static void backward_head(const AttentionArgs& args, const MaskKey& key, const Head& head, const Backward<T>& pass,
                          const BackwardBuffers<Gemm>& b) {
    const Operands<const T> from(args, head, (const T*)args.q, (const T*)args.kv);
    const Operands<T> to(args, head, pass.dq, pass.dkv);
    const int64_t D = args.head_size, H = args.width(), n = head.n, depth_n = Gemm::pad_depth(n);
    const int64_t stride_q = args.stride_q(), stride_kv = args.stride_kv();
    const float scale = Gemm::score_scale(D);
    const auto values = Gemm::stage(from.v, stride_kv, n, D, b.staging);
    pack_b_t(values.rows, values.stride, Gemm::pad_rows(n), b.depth, b.values_t);
    const auto keys = Gemm::stage(from.k, stride_kv, n, D, b.staging);
    pack_b_t(keys.rows, keys.stride, Gemm::pad_rows(n), b.depth, b.keys_t);
    pack_b(keys.rows, keys.stride, depth_n, D, b.keys);
    std::fill(b.dkeys, b.dkeys + Gemm::pad_rows(n) * b.columns, 0.0f);
    std::fill(b.dvalues, b.dvalues + Gemm::pad_rows(n) * b.columns, 0.0f);
    for (int64_t start = 0; start < head.m; start += b.block) {
        const int64_t rows = std::min(b.block, head.m - start), padded_rows = Gemm::pad_rows(rows);
        const auto [first, seen] = head.visible(args, start, rows, Gemm::ALIGNMENT);
        const KeyRange block{first, Gemm::pad_columns(seen)};
        const int64_t width = block.last - first, panels = Gemm::panel_size(D, first);
        const int64_t padded_keys = Gemm::pad_rows(seen) - first, depth_rows = Gemm::pad_depth(rows);
        Gemm::load_rows(from.q + start * stride_q, stride_q, rows, D, Gemm::query_scale(D), b.queries);
        Gemm::load_rows(pass.dout + head.row(args, start) * D, H, rows, D, 1.0f, b.douts);
        Gemm::template multiply<false>(b.queries, b.depth, b.keys_t + panels, padded_rows, b.depth, width, b.depth,
                                       b.scores + first, b.score_stride);
        Gemm::template multiply<false>(b.douts, b.depth, b.values_t + panels, padded_rows, b.depth, width, b.depth,
                                       b.dweights + first, b.score_stride);
        for (int64_t i = 0; i < rows; i++) {
            const int64_t row = head.row(args, start + i);
            prefetch_gradients(args, head, to, start + i);
            prefetch_next_head(args, head, from, start + i);
            if (head.index + 1 < args.heads) {
                prefetch_for_read(pass.dout + (row + 1) * D, D);
                prefetch_for_read(pass.out + (row + 1) * D, D);
            }
            add_bias(args, head, start + i, scale, b.scores + i * b.score_stride);
            score_gradients(b.scores + i * b.score_stride, b.dweights + i * b.score_stride,
                            head.visible(args, start + i), block, scale, pass.lse[row],
                            dot(b.douts + i * b.depth, pass.out + row * D, D),
                            RowMask(key, key.first_token * args.heads + row), b.weights + i * b.weight_stride,
                            b.dscores + i * b.weight_stride);
            if (pass.dbias) {
                float* dbias = pass.dbias + head.task * args.distances() + args.reach - (start + i);
                const auto* dscores = b.dscores + i * b.weight_stride;
                for_each_vector(n, [&](int64_t c, auto load, auto store) {
                    store(dbias + c, load(dbias + c) + load(dscores + c));
                });
            }
        }
        Gemm::zero_padding(b.weights, b.weight_stride, rows, block.last);
        Gemm::zero_padding(b.dscores, b.weight_stride, rows, block.last);
        pack_b(b.douts, b.depth, depth_rows, D, b.rows);
        Gemm::multiply_tn_add(b.weights + first, b.weight_stride, b.rows, padded_keys, depth_rows, b.columns,
                              b.dvalues + first * b.columns, b.columns, b.transposed, b.transposed_stride);
        pack_b(b.queries, b.depth, depth_rows, D, b.rows);
        Gemm::multiply_tn_add(b.dscores + first, b.weight_stride, b.rows, padded_keys, depth_rows, b.columns,
                              b.dkeys + first * b.columns, b.columns, b.transposed, b.transposed_stride);
        Gemm::template multiply<false>(b.dscores + first, b.weight_stride, b.keys + Gemm::row_offset(first),
                                       padded_rows, Gemm::pad_depth(seen) - first, b.columns, depth_n, b.dquery,
                                       b.columns);
        write_rows(b.dquery, b.columns, rows, D, Gemm::query_scale(D) * scale, to.q + start * stride_q,
                   stride_q);
    }
    write_rows(b.dkeys, b.columns, n, D, scale, to.k, stride_kv);  // the queries were scaled, or the scores
    write_rows(b.dvalues, b.columns, n, D, 1.0f, to.v, stride_kv);
}

// f(head, buffers) for every head of every sequence that has queries or keys, on all threads.
template <class Buffers, class Thread, class F>
static void for_each_head(const AttentionArgs& args, int64_t threads, F f) {
    constexpr int64_t TASKS_PER_THREAD = 8;
    const int64_t tasks = args.sequences * args.heads;
    const int64_t adjacent = std::clamp<int64_t>(tasks / (TASKS_PER_THREAD * threads), 1, args.heads);  // heads
    int64_t bytes = 0;
    for (int64_t task = 0; task < tasks; task += args.heads)
        if (const Head head(args, task); head.m || head.n) {
            Arena counter;
            Buffers(counter, head.n, args.head_size);
            bytes = std::max(bytes, counter.used);
        }
    const PerThread<char> memory(bytes, threads);
#pragma omp parallel num_threads(threads)
    {
        [[maybe_unused]] const Thread prepared;
#pragma omp for schedule(dynamic, adjacent)
        for (int64_t task = 0; task < tasks; task++) {
            const Head head(args, task);
            Arena arena{memory.mine()};
            if (head.m || head.n) f(head, Buffers(arena, head.n, args.head_size));
        }
    }
}

// f(Gemm policy for tensors of T).
template <class T, class F> static void with_gemm(F f) {
#if HAS_BF16_ISA
    if constexpr (std::is_same_v<T, bfloat16>) return f(Bf16Gemm{});
#endif
    f(Float32Gemm{});
}

template <class T>
static void attention(const AttentionArgs& args, const MaskKey& key, T* out, float* lse, int64_t threads) {
    with_gemm<T>([&](auto gemm) {
        using Gemm = decltype(gemm);
        using Buffers = ForwardBuffers<Gemm>;
        for_each_head<Buffers, typename Gemm::Thread>(args, threads, [&](const Head& head, const Buffers& buffers) {
            forward_head(args, key, head, out, lse, buffers);
        });
    });
}

template <class T>
static void attention_backward(const AttentionArgs& args, const MaskKey& key, const Backward<T>& pass,
                               int64_t threads) {
    with_gemm<T>([&](auto gemm) {
        using Gemm = decltype(gemm);
        using Buffers = BackwardBuffers<Gemm>;
        for_each_head<Buffers, typename Gemm::Thread>(args, threads, [&](const Head& head, const Buffers& buffers) {
            backward_head(args, key, head, pass, buffers);
        });
    });
}
