// One stretch of training of word vectors: skip-gram with negative sampling, with or without subwords, and GloVe.
// Threads share the tables without locks (Hogwild); with one thread the bits depend on the arguments alone.
#pragma once
#include "interface.h"
#include "memory.h"
#include <algorithm>

// Rows have `stride` numbers, a multiple of the vector width; those after the last column are 0 and stay 0.
#define SKIP_GRAM_ARGS(X)                                                                                      \
    X(float*, input) X(float*, output) X(int64_t, stride)                                                      \
    X(const int32_t*, words) X(int64_t, num_words)                        /* word ids; -1 ends a sentence */   \
    X(const float*, keep)                                                 /* V: probability of keeping */      \
    X(const float*, alias_share) X(const int32_t*, alias) X(int64_t, vocabulary) /* V: alias table of noise */ \
    X(const int32_t*, rows) X(const int64_t*, row_offsets)                /* input rows of words, or null */   \
    X(int64_t, window) X(int64_t, negatives) X(double, first_rate) X(double, last_rate) X(int64_t, seed)
struct SkipGramArgs {
    SKIP_GRAM_ARGS(DECLARE_FIELD)
};

constexpr int64_t MAX_SENTENCE = 10'000;  // words; a longer one is cut
constexpr int64_t MAX_NEGATIVES = 31;

// splitmix64 (Steele et al. 2014); word_vectors.py draws the same numbers.
struct WordRandom {
    uint64_t state;
    uint64_t next() {
        uint64_t z = (state += 0x9E3779B97F4A7C15);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
        return z ^ (z >> 31);
    }
    float uniform() { return (float)(next() >> 40) * 0x1p-24f; }
    int64_t below(int64_t n) { return (int64_t)((next() >> 32) * (uint64_t)n >> 32); }
};

// Draws a word of the noise distribution: a column of the alias table, then the column's word or its alias.
INLINE int32_t draw_noise(const SkipGramArgs& args, WordRandom& random) {
    const uint64_t bits = random.next();
    const int64_t column = (int64_t)((bits >> 32) * (uint64_t)args.vocabulary >> 32);
    const float share = (float)((uint32_t)bits >> 8) * 0x1p-24f;
    return share < args.alias_share[column] ? (int32_t)column : args.alias[column];
}

// The update of one pair: v predicts the first of `count` output rows, and not the others. Scores are computed before
// any row changes. Adds the change of v to v and to `total`. N: vectors per row, if the compiler knows it, else 0.
template <int N>
INLINE void update_pair(float* v, float* total, float* const* outputs, int64_t count, int64_t stride, float rate) {
    const int64_t vectors = N ? N : stride / W;
    alignas(CACHE_LINE) float scores[round_up(MAX_NEGATIVES + 1, 16)] = {};
    for (int64_t k = 0; k < count; k++) {
        FloatVec sum = {};
        for (int64_t c = 0; c < vectors; c++) sum += load(v + c * W) * load(outputs[k] + c * W);
        scores[k] = reduce_add(sum);
    }
    for (int64_t k = 0; k < count; k += W)  // the gradient of the log-likelihood, times the rate
        store(scores + k, -rate / (1.0f + exp(-load(scores + k))));
    scores[0] += rate;
    if (N) {
        FloatVec change[N ? N : 1] = {}, from[N ? N : 1];
        for (int64_t c = 0; c < N; c++) from[c] = load(v + c * W);
        for (int64_t k = 0; k < count; k++) {
            float* u = outputs[k];
            const FloatVec g = broadcast(scores[k]);
            for (int64_t c = 0; c < N; c++) {
                const FloatVec old = load(u + c * W);
                change[c] += g * old;
                store(u + c * W, old + g * from[c]);
            }
        }
        for (int64_t c = 0; c < N; c++) {
            store(v + c * W, from[c] + change[c]);
            if (total) store(total + c * W, load(total + c * W) + change[c]);
        }
        return;
    }
    for (int64_t c = 0; c < vectors; c++) {
        const FloatVec from = load(v + c * W);
        FloatVec change = {};
        for (int64_t k = 0; k < count; k++) {
            float* u = outputs[k] + c * W;
            const FloatVec g = broadcast(scores[k]), old = load(u);
            change += g * old;
            store(u, old + g * from);
        }
        store(v + c * W, from + change);
        if (total) store(total + c * W, load(total + c * W) + change);
    }
}

// The mean of a word's input rows.
INLINE void mean_of_rows(const SkipGramArgs& args, int64_t first, int64_t last, float* mean) {
    const float scale = 1.0f / (last - first);
    for (int64_t c = 0; c < args.stride; c += W) {
        FloatVec sum = {};
        for (int64_t r = first; r < last; r++) sum += load(args.input + args.rows[r] * args.stride + c);
        store(mean + c, sum * scale);
    }
}

// All pairs of one centre word with its context words, `context` of them.
template <int N>
INLINE void update_centre(const SkipGramArgs& args, int32_t centre, const int32_t* context, int64_t count, float rate,
                          WordRandom& random, float* scratch) {
    float *v = args.input + centre * args.stride, *total = nullptr;
    int64_t first = 0, last = 0;
    if (args.rows) {
        first = args.row_offsets[centre], last = args.row_offsets[centre + 1];
        v = scratch, total = scratch + args.stride;
        mean_of_rows(args, first, last, v);
        std::fill(total, total + args.stride, 0.0f);
    }
    float* outputs[MAX_NEGATIVES + 1];
    for (int64_t i = 0; i < count; i++) {
        int64_t number = 1;
        outputs[0] = args.output + context[i] * args.stride;
        for (int64_t k = 0; k < args.negatives; k++) {
            const int32_t noise = draw_noise(args, random);
            if (noise == context[i]) continue;
            outputs[number++] = args.output + noise * args.stride;
            __builtin_prefetch(args.output + noise * args.stride);
        }
        update_pair<N>(v, total, outputs, number, args.stride, rate);
    }
    for (int64_t r = first; r < last; r++) {  // each row's gradient is not divided by their number, as in fastText
        float* row = args.input + args.rows[r] * args.stride;
        for (int64_t c = 0; c < args.stride; c += W) store(row + c, load(row + c) + load(total + c));
    }
}

