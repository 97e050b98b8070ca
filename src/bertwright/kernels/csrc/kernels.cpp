// The C interface for ffi.py: pointers, integers as int64, other numbers as double, and last the number of threads.
// `describe_interface` lists all functions. Pointers to elements of the tensors' dtype are void*; ffi.py checks the dtypes.
// Each function returns 0, or OUT_OF_MEMORY.
#include "adamw.h"
#include "cross_entropy.h"
#include "embedding.h"
#include "encoder.h"
#include "encoder_args.h"
#include "gelu.h"
#include "int8_encoder.h"
#include "lstm.h"
#include "out_of_memory.h"
#include "rotary.h"
#include "word_vectors.h"

constexpr int64_t OUT_OF_MEMORY = 1;

template <class F> static int64_t status_of(F f) noexcept {
    return catching(OUT_OF_MEMORY, [&] { return f(), int64_t{0}; });
}

// f(number of the tensors' element type).
template <class F> static int64_t with_dtype(int64_t dtype, F f) {
    return status_of([&] {
        if (dtype == FLOAT32) f(float{});
        else f(bfloat16{});
    });
}

template <class T> static Lookups<T> lookups(const void* const* tables, const int64_t* const* ids) {
    return {{{(const T*)tables[0], ids[0]}, {(const T*)tables[1], ids[1]}, {(const T*)tables[2], ids[2]}}};
}

