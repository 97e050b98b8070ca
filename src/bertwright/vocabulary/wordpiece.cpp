// Counting of words and learning of merges for WordPiece and byte-pair vocabularies.
//
// The reference implementations are PythonChunkCounter in chunk_counter.py and PythonMergeTrainer in merges.py.
//
// Nothing here depends on addresses, hash order or threads: the same input gives the same output on every machine.

#include "../kernels/csrc/out_of_memory.h"
#include "chunk_table.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

struct Pair {
    uint32_t left = 0, right = 0;
    int64_t count = 0;
    double score = 0;
    int64_t heap_index = -1;      // -1: not a candidate
    uint64_t touched = 0;         // the last merge that changed this pair
    std::vector<uint32_t> words;  // words in which the pair occurs or has occurred
};

struct Symbol {
    std::string text;
    int64_t count = 0;
    std::vector<uint32_t> pairs;  // pairs that contain the symbol
};

// Same order as RULES in merges.py.
enum Rule : int32_t { GAIN, BPE };

// Merges the best pair of adjacent symbols repeatedly. All frequencies are exact after every merge: pairs with a
// changed score move in the heap at once.
class Learner {
  public:
    // `mark`: number of bytes at the start of symbols inside a word, such as 2 for "##"; a merge drops them.
    Learner(Rule rule, int64_t min_frequency, size_t mark) : rule_(rule), min_frequency_(min_frequency), mark_(mark) {}

    void add_symbol(std::string text) {
        numbers_.emplace(text, static_cast<uint32_t>(symbols_.size()));
        symbols_.push_back({std::move(text), 0, {}});
    }

    void add_word(const int32_t* symbols, int64_t size, int64_t count) {
        words_.push_back({{symbols, symbols + size}, count});
        add_counts(static_cast<uint32_t>(words_.size() - 1), +1);
    }

    // Finds the first candidates, after all words were added.
    void start() {
        for (uint32_t number = 0; number < pairs_.size(); ++number) update_candidate(number);
        changed_.clear();
    }

    // Returns the number of symbols learned. Once memory has run out, a merge is incomplete: throws in every call.
    int64_t advance(int64_t wanted) {
        if (is_merging_) throw std::bad_alloc();
        is_merging_ = true;
        int64_t learned = learn(wanted);
        is_merging_ = false;
        return learned;
    }

    int64_t size() const { return static_cast<int64_t>(symbols_.size()); }
    const std::string& text(int64_t number) const { return symbols_[static_cast<size_t>(number)].text; }
    int64_t num_merges() const { return static_cast<int64_t>(merged_.size()); }
    // The left (side 0) or the right symbol of a merge, in the order of merging.
    int64_t part(int64_t merge, int32_t side) const {
        const auto& [left, right] = merged_[static_cast<size_t>(merge)];
        return side == 0 ? left : right;
    }

  private:
    struct Word {
        std::vector<uint32_t> symbols;
        int64_t count;
    };

    int64_t learn(int64_t wanted) {
        int64_t learned = 0;
        while (learned < wanted) {
            if (heap_.empty()) return learned;
            if (!refresh_top()) continue;
            if (rule_ == GAIN && pairs_[heap_.front()].score <= 0) return learned;
            learned += merge(heap_.front());
        }
        return learned;
    }

    // Adds (sign +1) or subtracts (sign -1) the symbols and pairs of a word.
    void add_counts(uint32_t number, int sign) {
        const Word& word = words_[number];
        int64_t count = sign * word.count;
        num_symbols_ += count * static_cast<int64_t>(word.symbols.size());
        for (size_t i = 0; i < word.symbols.size(); ++i) {
            symbols_[word.symbols[i]].count += count;
            if (i == 0) continue;
            uint32_t index = pair_of(word.symbols[i - 1], word.symbols[i]);
            Pair& pair = pairs_[index];
            pair.count += count;
            if (sign > 0 && (pair.words.empty() || pair.words.back() != number)) pair.words.push_back(number);
            touch(index);
        }
    }

    uint32_t pair_of(uint32_t left, uint32_t right) {
        uint64_t key = uint64_t{left} << 32 | right;
        auto [entry, is_new] = pair_numbers_.try_emplace(key, static_cast<uint32_t>(pairs_.size()));
        if (is_new) {
            pairs_.emplace_back();
            pairs_.back().left = left;
            pairs_.back().right = right;
            symbols_[left].pairs.push_back(entry->second);
            if (right != left) symbols_[right].pairs.push_back(entry->second);
        }
        return entry->second;
    }

