// Exceptions of allocations, which must not leave a C function.
#pragma once
#include <new>

// Returns what f does, or `failed` if memory runs out.
template <class F, class T> static T catching(T failed, F f) noexcept {
    try {
        return f();
    } catch (const std::bad_alloc&) { return failed; }
}