namespace c_api {
extern "C" {

int64_t bias_gelu(int64_t dtype, int64_t tanh, const void* x, const float* bias, void* y, int64_t rows, int64_t columns,
                  int64_t threads) {
    return with_dtype(dtype, [&](auto number) {
        with_tanh(tanh, [&](auto tanh) {
            using T = decltype(number);
            ::bias_gelu<T, tanh>((const T*)x, bias, (T*)y, rows, columns, threads);
        });
    });
}

int64_t bias_gelu_backward(int64_t dtype, int64_t tanh, const void* x, const float* bias, const void* dy, void* dx,
                           float* dbias, int64_t rows, int64_t columns, int64_t threads) {
    return with_dtype(dtype, [&](auto number) {
        with_tanh(tanh, [&](auto tanh) {
            using T = decltype(number);
            ::bias_gelu_backward<T, tanh>((const T*)x, bias, (const T*)dy, (T*)dx, dbias, rows, columns, threads);
        });
    });
}

// x and y: T 3 A D; cosines and sines: positions × D / 2; `direction`: 1, or -1 to turn back.
int64_t rotate(int64_t dtype, const void* x, const float* cosines, const float* sines, const int64_t* positions,
               double direction, void* y, int64_t tokens, int64_t heads, int64_t size, int64_t threads) {
    return with_dtype(dtype, [&](auto number) {
        using T = decltype(number);
        ::rotate((const T*)x, cosines, sines, positions, (float)direction, (T*)y, tokens, heads, size, threads);
    });
}

int64_t dropout(int64_t dtype, const void* x, const MaskKey* key, void* y, int64_t rows, int64_t columns,
                int64_t threads) {
    return with_dtype(dtype, [&](auto number) {
        using T = decltype(number);
        ::dropout((const T*)x, *key, (T*)y, rows, columns, threads);
    });
}

// `z` and `moments` may both be null.
int64_t add_dropout_norm(int64_t dtype, const void* x, const float* bias, const void* residual, const float* weight,
                         const float* norm_bias, double eps, const MaskKey* key, void* z, Moments* moments, void* y,
                         int64_t rows, int64_t columns, int64_t threads) {
    return with_dtype(dtype, [&](auto number) {
        using T = decltype(number);
        ::add_dropout_norm((const T*)x, bias, (const T*)residual, weight, norm_bias, (float)eps, *key, (T*)z,
                         moments, (T*)y, rows, columns, threads);
    });
}

int64_t add_dropout_norm_backward(int64_t dtype, const void* z, const Moments* moments, const float* weight,
                                  const void* dy, const MaskKey* key, void* dx, void* dresidual, float* dsums,
                                  int64_t rows, int64_t columns, int64_t threads) {
    return with_dtype(dtype, [&](auto number) {
        using T = decltype(number);
        ::add_dropout_norm_backward((const T*)z, moments, weight, (const T*)dy, *key, (T*)dx,
                                  (T*)dresidual, dsums, rows, columns, threads);
    });
}

// `tables` and `ids`: three pointers each, for word, position and token type.
int64_t embed_norm(int64_t dtype, const void* const* tables, const int64_t* const* ids, const float* weight,
                   const float* norm_bias, double eps, const MaskKey* key, Moments* moments, void* y, int64_t rows,
                   int64_t columns, int64_t threads) {
    return with_dtype(dtype, [&](auto number) {
        using T = decltype(number);
        ::embed_norm(lookups<T>(tables, ids), weight, norm_bias, (float)eps, *key, moments, (T*)y, rows,
                   columns, threads);
    });
}

int64_t embed_norm_backward(int64_t dtype, const void* const* tables, const int64_t* const* ids, const Moments* moments,
                            const float* weight, const void* dy, const MaskKey* key, float* dz, float* dsums,
                            int64_t rows, int64_t columns, int64_t threads) {
    return with_dtype(dtype, [&](auto number) {
        using T = decltype(number);
        ::embed_norm_backward(lookups<T>(tables, ids), moments, weight, (const T*)dy, *key, dz, dsums,
                            rows, columns, threads);
    });
}

int64_t add_rows(const float* dz, const int64_t* ids, float* table, int64_t rows, int64_t columns, int64_t threads) {
    add_rows_in_order(dz, ids, table, rows, columns, threads);
    return 0;
}

// out: Tq A D; lse: Tq A float32.
int64_t attention(int64_t dtype, const AttentionArgs* args, const MaskKey* key, void* out, float* lse,
                  int64_t threads) {
    return with_dtype(dtype, [&](auto number) { ::attention(*args, *key, (decltype(number)*)out, lse, threads); });
}

// dq and dkv have the layout of q and kv; dbias: B A (2 reach + 1), all 0, or null.
int64_t attention_backward(int64_t dtype, const AttentionArgs* args, const MaskKey* key, const void* out,
                           const float* lse, const void* dout, void* dq, void* dkv, float* dbias, int64_t threads) {
    return with_dtype(dtype, [&](auto number) {
        using T = decltype(number);
        const Backward<T> pass{(const T*)out, lse, (const T*)dout, (T*)dq, (T*)dkv, dbias};
        ::attention_backward(*args, *key, pass, threads);
    });
}

int64_t cross_entropy(int64_t dtype, void* logits, int64_t stride, const float* bias, const int64_t* labels,
                      double scale, float* losses, int64_t* correct, float* dbias, int64_t rows, int64_t columns,
                      int64_t threads) {
    return with_dtype(dtype, [&](auto number) {
        using T = decltype(number);
        ::cross_entropy((T*)logits, stride, bias, labels, (float)scale, losses, correct, dbias, rows, columns, threads);
    });
}

// `tensors` sizes, and as many pointers of each kind.
int64_t adamw(float* const* parameters, const float* const* gradients, float* const* exp_avg, float* const* exp_avg_sq,
              const int64_t* sizes, int64_t tensors, const AdamStep* step, int64_t threads) {
    return status_of(
        [&] { ::adamw(parameters, gradients, exp_avg, exp_avg_sq, sizes, tensors, *step, threads); });
}

int64_t adamw_rows(float* parameter, const float* gradient, const int64_t* gradient_rows, uint8_t* touched,
                   float* exp_avg, float* exp_avg_sq, const AdamStep* step, int64_t rows, int64_t columns,
                   int64_t threads) {
    return status_of([&] {
        ::adamw_rows(parameter, gradient, gradient_rows, touched, exp_avg, exp_avg_sq, *step, rows,
                   columns, threads);
    });
}

int64_t square_sum(const float* const* x, const int64_t* sizes, int64_t tensors, double* total, int64_t threads) {
    return status_of([&] { *total = ::square_sum(x, sizes, tensors, threads); });
}

int64_t transpose(const bfloat16* x, int64_t x_stride, bfloat16* y, int64_t y_stride, int64_t rows, int64_t columns,
                  int64_t threads) {
    return status_of([&] { ::transpose(x, x_stride, y, y_stride, nullptr, rows, columns, threads); });
}

int64_t skip_gram(const SkipGramArgs* args, int64_t threads) {
    return status_of([&] { ::skip_gram(*args, threads); });
}

// `loss`: one number per thread.
int64_t glove(const GloveArgs* args, double* loss, int64_t threads) {
    return status_of([&] { ::glove(*args, loss, threads); });
}

#if HAS_BF16_ISA
const char* bf16_isa_name() { return bf16_isa().name; }

// `dtype` is the weight's; `bias` may be null.
int64_t linear_forward(int64_t dtype, const bfloat16* x, const void* weight, const float* bias, bfloat16* y,
                       int64_t rows, int64_t in, int64_t out, int64_t threads) {
    return with_dtype(dtype, [&](auto number) {
        ::linear_forward(x, (const decltype(number)*)weight, bias, y, nullptr, rows, in, out, threads);
    });
}

int64_t linear_backward(int64_t dtype, const bfloat16* dy, const bfloat16* x, const void* weight, bfloat16* dx,
                        float* dweight, float* dbias, int64_t rows, int64_t in, int64_t out, int64_t threads) {
    return with_dtype(dtype, [&](auto number) {
        const Buffer<uint32_t> panels(dx ? panel_words(out, in) : 0);
        if (dx) pack_weight((const decltype(number)*)weight, out, in, panels.get(), nullptr, threads);
        ::linear_backward(dy, x, panels.get(), dx, dweight, dbias, rows, in, out, threads);
    });
}

int64_t encoder_workspace_bytes(const EncoderArgs* args, int64_t* bytes, int64_t) {
    *bytes = Layers{*args, nullptr, nullptr, nullptr, 1}.offset(args->num_layers);
    return 0;
}

// The pointers in `gradients` may be null. `keys`: three for each layer.
int64_t encoder_forward(const EncoderArgs* args, const bfloat16* hidden,
                        const LayerParameters<const float>* parameters, const MaskKey* keys, uint8_t* workspace,
                        bfloat16* y, int64_t threads) {
    return status_of([&] { ::encoder_forward(Layers{*args, parameters, keys, workspace, threads}, hidden, y); });
}

int64_t encoder_backward(const EncoderArgs* args, const bfloat16* dy, const bfloat16* hidden,
                         const LayerParameters<const float>* parameters, const MaskKey* keys, uint8_t* workspace,
                         bfloat16* dhidden, const LayerParameters<float>* gradients, int64_t threads) {
    return status_of([&] {
        ::encoder_backward(Layers{*args, parameters, keys, workspace, threads}, dy, hidden, dhidden, gradients);
    });
}

int64_t lstm_forward(const LstmArgs* args, const LstmForward* tensors, int64_t threads) {
    return status_of([&] { ::lstm_forward(*args, *tensors, threads); });
}

int64_t lstm_backward(const LstmArgs* args, const LstmBackward* tensors, int64_t threads) {
    return status_of([&] { ::lstm_backward(*args, *tensors, threads); });
}
#endif

#if HAS_INT8
const char* int8_isa_name() { return has_tiles() ? "amx_int8" : INT8_ISA; }

int64_t int8_panel_bytes(int64_t depth, int64_t columns, int64_t* bytes, int64_t) {
    *bytes = panel_bytes(depth, columns);
    return 0;
}

int64_t int8_pack(const int8_t* weight, int8_t* panels, int64_t depth, int64_t columns, int64_t) {
    pack_int8(weight, panels, depth, columns);
    return 0;
}

// `activation`: a number of `enum Activation`.
int64_t int8_linear(const float* x, const Int8Layer* layer, int64_t activation, float* y, int64_t rows,
                    int64_t threads) {
    return status_of([&] { ::int8_linear(x, *layer, activation, y, rows, threads); });
}

int64_t int8_encoder(const EncoderArgs* args, const Int8Layer* layers, const float* const* norms,
                     const float* hidden, float* y, int64_t threads) {
    return status_of([&] { ::int8_encoder(*args, layers, norms, hidden, y, threads); });
}
#endif

}  // extern "C"
}  // namespace c_api

