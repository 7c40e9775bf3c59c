// Records into batches of Arrow columns.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "column.h"
#include "framing.h"

namespace gridflow {

enum class RecordType { kExample, kSequenceExample, kByteArray };

// The names of features seen so far and their columns. Writers give the features of every record in the same order, so
// each name remembers which came after it, and the next is found by one comparison.
class Names {
public:
    struct Name {
        std::string text;
        uint64_t words[2], masks[2];
        int column;  // -1: nobody asked for it
        Name* next;

        bool is(const uint8_t* key, size_t size) const {
            if (size != text.size()) return false;
            const uint64_t difference =
                ((load_word(key) ^ words[0]) & masks[0]) | ((load_word(key + 8) ^ words[1]) & masks[1]);
            return difference == 0 && (size <= 16 || std::memcmp(key + 16, text.data() + 16, size - 16) == 0);
        }
    };

    Names();
    void add(const std::string& text, int column);
    // Finds a name; `previous` is the one before it. The 16 bytes from `key` on must be readable.
    Name* find(Name*& previous, const uint8_t* key, size_t size) {
        Name* guess = previous->next;
        if (!guess->is(key, size)) {
            guess = look_up(key, size);
            previous->next = guess;
        }
        previous = guess;
        return guess;
    }
    // Finds a name, or adds it with the given column.
    Name* find_or_add(Name*& previous, const uint8_t* key, size_t size, int column);
    Name* first() { return &before_first_; }

private:
    static constexpr size_t kMaxLearned = 4096;
    Name* look_up(const uint8_t* key, size_t size);
    Name* probe(const uint8_t* key, size_t size);
    Name* insert(const std::string& text, int column);
    size_t slot(const uint8_t* key, size_t size) const;
    void rehash();

    std::deque<Name> names_;
    std::vector<Name*> slots_;
    Name before_first_{}, stranger_{};
    size_t learned_ = 0;
};

// One feature that the next record is expected to have at a certain place: a short scalar, as usual writers encode it.
//
//     0a ENTRY 0a SIZE key… 12 FEATURE TAG LIST 0a VALUE value…       each length one byte
//
// Whether it is there is one comparison of all these bytes, since the lengths follow from each other.
class Expected {
public:
    // Up to so many bytes of a name can be compared.
    static constexpr size_t kMaxName = 20;

    // `column` is null where nobody asked for the feature.
    Expected(Names::Name* name, Column* column, Kind kind);

    // Appends the value to its column and returns the place behind the entry, or null if the entry is another one.
    const uint8_t* take(const uint8_t* at, const uint8_t* end) const {
        const uint8_t* tail = at + 4 + name_size_;
        const uint64_t entry = at[1], rest = entry - 2 - name_size_;
        if (rest - 7 > 0x7f - 7 || entry + 2 > static_cast<size_t>(end - at)) return nullptr;
        const uint64_t difference = ((load_word(at) ^ words_[0]) & masks_[0]) |
                                    ((load_word(at + 8) ^ words_[1]) & masks_[1]) |
                                    ((load_word(at + 16) ^ words_[2]) & masks_[2]) |
                                    ((load_word(tail) ^ (tail_ + rest * kLengths)) & tail_mask_);
        if (difference) return nullptr;
        const uint8_t* next = at + 2 + entry;
        if (column && !column->append_scalar(kind_, {tail + 6, next})) return nullptr;
        return next;
    }

    Names::Name* name;
    Column* column;

private:
    // FEATURE, LIST and VALUE in the word that begins with 12.
    static constexpr uint64_t kLengths = 1ull << 8 | 1ull << 24 | 1ull << 40;

    Kind kind_;
    size_t name_size_;
    uint64_t words_[3], masks_[3], tail_, tail_mask_;
};

class Decoder {
public:
    enum class State { kMore, kBatch, kEnd };

    Decoder(std::vector<ColumnSpec> columns, RecordType type, size_t batch_rows, size_t batch_bytes,
            uint64_t max_length, bool skip, bool check_crc);

    Framer& framer() { return framer_; }
    // Decodes what has been committed until a batch is full, more is needed, or the end is reached.
    State decode();
    // Hands over the rows decoded so far.
    ArrayParts take();
    size_t rows() const { return rows_; }

private:
    void decode_record(Span payload);
    void decode_features(Span features);
    const uint8_t* decode_expected(const uint8_t* at, const uint8_t* end, Names::Name*& previous);
    void expect(Names::Name* name, Column* column, Kind kind);
    __attribute__((always_inline)) bool decode_usual_entry(Span entry, Names::Name*& previous);
    void decode_entry(Span key, const std::vector<Span>& values, Names::Name*& previous);
    void decode_lists(Span lists);
    void begin_cell(Column& column);
    void note_misfit(const BadRecord& error);

    Framer framer_;
    RecordType type_;
    std::vector<Column> columns_;
    Names features_, lists_;
    Names::Name* previous_ = nullptr;
    std::vector<Expected> expected_;
    size_t surprises_ = 0;
    bool is_learning_ = false;
    FeatureView scratch_;
    Column* current_ = nullptr;
    std::vector<std::pair<Column*, BadRecord>> misfits_;
    size_t batch_rows_, batch_bytes_, row_bytes_ = 0;
    size_t rows_ = 0, bytes_ = 0, found_ = 0;
    int64_t stamp_ = 0;
    bool is_begun_ = false, is_pending_ = false;
    Span pending_{nullptr, nullptr};
};

}  // namespace gridflow