// The sentences of words `first` to `last`.
template <int N>
static void skip_gram_part(const SkipGramArgs& args, int64_t first, int64_t last, float* scratch, int32_t* sentence) {
    int32_t context[2 * 128];
    while (first < last) {
        WordRandom random{(uint64_t)args.seed + 0x9E3779B97F4A7C15 * (uint64_t)first};
        const float done = (float)((double)first / args.num_words);
        const float rate = (float)(args.first_rate + done * (args.last_rate - args.first_rate));
        int64_t length = 0, end = first;
        for (; end < last && end - first < MAX_SENTENCE && args.words[end] >= 0; end++)
            if (random.uniform() < args.keep[args.words[end]]) sentence[length++] = args.words[end];
        for (int64_t i = 0; i < length; i++) {
            const int64_t reach = 1 + random.below(args.window);
            int64_t count = 0;
            for (int64_t j = std::max<int64_t>(0, i - reach); j <= std::min(length - 1, i + reach); j++)
                if (j != i) context[count++] = sentence[j];
            if (count) update_centre<N>(args, sentence[i], context, count, rate, random, scratch);
        }
        first = end < last && args.words[end] < 0 ? end + 1 : end;
    }
}

// Calls f(std::integral_constant<int, N>) with the number of vectors per row, or with 0 if it is above 8.
template <class F> static void with_vectors(int64_t vectors, F f) {
    switch (vectors) {
        case 2: return f(std::integral_constant<int, 2>{});
        case 4: return f(std::integral_constant<int, 4>{});
        case 7: return f(std::integral_constant<int, 7>{});
        case 8: return f(std::integral_constant<int, 8>{});
        default: return f(std::integral_constant<int, 0>{});
    }
}

static void skip_gram(const SkipGramArgs& args, int64_t threads) {
    const PerThread<float> scratch(2 * args.stride, threads);
    const PerThread<int32_t> sentences(MAX_SENTENCE, threads);
    with_vectors(args.stride / W, [&](auto vectors) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t part = 0; part < threads; part++) {
            const int64_t first = args.num_words * part / threads, last = args.num_words * (part + 1) / threads;
            skip_gram_part<decltype(vectors)::value>(args, first, last, scratch.mine(), sentences.mine());
        }
    });
}

// GloVe (Pennington et al. 2014, equation 8) with AdaGrad. A row has D columns, then its bias.
#define GLOVE_ARGS(X)                                                                                            \
    X(float*, words) X(float*, contexts) X(float*, word_squares) X(float*, context_squares) X(int64_t, stride)   \
    X(int64_t, columns)                                                                                          \
    X(const int32_t*, first) X(const int32_t*, second) X(const float*, counts) X(int64_t, pairs)                 \
    X(double, rate) X(double, max_count) X(double, exponent)
struct GloveArgs {
    GLOVE_ARGS(DECLARE_FIELD)
};

// Updates the rows of one pair; returns its loss.
INLINE double update_glove(const GloveArgs& args, int64_t pair) {
    float *w = args.words + args.first[pair] * args.stride, *c = args.contexts + args.second[pair] * args.stride;
    float* w2 = args.word_squares + args.first[pair] * args.stride;
    float* c2 = args.context_squares + args.second[pair] * args.stride;
    const int64_t bias = args.columns;
    FloatVec sum = {};
    for (int64_t k = 0; k < args.stride; k += W) sum += load(w + k) * load(c + k);
    const float product = reduce_add(sum) - w[bias] * c[bias];
    const float x = args.counts[pair], error = product + w[bias] + c[bias] - std::log(x);
    const float weight = x < args.max_count ? std::pow(x / (float)args.max_count, (float)args.exponent) : 1.0f;
    // The published code sums the squares of gradients times the rate, from 1.
    const float step = (float)args.rate * weight * error;
    const float old_word_bias = w[bias], old_context_bias = c[bias];
    const float old_word_square = w2[bias], old_context_square = c2[bias];
    for (int64_t k = 0; k < args.stride; k += W) {
        const FloatVec a = load(w + k), b = load(c + k), da = step * b, db = step * a;
        const FloatVec a2 = load(w2 + k), b2 = load(c2 + k);
        store(w + k, a - da / sqrt(a2));
        store(c + k, b - db / sqrt(b2));
        store(w2 + k, a2 + da * da);
        store(c2 + k, b2 + db * db);
    }
    w[bias] = old_word_bias - step / std::sqrt(old_word_square);
    c[bias] = old_context_bias - step / std::sqrt(old_context_square);
    w2[bias] = old_word_square + step * step, c2[bias] = old_context_square + step * step;
    return 0.5 * weight * error * error;
}

// Updates all pairs in order; `loss`: one sum per thread.
static void glove(const GloveArgs& args, double* loss, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t part = 0; part < threads; part++) {
        double sum = 0;
        for (int64_t p = args.pairs * part / threads; p < args.pairs * (part + 1) / threads; p++)
            sum += update_glove(args, p);
        loss[part] = sum;
    }
}
