// The C interface of the Python files beside it: tensors as pointers, whole numbers as int64, others as double, the threads last.
#include "attention.h"
#include "embedding.h"
#include "gelu.h"
#include "layers.h"
#include "loss.h"
#include "norm.h"
#include "optimizer.h"
#include "products.h"
#include "transpose.h"

// f is called with a pointer of the tensors' element type.
template <class F> static void with_type(int64_t type, F f) {
    if (type == FLOAT32) f((float*)nullptr); else f((bfloat16*)nullptr);
}
template <class F> static void with_type_and_form(int64_t type, int64_t tanh, F f) {
    with_type(type, [&](auto* t) { with_form(tanh, [&](auto form) { f(t, form); }); });
}
#define ELEMENT(t) std::remove_pointer_t<decltype(t)>

extern "C" {

void bias_gelu(int64_t type, int64_t tanh, const void* x, const float* bias, void* y,
               int64_t rows, int64_t columns, int64_t threads) {
    with_type_and_form(type, tanh, [&](auto* t, auto form) {
        using T = ELEMENT(t);
        bias_gelu<T, form.value>((const T*)x, bias, (T*)y, rows, columns, threads);
    });
}

void bias_gelu_backward(int64_t type, int64_t tanh, const void* x, const float* bias, const void* dy, void* dx, float* dbias,
                        int64_t rows, int64_t columns, int64_t threads) {
    with_type_and_form(type, tanh, [&](auto* t, auto form) {
        using T = ELEMENT(t);
        bias_gelu_backward<T, form.value>((const T*)x, bias, (const T*)dy, (T*)dx, dbias, rows, columns, threads);
    });
}

void dropout(int64_t type, const void* x, const Draw* draw, void* y, int64_t rows, int64_t columns, int64_t threads) {
    with_type(type, [&](auto* t) {
        using T = ELEMENT(t);
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            Row mask(*draw, draw->place(r));
            sweep(columns, [&](int64_t c, auto load, auto store) {
                store((T*)y + r * columns + c, mask.apply(load((const T*)x + r * columns + c), c));
            });
        }
    });
}

void add_dropout_norm(int64_t type, const void* x, const float* bias, const void* residual, const float* weight,
                      const float* norm_bias, double eps, const Draw* draw, void* z, void* kept, void* y,
                      int64_t rows, int64_t columns, int64_t threads) {
    with_type(type, [&](auto* t) {
        using T = ELEMENT(t);
        add_dropout_norm((const T*)x, bias, (const T*)residual, weight, norm_bias, (float)eps, *draw,
                         (T*)z, (Moments*)kept, (T*)y, rows, columns, threads);
    });
}

void add_dropout_norm_backward(int64_t type, const void* z, const void* kept, const float* weight, const void* dy,
                               const Draw* draw, void* dx, void* dresidual, float* dsums,
                               int64_t rows, int64_t columns, int64_t threads) {
    with_type(type, [&](auto* t) {
        using T = ELEMENT(t);
        add_dropout_norm_backward((const T*)z, (const Moments*)kept, weight, (const T*)dy, *draw, (T*)dx, (T*)dresidual,
                                  dsums, rows, columns, threads);
    });
}

// `tables` and `ids`: three pointers each, for word, position and token type.
void embed_norm(int64_t type, const void* const* tables, const int64_t* const* ids, const float* weight,
                const float* norm_bias, double eps, const Draw* draw, void* kept, void* y,
                int64_t rows, int64_t columns, int64_t threads) {
    with_type(type, [&](auto* t) {
        using T = ELEMENT(t);
        const Table<T> typed[3] = {{(const T*)tables[0], ids[0]}, {(const T*)tables[1], ids[1]}, {(const T*)tables[2], ids[2]}};
        embed_norm(typed, weight, norm_bias, (float)eps, *draw, (Moments*)kept, (T*)y, rows, columns, threads);
    });
}

void embed_norm_backward(int64_t type, const void* const* tables, const int64_t* const* ids, const void* kept,
                         const float* weight, const void* dy, const Draw* draw, float* dz, float* dsums,
                         int64_t rows, int64_t columns, int64_t threads) {
    with_type(type, [&](auto* t) {
        using T = ELEMENT(t);
        const Table<T> typed[3] = {{(const T*)tables[0], ids[0]}, {(const T*)tables[1], ids[1]}, {(const T*)tables[2], ids[2]}};
        embed_norm_backward(typed, (const Moments*)kept, weight, (const T*)dy, *draw, dz, dsums, rows, columns, threads);
    });
}

void add_rows(const float* dz, const int64_t* ids, float* table, int64_t rows, int64_t columns, int64_t threads) {
    add_in_order(dz, ids, table, rows, columns, threads);
}

// qkv T 3 A D; `starts`: the first token of each of the sequences, and T.
void attention(int64_t type, const void* qkv, const int32_t* starts, int64_t sequences, int64_t heads, int64_t size,
               int64_t causal, const Draw* draw, void* out, float* lse, int64_t threads) {
    with_type(type, [&](auto* t) {
        using T = ELEMENT(t);
        attention((const T*)qkv, {starts, sequences}, {heads, size}, causal, *draw, (T*)out, lse, threads);
    });
}

void attention_backward(int64_t type, const void* qkv, const void* out, const float* lse, const void* dout,
                        const int32_t* starts, int64_t sequences, int64_t heads, int64_t size,
                        int64_t causal, const Draw* draw, void* dqkv, int64_t threads) {
    with_type(type, [&](auto* t) {
        using T = ELEMENT(t);
        attention_backward((const T*)qkv, (const T*)out, lse, (const T*)dout, {starts, sequences}, {heads, size}, causal,
                           *draw, (T*)dqkv, threads);
    });
}

