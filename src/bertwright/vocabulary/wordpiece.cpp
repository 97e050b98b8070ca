// Counting and learning for WordPiece vocabularies; twins in counting.py and learning.py.
//
// Nothing here depends on addresses, hash order or threads: the same input gives the same output on every machine.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

uint64_t mixed(uint64_t x) {
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
        state = mixed(state ^ word);
    }
    uint64_t rest = 0;
    std::memcpy(&rest, text, size);
    return mixed(state ^ rest);
}

// ---------------------------------------------------------------- chunks

// An open-addressing table; the texts of all chunks lie end to end in one buffer, in the order of first occurrence, each
// with a line end behind it, so that they can be read without a copy.
class Chunks {
  public:
    int64_t add(const char* text, int64_t size) {
        const char* end = text + size;
        while (text < end) {
            while (text < end && is_space(*text)) ++text;
            const char* start = text;
            while (text < end && !is_space(*text)) ++text;
            if (text > start) count(start, static_cast<size_t>(text - start));
        }
        return bytes();
    }

    int64_t bytes() const {
        return static_cast<int64_t>(texts_.size() + chunks_.size() * sizeof(Chunk) + slots_.size() * sizeof(uint32_t));
    }

    // The counts of at most `number` chunks from `first` on, and where their texts lie; returns how many there are.
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

