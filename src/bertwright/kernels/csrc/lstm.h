// The recurrence of LSTMs: products in bfloat16; gates, cells and states in float32.
//
// R words in the order of their steps, n of them in a step; C cells, H states; the leading dimension is the direction.
// C and H are multiples of TILE. A number's bits depend neither on the number of threads nor on other sequences.
#pragma once
#include "gemm_bf16.h"

#if HAS_BF16_ISA
#define LSTM_ARGS(X)                                                                                           \
    X(int64_t, directions) X(int64_t, words) X(int64_t, cells) X(int64_t, states) X(int64_t, steps)            \
    X(const int64_t*, batch_sizes) X(float, cell_clip) X(float, state_clip)
struct LstmArgs {
    LSTM_ARGS(DECLARE_FIELD)
};

INLINE FloatVec sigmoid(FloatVec x) { return 1.0f / (1.0f + exp(-x)); }
INLINE FloatVec tanh(FloatVec x) { return 2.0f / (1.0f + exp(-2.0f * x)) - 1.0f; }
// x within ±limit; a limit of 0 is none.
INLINE FloatVec clip(FloatVec x, float limit) {
    if (!limit) return x;
    x = x > limit ? broadcast(limit) : x;
    return x < -limit ? broadcast(-limit) : x;
}
// x where value is inside ±limit, otherwise 0: the gradient of clip.
INLINE FloatVec inside(FloatVec x, FloatVec value, float limit) {
    return !limit ? x : value > -limit ? (value < limit ? x : FloatVec{}) : FloatVec{};
}

// The panels of a weight (rows × columns) of each direction: of its transpose or, if `plain`, of itself.
struct WeightPanels {
    const int64_t size;
    const Buffer<uint32_t> panels;
    WeightPanels(const float* weight, int64_t directions, int64_t rows, int64_t columns, bool plain, int64_t threads)
        : size(panel_words(rows, columns)), panels(weight ? directions * size : 0) {
        for (int64_t d = 0; weight && d < directions; d++) {
            uint32_t* own = panels.get() + d * size;
            pack_weight(weight + d * rows * columns, rows, columns, plain ? own : nullptr, plain ? nullptr : own,
                        threads);
        }
    }
    const uint32_t* of(int64_t direction) const { return panels.get() + direction * size; }
};

// f(direction, first row, rows, first column) for all blocks of a step's n rows and `columns`, by the threads of the
// parallel region. Rows of a block are TILE, or fewer at the end.
template <class F> INLINE void for_each_block(const LstmArgs& a, int64_t n, int64_t columns, F f) {
    const int64_t across = columns / TILE;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < a.directions * across; task++)
        for (int64_t r = 0; r < n; r += TILE)
            f(task / across, r, std::min<int64_t>(TILE, n - r), task % across * TILE);
}

// `gates`: at first, the inputs' share is in `inputs`; then the values of i, f, g, o. `earlier` gets each word's last
// states, and `outputs`, for an LSTM with a projection, what it reads. Both have TILE more rows at the end, which are
// read and do not count. `first_states` and `first_cells` may be null: 0.
//
//   inputs, gates: R 4C   hidden: 4C H   project: H C, or null   first_states, cells …: n H, n C   earlier, outputs: R H, R C
#define LSTM_FORWARD(X)                                                                                        \
    X(const bfloat16*, inputs) X(const float*, hidden) X(const float*, project) X(const float*, first_states)  \
    X(const float*, first_cells) X(float*, gates) X(float*, cells) X(float*, states) X(bfloat16*, earlier)     \
    X(bfloat16*, outputs)
struct LstmForward {
    LSTM_FORWARD(DECLARE_FIELD)
};