void cross_entropy(int64_t type, void* logits, int64_t stride, const float* bias, const int64_t* labels, double scale,
                   float* losses, int64_t* correct, float* dbias, int64_t rows, int64_t columns, int64_t threads) {
    with_type(type, [&](auto* t) {
        using T = ELEMENT(t);
        cross_entropy((T*)logits, stride, bias, labels, (float)scale, losses, correct, dbias, rows, columns, threads);
    });
}

// Of each kind of tensor as many pointers as there are `sizes`.
void adamw(float* const* parameters, const float* const* gradients, float* const* exp_avg, float* const* exp_avg_sq,
           const int64_t* sizes, int64_t tensors, const double* step, int64_t threads) {
    adamw(parameters, gradients, exp_avg, exp_avg_sq, sizes, tensors, *(const AdamStep*)step, threads);
}

void adamw_rows(float* parameter, const float* gradient, const int64_t* places, uint8_t* touched, float* exp_avg,
                float* exp_avg_sq, const double* step, int64_t rows, int64_t columns, int64_t threads) {
    adamw_rows(parameter, gradient, places, touched, exp_avg, exp_avg_sq, *(const AdamStep*)step, rows, columns, threads);
}

void square_sum(const float* const* x, const int64_t* sizes, int64_t tensors, double* total, int64_t threads) {
    *total = square_sum(x, sizes, tensors, threads);
}

void transpose(const void* x, int64_t x_row, void* y, int64_t y_row, int64_t rows, int64_t columns, int64_t threads) {
    transpose((const uint16_t*)x, x_row, (uint16_t*)y, y_row, nullptr, rows, columns, threads);
}

// 1 in `has` if this processor has units for bfloat16, which dense layers need.
void bfloat16_units(int64_t* has, int64_t) {
#if BFLOAT16_UNITS
    *has = tiles_allowed();
#else
    *has = 0;
#endif
}

#if BFLOAT16_UNITS
// `type` is the weight's; `bias` may be null.
void dense(int64_t type, const void* x, const void* weight, const float* bias, void* y, int64_t rows, int64_t inner,
           int64_t outer, int64_t threads) {
    with_type(type, [&](auto* t) {
        dense((const uint16_t*)x, (const ELEMENT(t)*)weight, bias, (bfloat16*)y, nullptr, rows, inner, outer, threads);
    });
}

void dense_backward(int64_t type, const void* dy, const void* x, const void* weight, void* dx, float* dweight, float* dbias,
                    int64_t rows, int64_t inner, int64_t outer, int64_t threads) {
    auto panels = buffer<uint32_t>(dx ? inner * outer / 2 : 0);
    if (dx)
        with_type(type, [&](auto* t) { pack_panels((const ELEMENT(t)*)weight, outer, inner, panels.get(), nullptr, threads); });
    dense_backward((const uint16_t*)dy, (const uint16_t*)x, panels.get(), (bfloat16*)dx, dweight, dbias, rows, inner, outer, threads);
}

// How many numbers in bfloat16 and in float32 `count` layers work on; `layers_backward` needs those from layer `first` on.
// `some`: whether the last layer has `chosen` rows.
void layers_room(int64_t* room, int64_t count, int64_t first, int64_t some, int64_t tokens, int64_t chosen, int64_t width,
                 int64_t inner, int64_t heads, int64_t) {
    const LayerShape shape{{}, nullptr, tokens, chosen, width, inner, heads, bool(some), false, false, 0, true};
    const Shelf shelf{shape, count, first, nullptr, nullptr};
    room[0] = shelf.before(count, Kept::halves);
    room[1] = shelf.before(count, Kept::floats);
}

// Of the parameters and of their gradients (which may be null) twelve pointers a layer each, of the draws three.
void layers(const void* hidden, const float* const* parameters, void* halves, float* floats, void* y, const Draw* draws,
            const int32_t* starts, int64_t sequences, const int64_t* rows, int64_t count, int64_t first, int64_t some,
            int64_t tokens, int64_t chosen, int64_t width, int64_t inner, int64_t heads, int64_t causal, int64_t tanh, double eps,
            int64_t threads) {
    const LayerShape shape{{starts, sequences}, rows, tokens, chosen, width, inner, heads, bool(some), bool(causal), bool(tanh),
                           (float)eps, true};
    const Shelf shelf{shape, count, first, (bfloat16*)halves, floats};
    layers((const bfloat16*)hidden, (const Parameters<const float>*)parameters, shelf, (const Draws*)draws, threads);
    memcpy(y, shelf.at(count - 1).y, chosen * width * sizeof(bfloat16));
}

void layers_backward(const void* dy, const void* hidden, const float* const* parameters, void* halves, float* floats,
                     void* dhidden, float* const* gradients, const Draw* draws, const int32_t* starts, int64_t sequences,
                     const int64_t* rows, int64_t count, int64_t first, int64_t some, int64_t tokens, int64_t chosen, int64_t width,
                     int64_t inner, int64_t heads, int64_t causal, int64_t tanh, double eps, int64_t threads) {
    const LayerShape shape{{starts, sequences}, rows, tokens, chosen, width, inner, heads, bool(some), bool(causal), bool(tanh),
                           (float)eps, true};
    const Shelf shelf{shape, count, first, (bfloat16*)halves, floats};
    layers_backward((const bfloat16*)dy, (const bfloat16*)hidden, (const Parameters<const float>*)parameters, shelf,
                    (bfloat16*)dhidden, (const Parameters<float>*)gradients, (const Draws*)draws, threads);
}
#endif

}  // extern "C"
