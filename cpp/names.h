// The names of features and where their values go.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "wire.h"

namespace gridflow {

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
    void place(Name& name);

    std::deque<Name> names_;
    std::vector<Name*> slots_;
    Name before_first_{}, stranger_{};
    size_t learned_ = 0;
};

}  // namespace gridflow