static void lstm_forward(const LstmArgs& a, const LstmForward& t, int64_t threads) {
    const auto multiply_block = bf16_isa().multiply_block;
    const int64_t C = a.cells, H = a.states, R = a.words, n_first = a.batch_sizes[0];
    const WeightPanels hidden(t.hidden, a.directions, 4 * C, H, false, threads);
    const WeightPanels project(t.project, a.directions, H, C, false, threads);
    const auto write_state = [&](FloatVec state, int64_t row, int64_t next_row, int64_t column) {
        state = clip(state, a.state_clip);
        store(t.states + row * H + column, state);
        if (next_row >= 0) store(t.earlier + next_row * H + column, state);
    };
#pragma omp parallel num_threads(threads)
    {
        const Bf16Thread prepared;
        alignas(CACHE_LINE) float block[4][TILE * TILE];
#pragma omp for schedule(static)
        for (int64_t row = 0; row < a.directions * n_first; row++)
            for (int64_t c = 0; c < H; c += W)
                store(t.earlier + (row / n_first * R + row % n_first) * H + c,
                      t.first_states ? load(t.first_states + row * H + c) : FloatVec{});
        for (int64_t step = 0, begin = 0, before = 0; step < a.steps; before = begin, begin += a.batch_sizes[step++]) {
            const int64_t n = a.batch_sizes[step], n_next = step + 1 < a.steps ? a.batch_sizes[step + 1] : 0;
            for_each_block(a, n, C, [&](int64_t d, int64_t top, int64_t rows, int64_t column) {
                const bool has_earlier = step || t.first_states;
                if (has_earlier)
                    for (int gate = 0; gate < 4; gate++)
                        multiply_block(t.earlier + (d * R + begin + top) * H, H,
                                       hidden.of(d) + panel_words(H, gate * C + column), H, block[gate]);
                for (int64_t r = 0; r < rows; r++) {
                    const int64_t row = d * R + begin + top + r;
                    const int64_t next_row = top + r < n_next ? row + n : -1;
                    const float* last_cell = step            ? t.cells + (d * R + before + top + r) * C
                                             : t.first_cells ? t.first_cells + (d * n + top + r) * C
                                                             : nullptr;
                    for (int v = 0; v < TILE; v += W) {
                        const int64_t c = column + v;
                        FloatVec gate[4];
                        for (int k = 0; k < 4; k++) {
                            const FloatVec share = has_earlier ? load(block[k] + r * TILE + v) : FloatVec{};
                            const FloatVec x = load(t.inputs + row * 4 * C + k * C + c) + share;
                            gate[k] = k == 2 ? tanh(x) : sigmoid(x);
                            store(t.gates + row * 4 * C + k * C + c, gate[k]);
                        }
                        FloatVec cell = gate[0] * gate[2];
                        if (last_cell) cell += gate[1] * load(last_cell + c);
                        cell = clip(cell, a.cell_clip);
                        store(t.cells + row * C + c, cell);
                        const FloatVec output = gate[3] * tanh(cell);
                        if (t.project) store(t.outputs + row * C + c, output);
                        else write_state(output, row, next_row, c);
                    }
                }
            });
            if (t.project)
                for_each_block(a, n, H, [&](int64_t d, int64_t top, int64_t rows, int64_t column) {
                    multiply_block(t.outputs + (d * R + begin + top) * C, C, project.of(d) + panel_words(C, column), C,
                                   block[0]);
                    for (int64_t r = 0; r < rows; r++)
                        for (int v = 0; v < TILE; v += W) {
                            const int64_t row = d * R + begin + top + r;
                            write_state(load(block[0] + r * TILE + v), row, top + r < n_next ? row + n : -1,
                                        column + v);
                        }
                });
        }
    }
}

// `by_states` and `by_cells`: gradients from above, or null. `d_gates` gets the gradients before the gates' functions,
// `d_states`, for an LSTM with a projection, all of a state; both have TILE more rows, as above.
#define LSTM_BACKWARD(X)                                                                                       \
    X(const float*, gates) X(const float*, cells) X(const float*, states) X(const float*, hidden)              \
    X(const float*, project) X(const float*, first_cells) X(const float*, by_states) X(const float*, by_cells) \
    X(bfloat16*, d_gates) X(bfloat16*, d_states)
struct LstmBackward {
    LSTM_BACKWARD(DECLARE_FIELD)
};

