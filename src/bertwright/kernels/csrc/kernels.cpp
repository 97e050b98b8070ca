// The C interface for ffi.py: pointers, integers as int64, other numbers as double, and last the number of threads.
// Pointers to elements of the tensors' dtype are void*; ffi.py checks the dtypes of all.
// Each function returns 0, or OUT_OF_MEMORY.
#include "adamw.h"
#include "cross_entropy.h"
#include "embedding.h"
#include "encoder.h"
#include "gelu.h"

constexpr int64_t OUT_OF_MEMORY = 1;

template <class F> static int64_t catching(F f) noexcept {
    try {
        f();
        return 0;
    } catch (const std::bad_alloc&) { return OUT_OF_MEMORY; }
}

// f(pointer to the tensors' element type).
template <class F> static int64_t with_dtype(int64_t dtype, F f) {
    return catching([&] {
        if (dtype == FLOAT32) f((float*)nullptr);
        else f((bfloat16*)nullptr);
    });
}
#define ELEMENT(t) std::remove_pointer_t<decltype(t)>

template <class T> static Lookups<T> lookups(const void* const* tables, const int64_t* const* ids) {
    return {{{(const T*)tables[0], ids[0]}, {(const T*)tables[1], ids[1]}, {(const T*)tables[2], ids[2]}}};
}