    void count(const char* text, size_t size) {
        if (2 * chunks_.size() >= slots_.size()) grow();
        uint64_t hash = hash_of(text, size);
        uint64_t mask = slots_.size() - 1, slot = hash & mask;
        for (; slots_[slot] != empty; slot = (slot + 1) & mask) {
            Chunk& chunk = chunks_[slots_[slot]];
            if (chunk.hash == hash && chunk.size == size && !std::memcmp(texts_.data() + chunk.start, text, size)) {
                ++chunk.count;
                return;
            }
        }
        slots_[slot] = static_cast<uint32_t>(chunks_.size());
        chunks_.push_back({hash, texts_.size(), size, 1});
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

// ---------------------------------------------------------------- merges

struct Pair {
    uint32_t left = 0, right = 0;
    int64_t count = 0;
    double score = 0;
    int64_t place = -1;           // in the heap; -1: not a candidate
    uint64_t touched = 0;         // the last merge that changed this pair
    std::vector<uint32_t> words;  // where it occurs, or once did
};

struct Symbol {
    std::string text;
    int64_t count = 0;
    std::vector<uint32_t> pairs;  // that it is part of
};

// Merges the best pair of adjacent symbols, again and again. All frequencies are exact after every merge, and every pair
// whose score they change moves to its new place in the heap at once.
class Learner {
  public:
    Learner(bool likelihood, int64_t min_frequency) : likelihood_(likelihood), min_frequency_(min_frequency) {}

    void add_symbol(std::string text) {
        numbers_.emplace(text, static_cast<uint32_t>(symbols_.size()));
        symbols_.push_back({std::move(text), 0, {}});
    }

    void add_word(const int32_t* symbols, int64_t size, int64_t count) {
        words_.push_back({{symbols, symbols + size}, count});
        tally(static_cast<uint32_t>(words_.size() - 1), +1);
    }

    // All words are there: the first candidates. A falling floor begins at the most frequent pair.
    void start() {
        floor_ = min_frequency_;
        if (likelihood_)
            for (const Pair& pair : pairs_) floor_ = std::max(floor_, pair.count);
        for (uint32_t number = 0; number < pairs_.size(); ++number) settle(number);
        changed_.clear();
    }

    int64_t advance(int64_t wanted) {
        int64_t learned = 0;
        while (learned < wanted) {
            while (heap_.empty()) {
                if (floor_ <= min_frequency_) return learned;
                floor_ = std::max(min_frequency_, floor_ / 2);
                for (uint32_t number = 0; number < pairs_.size(); ++number) settle(number);
            }
            learned += merge(heap_.front());
        }
        return learned;
    }

    int64_t size() const { return static_cast<int64_t>(symbols_.size()); }
    const std::string& text(int64_t number) const { return symbols_[static_cast<size_t>(number)].text; }

  private:
    struct Word {
        std::vector<uint32_t> symbols;
        int64_t count;
    };

    // Counts a word's symbols and pairs in (sign +1) or out (sign -1).
    void tally(uint32_t number, int sign) {
        const Word& word = words_[number];
        int64_t count = sign * word.count;
        for (size_t i = 0; i < word.symbols.size(); ++i) {
            symbols_[word.symbols[i]].count += count;
            if (i == 0) continue;
            uint32_t found = pair_of(word.symbols[i - 1], word.symbols[i]);
            Pair& pair = pairs_[found];
            pair.count += count;
            if (sign > 0 && (pair.words.empty() || pair.words.back() != number)) pair.words.push_back(number);
            touch(found);
        }
    }

    uint32_t pair_of(uint32_t left, uint32_t right) {
        auto [place, is_new] = found_.try_emplace(uint64_t{left} << 32 | right, static_cast<uint32_t>(pairs_.size()));
        if (is_new) {
            pairs_.emplace_back();
            pairs_.back().left = left;
            pairs_.back().right = right;
            symbols_[left].pairs.push_back(place->second);
            if (right != left) symbols_[right].pairs.push_back(place->second);
        }
        return place->second;
    }

    void touch(uint32_t number) {
        if (pairs_[number].touched == merges_) return;
        pairs_[number].touched = merges_;
        changed_.push_back(number);
    }

    // Returns 1 if the merged piece is a new token, 0 if another pair has made the same one before.
    int64_t merge(uint32_t best) {
        ++merges_;
        changed_.clear();
        uint32_t left = pairs_[best].left, right = pairs_[best].right;
        std::string text = symbols_[left].text + symbols_[right].text.substr(2);  // without the ##
        auto [place, is_new] = numbers_.try_emplace(text, static_cast<uint32_t>(symbols_.size()));
        uint32_t merged = place->second;
        if (is_new) symbols_.push_back({text, 0, {}});
        std::vector<uint32_t> where = std::move(pairs_[best].words);
        pairs_[best].words.clear();
        for (uint32_t number : where) rewrite(number, left, right, merged);
        if (likelihood_)
            for (uint32_t symbol : {left, right, merged}) rescore(symbol);
        for (uint32_t number : changed_) settle(number);
        return is_new;
    }

    void rewrite(uint32_t number, uint32_t left, uint32_t right, uint32_t merged) {
        std::vector<uint32_t>& symbols = words_[number].symbols;
        auto is_match = [&](size_t i) { return i + 1 < symbols.size() && symbols[i] == left && symbols[i + 1] == right; };
        size_t first = 0;
        while (first < symbols.size() && !is_match(first)) ++first;
        if (first == symbols.size()) return;  // the word has changed since it was listed
        tally(number, -1);
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
        tally(number, +1);
    }

    // A symbol's frequency is part of the score of all its pairs.
    void rescore(uint32_t symbol) {
        for (uint32_t number : symbols_[symbol].pairs) touch(number);
    }

    void settle(uint32_t number) {
        Pair& pair = pairs_[number];
        if (pair.count < floor_) {
            if (pair.place >= 0) remove(number);
            return;
        }
        double parts = static_cast<double>(symbols_[pair.left].count) * static_cast<double>(symbols_[pair.right].count);
        double score = likelihood_ ? static_cast<double>(pair.count) / parts : static_cast<double>(pair.count);
        if (pair.place < 0) {
            pair.place = static_cast<int64_t>(heap_.size());
            heap_.push_back(number);
        } else if (score == pair.score) {
            return;
        }
        pair.score = score;
        sink(rise(pair.place));
    }

    void remove(uint32_t number) {
        int64_t place = pairs_[number].place;
        pairs_[number].place = -1;
        uint32_t last = heap_.back();
        heap_.pop_back();
        if (last == number) return;
        put(place, last);
        sink(rise(place));
    }

    // Ties go to the pair whose texts come first, so that the order never depends on hashing.
    bool is_better(uint32_t a, uint32_t b) const {
        const Pair &p = pairs_[a], &q = pairs_[b];
        if (p.score != q.score) return p.score > q.score;
        int order = symbols_[p.left].text.compare(symbols_[q.left].text);
        return order != 0 ? order < 0 : symbols_[p.right].text < symbols_[q.right].text;
    }

    void put(int64_t place, uint32_t number) {
        heap_[static_cast<size_t>(place)] = number;
        pairs_[number].place = place;
    }

    int64_t rise(int64_t place) {
        uint32_t number = heap_[static_cast<size_t>(place)];
        for (; place > 0; place = (place - 1) / 2) {
            uint32_t parent = heap_[static_cast<size_t>((place - 1) / 2)];
            if (!is_better(number, parent)) break;
            put(place, parent);
        }
        put(place, number);
        return place;
    }

    void sink(int64_t place) {
        uint32_t number = heap_[static_cast<size_t>(place)];
        int64_t size = static_cast<int64_t>(heap_.size());
        for (int64_t child; (child = 2 * place + 1) < size; place = child) {
            if (child + 1 < size && is_better(heap_[static_cast<size_t>(child + 1)], heap_[static_cast<size_t>(child)]))
                ++child;
            if (!is_better(heap_[static_cast<size_t>(child)], number)) break;
            put(place, heap_[static_cast<size_t>(child)]);
        }
        put(place, number);
    }

    const bool likelihood_;
    const int64_t min_frequency_;
    int64_t floor_ = 0;
    uint64_t merges_ = 1;
    std::vector<Symbol> symbols_;
    std::vector<Word> words_;
    std::vector<Pair> pairs_;
    std::vector<uint32_t> heap_, changed_;
    std::unordered_map<std::string, uint32_t> numbers_;
    std::unordered_map<uint64_t, uint32_t> found_;
};

}  // namespace

extern "C" {

void* chunks_new() { return new Chunks(); }
void chunks_free(void* table) { delete static_cast<Chunks*>(table); }
int64_t chunks_add(void* table, const char* text, int64_t size) { return static_cast<Chunks*>(table)->add(text, size); }
int64_t chunks_read(void* table, int64_t first, int64_t number, int64_t* counts, const char** text, int64_t* size) {
    return static_cast<Chunks*>(table)->read(first, number, counts, text, size);
}
void chunks_clear(void* table) { static_cast<Chunks*>(table)->clear(); }

// `texts`: the symbols, each ended by a line end. Word i is symbols[starts[i] .. starts[i + 1]), met counts[i] times.
void* learner_new(const char* texts, int64_t num_words, const int32_t* symbols, const int64_t* starts,
                  const int64_t* counts, int32_t likelihood, int64_t min_frequency) {
    Learner* learner = new Learner(likelihood != 0, min_frequency);
    for (const char* end; (end = std::strchr(texts, '\n')) != nullptr; texts = end + 1)
        learner->add_symbol(std::string(texts, end));
    for (int64_t i = 0; i < num_words; ++i)
        learner->add_word(symbols + starts[i], starts[i + 1] - starts[i], counts[i]);
    learner->start();
    return learner;
}
void learner_free(void* learner) { delete static_cast<Learner*>(learner); }
int64_t learner_advance(void* learner, int64_t wanted) { return static_cast<Learner*>(learner)->advance(wanted); }
int64_t learner_size(void* learner) { return static_cast<Learner*>(learner)->size(); }
const char* learner_text(void* learner, int64_t number) { return static_cast<Learner*>(learner)->text(number).c_str(); }

}