static void lstm_backward(const LstmArgs& a, const LstmBackward& t, int64_t threads) {
    const auto multiply_block = bf16_isa().multiply_block;
    const int64_t C = a.cells, H = a.states, R = a.words, n_first = a.batch_sizes[0];
    const WeightPanels hidden(t.hidden, a.directions, 4 * C, H, true, threads);
    const WeightPanels project(t.project, a.directions, H, C, true, threads);
    // Gradients that a step hands to the step before it.
    const Buffer<float> of_states(a.directions * n_first * H), of_cells(a.directions * n_first * C);
    memset(of_states.get(), 0, a.directions * n_first * H * sizeof(float));
    memset(of_cells.get(), 0, a.directions * n_first * C * sizeof(float));
    const auto state_gradient = [&](int64_t row, int64_t sequence, int64_t c) {
        FloatVec total = load(of_states.get() + sequence * H + c);
        if (t.by_states) total += load(t.by_states + row * H + c);
        return a.state_clip ? inside(total, load(t.states + row * H + c), a.state_clip) : total;
    };
#pragma omp parallel num_threads(threads)
    {
        const Bf16Thread prepared;
        alignas(CACHE_LINE) float block[TILE * TILE];
        for (int64_t step = a.steps - 1, end = R; step >= 0; end -= a.batch_sizes[step--]) {
            const int64_t n = a.batch_sizes[step], begin = end - n;
            if (t.project)
                for_each_block(a, n, H, [&](int64_t d, int64_t top, int64_t rows, int64_t column) {
                    for (int64_t r = top; r < top + rows; r++)
                        for (int64_t c = column; c < column + TILE; c += W) {
                            const int64_t row = d * R + begin + r;
                            store(t.d_states + row * H + c, state_gradient(row, d * n_first + r, c));
                        }
                });
            for_each_block(a, n, C, [&](int64_t d, int64_t top, int64_t rows, int64_t column) {
                if (t.project)
                    multiply_block(t.d_states + (d * R + begin + top) * H, H, project.of(d) + panel_words(H, column), H,
                                   block);
                for (int64_t r = 0; r < rows; r++) {
                    const int64_t row = d * R + begin + top + r, sequence = d * n_first + top + r;
                    const float* last_cell = step            ? t.cells + (row - a.batch_sizes[step - 1]) * C
                                             : t.first_cells ? t.first_cells + sequence * C
                                                             : nullptr;
                    for (int v = 0; v < TILE; v += W) {
                        const int64_t c = column + v;
                        const float* gate = t.gates + row * 4 * C + c;
                        const FloatVec i = load(gate), f = load(gate + C), g = load(gate + 2 * C), o = load(gate + 3 * C);
                        const FloatVec cell = load(t.cells + row * C + c), squashed = tanh(cell);
                        const FloatVec d_output =
                            t.project ? load(block + r * TILE + v) : state_gradient(row, sequence, c);
                        float* later = of_cells.get() + sequence * C + c;
                        FloatVec d_cell = d_output * o * (1.0f - squashed * squashed) + load(later);
                        if (t.by_cells) d_cell += load(t.by_cells + row * C + c);
                        d_cell = inside(d_cell, cell, a.cell_clip);
                        const FloatVec last = last_cell ? load(last_cell + c) : FloatVec{};
                        bfloat16* to = t.d_gates + row * 4 * C + c;
                        store(to, d_cell * g * i * (1.0f - i));
                        store(to + C, d_cell * last * f * (1.0f - f));
                        store(to + 2 * C, d_cell * i * (1.0f - g * g));
                        store(to + 3 * C, d_output * squashed * o * (1.0f - o));
                        store(later, d_cell * f);
                    }
                }
            });
            if (step)
                for_each_block(a, n, H, [&](int64_t d, int64_t top, int64_t rows, int64_t column) {
                    multiply_block(t.d_gates + (d * R + begin + top) * 4 * C, 4 * C,
                                   hidden.of(d) + panel_words(4 * C, column), 4 * C, block);
                    for (int64_t r = 0; r < rows; r++)
                        memcpy(of_states.get() + (d * n_first + top + r) * H + column, block + r * TILE,
                               TILE * sizeof(float));
                });
        }
    }
}
#endif