extern "C" {

int64_t bias_gelu(int64_t dtype, int64_t tanh, const void* x, const float* bias, void* y, int64_t rows, int64_t columns,
                  int64_t threads) {
    return with_dtype(dtype, [&](auto* t) {
        with_tanh(tanh, [&](auto tanh) {
            using T = ELEMENT(t);
            bias_gelu<T, tanh>((const T*)x, bias, (T*)y, rows, columns, threads);
        });
    });
}

int64_t bias_gelu_backward(int64_t dtype, int64_t tanh, const void* x, const float* bias, const void* dy, void* dx,
                           float* dbias, int64_t rows, int64_t columns, int64_t threads) {
    return with_dtype(dtype, [&](auto* t) {
        with_tanh(tanh, [&](auto tanh) {
            using T = ELEMENT(t);
            bias_gelu_backward<T, tanh>((const T*)x, bias, (const T*)dy, (T*)dx, dbias, rows, columns, threads);
        });
    });
}

int64_t dropout(int64_t dtype, const void* x, const MaskKey* key, void* y, int64_t rows, int64_t columns,
                int64_t threads) {
    return with_dtype(dtype, [&](auto* t) {
        using T = ELEMENT(t);
        dropout((const T*)x, *key, (T*)y, rows, columns, threads);
    });
}

// `z` and `moments` may both be null.
int64_t add_dropout_norm(int64_t dtype, const void* x, const float* bias, const void* residual, const float* weight,
                         const float* norm_bias, double eps, const MaskKey* key, void* z, float* moments, void* y,
                         int64_t rows, int64_t columns, int64_t threads) {
    return with_dtype(dtype, [&](auto* t) {
        using T = ELEMENT(t);
        add_dropout_norm((const T*)x, bias, (const T*)residual, weight, norm_bias, (float)eps, *key, (T*)z,
                         (Moments*)moments, (T*)y, rows, columns, threads);
    });
}

int64_t add_dropout_norm_backward(int64_t dtype, const void* z, const float* moments, const float* weight,
                                  const void* dy, const MaskKey* key, void* dx, void* dresidual, float* dsums,
                                  int64_t rows, int64_t columns, int64_t threads) {
    return with_dtype(dtype, [&](auto* t) {
        using T = ELEMENT(t);
        add_dropout_norm_backward((const T*)z, (const Moments*)moments, weight, (const T*)dy, *key, (T*)dx,
                                  (T*)dresidual, dsums, rows, columns, threads);
    });
}

// `tables` and `ids`: three pointers each, for word, position and token type.
int64_t embed_norm(int64_t dtype, const void* const* tables, const int64_t* const* ids, const float* weight,
                   const float* norm_bias, double eps, const MaskKey* key, float* moments, void* y, int64_t rows,
                   int64_t columns, int64_t threads) {
    return with_dtype(dtype, [&](auto* t) {
        using T = ELEMENT(t);
        embed_norm(lookups<T>(tables, ids), weight, norm_bias, (float)eps, *key, (Moments*)moments, (T*)y, rows,
                   columns, threads);
    });
}

int64_t embed_norm_backward(int64_t dtype, const void* const* tables, const int64_t* const* ids, const float* moments,
                            const float* weight, const void* dy, const MaskKey* key, float* dz, float* dsums,
                            int64_t rows, int64_t columns, int64_t threads) {
    return with_dtype(dtype, [&](auto* t) {
        using T = ELEMENT(t);
        embed_norm_backward(lookups<T>(tables, ids), (const Moments*)moments, weight, (const T*)dy, *key, dz, dsums,
                            rows, columns, threads);
    });
}

int64_t add_rows(const float* dz, const int64_t* ids, float* table, int64_t rows, int64_t columns, int64_t threads) {
    add_rows_in_order(dz, ids, table, rows, columns, threads);
    return 0;
}

// qkv: T 3 A D. `starts`: the first token of each of the sequences, and T.
int64_t attention(int64_t dtype, const void* qkv, const int32_t* starts, int64_t sequences, int64_t heads, int64_t size,
                  int64_t causal, const MaskKey* key, void* out, float* lse, int64_t threads) {
    return with_dtype(dtype, [&](auto* t) {
        using T = ELEMENT(t);
        attention(Attention<T>{(const T*)qkv, {starts, sequences}, {heads, size}, causal != 0, *key, threads}, (T*)out,
                  lse);
    });
}

int64_t attention_backward(int64_t dtype, const void* qkv, const void* out, const float* lse, const void* dout,
                           const int32_t* starts, int64_t sequences, int64_t heads, int64_t size, int64_t causal,
                           const MaskKey* key, void* dqkv, int64_t threads) {
    return with_dtype(dtype, [&](auto* t) {
        using T = ELEMENT(t);
        attention_backward(Attention<T>{(const T*)qkv, {starts, sequences}, {heads, size}, causal != 0, *key, threads},
                           (const T*)out, lse, (const T*)dout, (T*)dqkv);
    });
}

int64_t cross_entropy(int64_t dtype, void* logits, int64_t stride, const float* bias, const int64_t* labels,
                      double scale, float* losses, int64_t* correct, float* dbias, int64_t rows, int64_t columns,
                      int64_t threads) {
    return with_dtype(dtype, [&](auto* t) {
        using T = ELEMENT(t);
        cross_entropy((T*)logits, stride, bias, labels, (float)scale, losses, correct, dbias, rows, columns, threads);
    });
}

// `tensors` sizes, and as many pointers of each kind.
int64_t adamw(float* const* parameters, const float* const* gradients, float* const* exp_avg, float* const* exp_avg_sq,
              const int64_t* sizes, int64_t tensors, const double* step, int64_t threads) {
    return catching(
        [&] { adamw(parameters, gradients, exp_avg, exp_avg_sq, sizes, tensors, *(const AdamStep*)step, threads); });
}

int64_t adamw_rows(float* parameter, const float* gradient, const int64_t* gradient_rows, uint8_t* touched,
                   float* exp_avg, float* exp_avg_sq, const double* step, int64_t rows, int64_t columns,
                   int64_t threads) {
    return catching([&] {
        adamw_rows(parameter, gradient, gradient_rows, touched, exp_avg, exp_avg_sq, *(const AdamStep*)step, rows,
                   columns, threads);
    });
}

int64_t square_sum(const float* const* x, const int64_t* sizes, int64_t tensors, double* total, int64_t threads) {
    return catching([&] { *total = square_sum(x, sizes, tensors, threads); });
}

int64_t transpose(const bfloat16* x, int64_t x_stride, bfloat16* y, int64_t y_stride, int64_t rows, int64_t columns,
                  int64_t threads) {
    return catching([&] { transpose(x, x_stride, y, y_stride, nullptr, rows, columns, threads); });
}

#if HAS_BF16_ISA
const char* bf16_isa_name() { return bf16_isa.name; }

// `dtype` is the weight's; `bias` may be null.
int64_t linear_forward(int64_t dtype, const bfloat16* x, const void* weight, const float* bias, bfloat16* y,
                       int64_t rows, int64_t in, int64_t out, int64_t threads) {
    return with_dtype(dtype, [&](auto* t) {
        linear_forward(x, (const ELEMENT(t)*)weight, bias, y, nullptr, rows, in, out, threads);
    });
}

int64_t linear_backward(int64_t dtype, const bfloat16* dy, const bfloat16* x, const void* weight, bfloat16* dx,
                        float* dweight, float* dbias, int64_t rows, int64_t in, int64_t out, int64_t threads) {
    return with_dtype(dtype, [&](auto* t) {
        const Buffer<uint32_t> panels(dx ? panel_words(out, in) : 0);
        if (dx) pack_weight((const ELEMENT(t)*)weight, out, in, panels.get(), nullptr, threads);
        linear_backward(dy, x, panels.get(), dx, dweight, dbias, rows, in, out, threads);
    });
}

int64_t encoder_workspace_bytes(const EncoderArgs* args, int64_t* bytes, int64_t) {
    *bytes = ActivationArena{*args, nullptr}.offset(args->num_layers);
    return 0;
}

// `parameters`, and `gradients` which may be null: PARAMETER_NAMES of fused_encoder.py for each layer. `keys`: three
// for each layer.
int64_t encoder_forward(const EncoderArgs* args, const bfloat16* hidden, const float* const* parameters,
                        const MaskKey* keys, uint8_t* workspace, bfloat16* y, int64_t threads) {
    return catching([&] {
        encoder_forward(*args, hidden, (const LayerParameters<const float>*)parameters, (const LayerMaskKeys*)keys,
                        workspace, y, threads);
    });
}

int64_t encoder_backward(const EncoderArgs* args, const bfloat16* dy, const bfloat16* hidden,
                         const float* const* parameters, const MaskKey* keys, uint8_t* workspace, bfloat16* dhidden,
                         float* const* gradients, int64_t threads) {
    return catching([&] {
        encoder_backward(*args, dy, hidden, (const LayerParameters<const float>*)parameters, (const LayerMaskKeys*)keys,
                         workspace, dhidden, (const LayerParameters<float>*)gradients, threads);
    });
}
#endif

}  // extern "C"