NAME_TYPE(bfloat16)
NAME_TYPE(Moments)
NAME_TYPE(MaskKey)
NAME_TYPE(AdamStep)
NAME_TYPE(AttentionArgs)
NAME_TYPE(EncoderArgs)
NAME_TYPE(SkipGramArgs)
NAME_TYPE(GloveArgs)
#if HAS_INT8
NAME_TYPE(Int8Layer)
#endif
#define FUNCTION(name) describe_function(#name, c_api::name)
#if HAS_BF16_ISA
NAME_TYPE(LstmArgs)
NAME_TYPE(LstmForward)
NAME_TYPE(LstmBackward)
template <class P> struct TypeName<LayerParameters<P>> {
    static std::string get() { return "LayerParameters"; }
};
using P = float;  // elements of the LayerParameters that are described
#endif

// The description of all functions above and of the structures that they take.
extern "C" const char* describe_interface() {
    static const std::string text =
        DESCRIBE_STRUCTURE(MaskKey, MASK_KEY) + DESCRIBE_STRUCTURE(AdamStep, ADAM_STEP) +
        DESCRIBE_STRUCTURE(AttentionArgs, ATTENTION_ARGS) + DESCRIBE_STRUCTURE(SkipGramArgs, SKIP_GRAM_ARGS) +
        DESCRIBE_STRUCTURE(GloveArgs, GLOVE_ARGS) + DESCRIBE_STRUCTURE(EncoderArgs, ENCODER_ARGS) +
        FUNCTION(skip_gram) + FUNCTION(glove) + FUNCTION(bias_gelu) + FUNCTION(bias_gelu_backward) + FUNCTION(rotate) +
        FUNCTION(dropout) + FUNCTION(add_dropout_norm) + FUNCTION(add_dropout_norm_backward) + FUNCTION(embed_norm) +
        FUNCTION(embed_norm_backward) + FUNCTION(add_rows) + FUNCTION(attention) + FUNCTION(attention_backward) +
        FUNCTION(cross_entropy) + FUNCTION(adamw) + FUNCTION(adamw_rows) + FUNCTION(square_sum) + FUNCTION(transpose)
#if HAS_BF16_ISA
        + DESCRIBE_STRUCTURE(LayerParameters<P>, LAYER_PARAMETERS) +
        FUNCTION(linear_forward) + FUNCTION(linear_backward) + FUNCTION(encoder_workspace_bytes) +
        FUNCTION(encoder_forward) + FUNCTION(encoder_backward) + DESCRIBE_STRUCTURE(LstmArgs, LSTM_ARGS) +
        DESCRIBE_STRUCTURE(LstmForward, LSTM_FORWARD) + DESCRIBE_STRUCTURE(LstmBackward, LSTM_BACKWARD) +
        FUNCTION(lstm_forward) + FUNCTION(lstm_backward)
#endif
#if HAS_INT8
        + DESCRIBE_STRUCTURE(Int8Layer, INT8_LAYER) +
        FUNCTION(int8_panel_bytes) + FUNCTION(int8_pack) + FUNCTION(int8_linear) + FUNCTION(int8_encoder)
#endif
        ;
    return text.c_str();
}
