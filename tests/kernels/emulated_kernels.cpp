// Calls functions of a native library for another processor, on behalf of emulated_kernels.py: writes the library's
// description of itself to standard output, reads requests from standard input, and writes the buffers as they are
// afterwards. The first argument is the library.
//
// Arguments: q integer, d double, p pointer into a buffer, b block of memory with pointers into buffers at some offsets.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <string>
#include <vector>

template <class T> static T read() {
    T value;
    if (fread(&value, sizeof value, 1, stdin) != 1) exit(0);
    return value;
}
static void read(void* to, size_t size) {
    if (size && fread(to, size, 1, stdin) != 1) exit(1);
}

// On AArch64 integers and pointers are passed in x0-x7 and then on the stack, doubles in d0-d7: one signature serves all.
#define I8(n) i[n], i[n + 1], i[n + 2], i[n + 3], i[n + 4], i[n + 5], i[n + 6], i[n + 7]
#define T8(T) T, T, T, T, T, T, T, T
using Function = void (*)(T8(int64_t), T8(int64_t), T8(int64_t), T8(int64_t), T8(double));

int main(int, char** arguments) {
    void* library = dlopen(arguments[1], RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    const char* description = ((const char* (*)())dlsym(library, "describe_interface"))();
    fwrite(description, strlen(description) + 1, 1, stdout);
    fflush(stdout);
    while (true) {
        struct Buffer { std::vector<char> memory; char* start; size_t size; };
        std::deque<Buffer> buffers(read<uint32_t>());
        for (auto& buffer : buffers) {
            buffer.size = read<uint64_t>();
            auto misalignment = read<uint64_t>();
            buffer.memory.resize(buffer.size + 128);
            buffer.start = (char*)(((uintptr_t)buffer.memory.data() + 63) / 64 * 64 + misalignment);
            read(buffer.start, buffer.size);
        }
        auto pointer = [&]() -> char* {
            auto buffer = read<int32_t>();
            auto offset = read<uint64_t>();
            return buffer < 0 ? nullptr : buffers[buffer].start + offset;
        };
        std::string name(read<uint32_t>(), ' ');
        read(&name[0], name.size());
        std::deque<std::vector<char>> blocks;
        std::vector<int64_t> i;
        std::vector<double> d;
        for (auto count = read<uint32_t>(); count > 0; count--) switch (read<char>()) {
            case 'q': i.push_back(read<int64_t>()); break;
            case 'd': d.push_back(read<double>()); break;
            case 'p': i.push_back((int64_t)pointer()); break;
            case 'b': {
                auto& block = blocks.emplace_back(read<uint32_t>());
                auto pointers = read<uint32_t>();
                read(block.data(), block.size());
                for (; pointers > 0; pointers--) {
                    auto offset = read<uint32_t>();
                    char* address = pointer();
                    memcpy(block.data() + offset, &address, sizeof address);
                }
                i.push_back((int64_t)block.data());
                break;
            }
        }
        auto function = (Function)dlsym(library, name.c_str());
        if (!function || i.size() > 32 || d.size() > 8) return fprintf(stderr, "cannot call %s\n", name.c_str()), 1;
        i.resize(32), d.resize(8);
        function(I8(0), I8(8), I8(16), I8(24), d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]);
        for (auto& buffer : buffers)
            if (buffer.size) fwrite(buffer.start, buffer.size, 1, stdout);
        fflush(stdout);
    }
}
