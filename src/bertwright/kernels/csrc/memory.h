// Scratch memory. It is allocated before parallel regions, because no exception may leave one.
#pragma once
#include "simd.h"
#include <cstdlib>
#include <new>

extern "C" int omp_get_thread_num(void);  // omp.h is not installed with every compiler

// An uninitialized array aligned to cache lines. Throws std::bad_alloc.
template <class T> class Buffer {
    T* data_;

public:
    explicit Buffer(int64_t count)
        : data_((T*)aligned_alloc(CACHE_LINE, round_up(std::max<int64_t>(count * sizeof(T), 1), CACHE_LINE))) {
        if (!data_) throw std::bad_alloc();
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { free(data_); }
    T* get() const { return data_; }
};

// `count` elements of T for each thread of a parallel region.
template <class T> class PerThread {
    int64_t stride;
    Buffer<T> memory;

public:
    PerThread(int64_t count, int64_t threads)
        : stride(round_up(count * sizeof(T), CACHE_LINE) / sizeof(T)), memory(stride * threads) {}
    T* mine() const { return memory.get() + stride * omp_get_thread_num(); }
};

// Hands out arrays of one block of memory, aligned to cache lines. Without a block it only counts `used` bytes.
struct Arena {
    void* block = nullptr;
    int64_t used = 0;
    template <class T> T* take(int64_t count) {
        T* array = (T*)((uintptr_t)block + used);
        used += round_up(count * sizeof(T), CACHE_LINE);
        return array;
    }
};
