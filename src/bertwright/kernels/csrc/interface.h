// A description of the C interface, from which ffi.py makes its calls: names of structures, fields, functions and types.
#pragma once
#include <cstdint>
#include <string>
#include <type_traits>

// The name of a type; pointers have a "*" at the end, const is left out.
template <class T> struct TypeName;
#define NAME_TYPE(type)                                    \
    template <> struct TypeName<type> {                    \
        static std::string get() { return #type; }         \
    };
template <class T> struct TypeName<const T> : TypeName<T> {};
template <class T> struct TypeName<T*> {
    static std::string get() { return TypeName<T>::get() + "*"; }
};
NAME_TYPE(void)
NAME_TYPE(float)
NAME_TYPE(double)
NAME_TYPE(int8_t)
NAME_TYPE(uint8_t)
NAME_TYPE(int32_t)
NAME_TYPE(uint32_t)
NAME_TYPE(int64_t)

// A structure that Python fills is defined by the list of its fields: a macro FIELDS(X) with X(type, name) for each.
#define DECLARE_FIELD(type, name) type name;
#define DESCRIBE_FIELD(type, name) +" " + TypeName<type>::get() + " " #name
#define DESCRIBE_STRUCTURE(type, FIELDS) \
    "struct " + TypeName<type>::get() + " " + std::to_string(sizeof(type)) FIELDS(DESCRIBE_FIELD) + "\n"

template <class... Arguments> std::string describe_function(const char* name, int64_t (*)(Arguments...)) {
    return (std::string(name) + ... + (" " + TypeName<Arguments>::get())) + "\n";
}
