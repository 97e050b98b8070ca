// The counts of the chunks of a text, split at white space.
//
// The reference implementation is PythonChunkCounter in chunk_counter.py.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ULL;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ULL;
    return x ^ (x >> 32);
}

uint64_t hash_of(const char* text, size_t size) {
    uint64_t state = size * 0x9e3779b97f4a7c15ULL;
    for (; size >= 8; text += 8, size -= 8) {
        uint64_t word;
        std::memcpy(&word, text, 8);
        state = mix(state ^ word);
    }
    uint64_t rest = 0;
    std::memcpy(&rest, text, size);
    return mix(state ^ rest);
}

// An open-addressing table. The texts of all chunks are end to end in one buffer, in the order of first occurrence,
// each followed by a line end, so that they can be read without a copy.
class Chunks {
  public:
    int64_t add(const char* text, int64_t size) {
        const char* end = text + size;
        while (text < end) {
            while (text < end && is_space(*text)) ++text;
            const char* start = text;
            while (text < end && !is_space(*text)) ++text;
            if (text > start) count(start, static_cast<size_t>(text - start), 1);
        }
        return bytes();
    }

    // Adds chunks with their counts; each chunk ends with a line end, as in the texts of `read`.
    int64_t merge(const char* text, int64_t size, const int64_t* counts) {
        for_each(text, size, [&](const char* chunk, size_t length) { count(chunk, length, *counts++); });
        return bytes();
    }

    // Returns the most that `bytes` can be after the texts with these chunks have been added, in any order.
    int64_t bytes_with(const char* text, int64_t size) const {
        size_t number = chunks_.size(), characters = texts_.size(), slots = slots_.size();
        for_each(text, size, [&](const char* chunk, size_t length) {
            if (slots_.empty() || slots_[find(hash_of(chunk, length), chunk, length)] == empty) {
                ++number;
                characters += length + 1;
            }
        });
        while (2 * number >= slots) slots = std::max<size_t>(1024, slots * 2);
        return bytes_of(characters, number, slots);
    }

    int64_t bytes() const { return bytes_of(texts_.size(), chunks_.size(), slots_.size()); }

    // Reads the counts of at most `number` chunks from `first` on, and where their texts are. Returns their number.
    int64_t read(int64_t first, int64_t number, int64_t* counts, const char** text, int64_t* size) const {
        int64_t end = std::min(first + number, static_cast<int64_t>(chunks_.size()));
        if (first >= end) return 0;
        for (int64_t i = first; i < end; ++i) *counts++ = chunks_[static_cast<size_t>(i)].count;
        const Chunk &begin = chunks_[static_cast<size_t>(first)], &last = chunks_[static_cast<size_t>(end - 1)];
        *text = texts_.data() + begin.start;
        *size = static_cast<int64_t>(last.start + last.size + 1 - begin.start);
        return end - first;
    }

    void clear() { *this = Chunks(); }

  private:
    struct Chunk {
        uint64_t hash, start, size;
        int64_t count;
    };

    static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

    static int64_t bytes_of(size_t characters, size_t chunks, size_t slots) {
        return static_cast<int64_t>(characters + chunks * sizeof(Chunk) + slots * sizeof(uint32_t));
    }

    template <class Function>
    static void for_each(const char* text, int64_t size, Function function) {
        for (const char *end = text + size, *start = text; text < end; start = ++text) {
            while (*text != '\n') ++text;
            function(start, static_cast<size_t>(text - start));
        }
    }

    // The slot of a chunk: the empty one where it would be added if it is not there.
    uint64_t find(uint64_t hash, const char* text, size_t size) const {
        uint64_t mask = slots_.size() - 1, slot = hash & mask;
        for (; slots_[slot] != empty; slot = (slot + 1) & mask) {
            const Chunk& chunk = chunks_[slots_[slot]];
            if (chunk.hash == hash && chunk.size == size && !std::memcmp(texts_.data() + chunk.start, text, size)) break;
        }
        return slot;
    }

    void count(const char* text, size_t size, int64_t number) {
        if (2 * chunks_.size() >= slots_.size()) grow();
        uint64_t hash = hash_of(text, size), slot = find(hash, text, size);
        if (slots_[slot] != empty) {
            chunks_[slots_[slot]].count += number;
            return;
        }
        slots_[slot] = static_cast<uint32_t>(chunks_.size());
        chunks_.push_back({hash, texts_.size(), size, number});
        texts_.insert(texts_.end(), text, text + size);
        texts_.push_back('\n');
    }

    void grow() {
        slots_.assign(std::max<size_t>(1024, slots_.size() * 2), empty);
        uint64_t mask = slots_.size() - 1;
        for (size_t number = 0; number < chunks_.size(); ++number) {
            uint64_t slot = chunks_[number].hash & mask;
            while (slots_[slot] != empty) slot = (slot + 1) & mask;
            slots_[slot] = static_cast<uint32_t>(number);
        }
    }

    static constexpr uint32_t empty = UINT32_MAX;
    std::vector<uint32_t> slots_;
    std::vector<Chunk> chunks_;
    std::vector<char> texts_;
};

}  // namespace