    void touch(uint32_t number) {
        if (pairs_[number].touched == merges_) return;
        pairs_[number].touched = merges_;
        changed_.push_back(number);
    }

    // Returns 1 if the merged symbol is new, 0 if another pair has given the same one before.
    int64_t merge(uint32_t best) {
        ++merges_;
        changed_.clear();
        uint32_t left = pairs_[best].left, right = pairs_[best].right;
        std::string text = symbols_[left].text + symbols_[right].text.substr(mark_);
        auto [entry, is_new] = numbers_.try_emplace(text, static_cast<uint32_t>(symbols_.size()));
        uint32_t merged = entry->second;
        merged_.emplace_back(left, right);
        if (is_new) symbols_.push_back({text, 0, {}});
        std::vector<uint32_t> words = std::move(pairs_[best].words);
        pairs_[best].words.clear();
        for (uint32_t number : words) rewrite(number, left, right, merged);
        if (rule_ != BPE)  // the score of a pair depends on the frequencies of its symbols
            for (uint32_t symbol : {left, right, merged})
                for (uint32_t number : symbols_[symbol].pairs) touch(number);
        for (uint32_t number : changed_) update_candidate(number);
        return is_new;
    }

    void rewrite(uint32_t number, uint32_t left, uint32_t right, uint32_t merged) {
        std::vector<uint32_t>& symbols = words_[number].symbols;
        auto is_match = [&](size_t i) {
            return i + 1 < symbols.size() && symbols[i] == left && symbols[i + 1] == right;
        };
        size_t first = 0;
        while (first < symbols.size() && !is_match(first)) ++first;
        if (first == symbols.size()) return;  // the word has changed since it was listed
        add_counts(number, -1);
        size_t end = first;
        for (size_t i = first; i < symbols.size(); ++i) {
            if (is_match(i)) {
                symbols[end++] = merged;
                ++i;
            } else {
                symbols[end++] = symbols[i];
            }
        }
        symbols.resize(end);
        add_counts(number, +1);
    }

    double score_of(const Pair& pair) const {
        double count = static_cast<double>(pair.count);
        double left = static_cast<double>(symbols_[pair.left].count);
        double right = static_cast<double>(symbols_[pair.right].count);
        if (rule_ == BPE) return count;
        // long double: double's log has a symbol version of glibc 2.29, which older systems lack
        const long double lift = count * static_cast<double>(num_symbols_) / (left * right);
        return count * static_cast<double>(std::log(lift));
    }

    // Returns true if the score of the first pair of the heap is current; otherwise updates it and moves the pair.
    // Gains depend on the number of symbols, which only falls: the scores in the heap are upper bounds.
    bool refresh_top() {
        if (rule_ != GAIN) return true;
        Pair& pair = pairs_[heap_.front()];
        double score = score_of(pair);
        if (score == pair.score) return true;
        pair.score = score;
        sink(0);
        return false;
    }

    // Adds a pair to the heap, moves it there or removes it, as its count and score require.
    void update_candidate(uint32_t number) {
        Pair& pair = pairs_[number];
        if (pair.count < min_frequency_) {
            if (pair.heap_index >= 0) remove(number);
            return;
        }
        double score = score_of(pair);
        if (pair.heap_index < 0) {
            pair.heap_index = static_cast<int64_t>(heap_.size());
            heap_.push_back(number);
        } else if (score == pair.score) {
            return;
        }
        pair.score = score;
        sink(rise(pair.heap_index));
    }

    void remove(uint32_t number) {
        int64_t index = pairs_[number].heap_index;
        pairs_[number].heap_index = -1;
        uint32_t last = heap_.back();
        heap_.pop_back();
        if (last == number) return;
        put(index, last);
        sink(rise(index));
    }

    // Of pairs with equal scores the first in alphabetical order is better: the order must not depend on hashing.
    bool is_better(uint32_t a, uint32_t b) const {
        const Pair &p = pairs_[a], &q = pairs_[b];
        if (p.score != q.score) return p.score > q.score;
        int order = symbols_[p.left].text.compare(symbols_[q.left].text);
        return order != 0 ? order < 0 : symbols_[p.right].text < symbols_[q.right].text;
    }

    void put(int64_t index, uint32_t number) {
        heap_[static_cast<size_t>(index)] = number;
        pairs_[number].heap_index = index;
    }

    int64_t rise(int64_t index) {
        uint32_t number = heap_[static_cast<size_t>(index)];
        for (; index > 0; index = (index - 1) / 2) {
            uint32_t parent = heap_[static_cast<size_t>((index - 1) / 2)];
            if (!is_better(number, parent)) break;
            put(index, parent);
        }
        put(index, number);
        return index;
    }

    void sink(int64_t index) {
        uint32_t number = heap_[static_cast<size_t>(index)];
        int64_t size = static_cast<int64_t>(heap_.size());
        for (int64_t child; (child = 2 * index + 1) < size; index = child) {
            if (child + 1 < size && is_better(heap_[static_cast<size_t>(child + 1)], heap_[static_cast<size_t>(child)]))
                ++child;
            if (!is_better(heap_[static_cast<size_t>(child)], number)) break;
            put(index, heap_[static_cast<size_t>(child)]);
        }
        put(index, number);
    }

    const Rule rule_;
    const int64_t min_frequency_;
    const size_t mark_;
    bool is_merging_ = false;
    int64_t num_symbols_ = 0;
    uint64_t merges_ = 1;
    std::vector<Symbol> symbols_;
    std::vector<Word> words_;
    std::vector<Pair> pairs_;
    std::vector<uint32_t> heap_, changed_;
    std::vector<std::pair<uint32_t, uint32_t>> merged_;
    std::unordered_map<std::string, uint32_t> numbers_;  // text to symbol
    std::unordered_map<uint64_t, uint32_t> pair_numbers_;
};

}  // namespace

extern "C" {

// Without memory, `chunks_new` and `learner_new` return null, `chunks_add`, `chunks_merge` and `learner_advance` -1.

void* chunks_new() { return new (std::nothrow) Chunks(); }
void chunks_free(void* table) { delete static_cast<Chunks*>(table); }
int64_t chunks_add(void* table, const char* text, int64_t size) {
    Chunks* chunks = static_cast<Chunks*>(table);
    const int64_t bytes = catching(int64_t{-1}, [&] { return chunks->add(text, size); });
    if (bytes < 0) chunks->clear();  // the last chunk is incomplete
    return bytes;
}
int64_t chunks_merge(void* table, const char* text, int64_t size, const int64_t* counts) {
    Chunks* chunks = static_cast<Chunks*>(table);
    const int64_t bytes = catching(int64_t{-1}, [&] { return chunks->merge(text, size, counts); });
    if (bytes < 0) chunks->clear();  // the last chunk is incomplete
    return bytes;
}
int64_t chunks_bytes_with(void* table, const char* text, int64_t size) {
    return static_cast<Chunks*>(table)->bytes_with(text, size);
}
int64_t chunks_read(void* table, int64_t first, int64_t number, int64_t* counts, const char** text, int64_t* size) {
    return static_cast<Chunks*>(table)->read(first, number, counts, text, size);
}
void chunks_clear(void* table) { static_cast<Chunks*>(table)->clear(); }

// `texts`: the symbols, each followed by a line end. Word i is symbols[starts[i] .. starts[i + 1]), counts[i] times.
void* learner_new(const char* texts, int64_t num_words, const int32_t* symbols, const int64_t* starts,
                  const int64_t* counts, int32_t rule, int64_t min_frequency, int32_t mark) {
    return catching(static_cast<void*>(nullptr), [&]() -> void* {
        auto learner = std::make_unique<Learner>(static_cast<Rule>(rule), min_frequency, static_cast<size_t>(mark));
        for (const char* end; (end = std::strchr(texts, '\n')) != nullptr; texts = end + 1)
            learner->add_symbol(std::string(texts, end));
        for (int64_t i = 0; i < num_words; ++i)
            learner->add_word(symbols + starts[i], starts[i + 1] - starts[i], counts[i]);
        learner->start();
        return learner.release();
    });
}
void learner_free(void* learner) { delete static_cast<Learner*>(learner); }
int64_t learner_advance(void* learner, int64_t wanted) {
    return catching(int64_t{-1}, [&] { return static_cast<Learner*>(learner)->advance(wanted); });
}
int64_t learner_size(void* learner) { return static_cast<Learner*>(learner)->size(); }
int64_t learner_merges(void* learner) { return static_cast<Learner*>(learner)->num_merges(); }
int64_t learner_part(void* learner, int64_t merge, int32_t side) {
    return static_cast<Learner*>(learner)->part(merge, side);
}
const char* learner_text(void* learner, int64_t number) { return static_cast<Learner*>(learner)->text(number).c_str(); }

}
