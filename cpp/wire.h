// The wire format of protocol buffers, as far as Example and SequenceExample need it.
//
//     Example          1: Features                        Features      1: map<string, Feature>
//     SequenceExample  1: Features (context)              FeatureLists  1: map<string, FeatureList>
//                      2: FeatureLists                    FeatureList   1: repeated Feature
//     Feature          1: BytesList  2: FloatList  3: Int64List (one of them, the last counts; 1: repeated value)
//
// Rules of protobuf that every reader has to follow: a message given twice is merged, of equal keys the last entry
// counts, numbers come packed or not, unknown fields (groups too) are passed over.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "error.h"
#include "framing.h"

namespace gridflow {

[[noreturn]] inline void bad_message(const char* what) { throw BadRecord{"message", what}; }

inline uint64_t load_word(const uint8_t* at) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    return word;
}

// Puts the seven low bits of eight bytes together.
inline uint64_t join_varint(uint64_t word) {
    word = ((word & 0x7f007f007f007f00ull) >> 1) | (word & 0x007f007f007f007full);
    word = ((word & 0x3fff00003fff0000ull) >> 2) | (word & 0x00003fff00003fffull);
    return ((word & 0x0fffffff00000000ull) >> 4) | (word & 0x000000000fffffffull);
}

// At `at` eight bytes must be readable, beyond `end` too: all spans lie in a Framer's buffer, which has slack.
inline bool read_varint(const uint8_t*& at, const uint8_t* end, uint64_t& value) {
    if (at >= end) return false;
    uint64_t word = load_word(at);
    if (!(word & 0x80)) {
        value = word & 0x7f;
        ++at;
        return true;
    }
    const uint64_t stops = ~word & 0x8080808080808080ull;
    if (stops) {
        const auto size = static_cast<size_t>(__builtin_ctzll(stops) + 1) / 8;
        if (size > static_cast<size_t>(end - at)) return false;
        // Only the bytes up to the one that stops count.
        value = join_varint(word & (stops ^ (stops - 1)));
        at += size;
        return true;
    }
    uint64_t result = 0;
    for (int shift = 0; shift < 70 && at < end; shift += 7) {
        const uint64_t byte = *at++;
        result |= (byte & 0x7f) << (shift < 63 ? shift : 63);
        if (byte < 0x80) {
            value = result;
            return true;
        }
    }
    return false;
}

enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kDelimited = 2, kGroup = 3, kEndGroup = 4, kFixed32 = 5 };

struct Field {
    uint32_t number;
    uint32_t wire;
    uint64_t value;  // of a varint
    Span bytes;      // of a delimited or fixed field

    bool is(uint32_t wanted_number, uint32_t wanted_wire) const {
        return number == wanted_number && wire == wanted_wire;
    }
};

// Takes the next field from the front of a message; false at its end, BadRecord if it is not well formed.
bool read_field(Span& message, Field& field);

bool is_utf8(Span bytes);

// Like is_utf8, and fast for ASCII; up to seven bytes behind the span must be readable.
inline bool is_text(Span bytes) {
    uint64_t high = 0;
    const size_t size = bytes.size();
    size_t at = 0;
    for (; at + 8 <= size; at += 8) high |= load_word(bytes.begin + at);
    if (at < size) high |= load_word(bytes.begin + at) << (8 * (8 - (size - at)));
    return !(high & 0x8080808080808080ull) || is_utf8(bytes);
}

enum class Kind : uint8_t { kNone, kBytes, kFloat, kInt64 };

// A Feature: the parts of its list, in order. More than one only if a writer gave it in parts.
struct FeatureView {
    Kind kind = Kind::kNone;
    std::vector<Span> parts;

    void clear() {
        kind = Kind::kNone;
        parts.clear();
    }
    // Merges a Feature's wire bytes into this.
    void merge(Span feature);
    size_t count() const;
};

// An entry of Features as all usual writers make it: 0a ENTRY 0a SIZE key… 12 FEATURE feature…, its name of less than
// 128 bytes. The feature in turn has one list: TAG LIST values….
struct UsualEntry {
    Span key, feature;
};
struct UsualList {
    Kind kind;
    Span values;
};

// Reads the entry within its length; false if it is another one.
inline bool read_usual(Span entry, UsualEntry& usual) {
    const uint8_t* at = entry.begin;
    if (entry.size() < 4 || at[0] != 0x0a || at[1] >= 0x80 || at[1] + size_t{4} > entry.size()) return false;
    usual.key = {at + 2, at + 2 + at[1]};
    at = usual.key.end;
    uint64_t length;
    if (*at++ != 0x12 || !read_varint(at, entry.end, length) || length != static_cast<size_t>(entry.end - at))
        return false;
    usual.feature = {at, entry.end};
    return true;
}

inline bool read_usual(Span feature, UsualList& usual) {
    const uint8_t* at = feature.begin;
    if (feature.size() < 2) return false;
    const uint8_t tag = *at++;
    uint64_t length;
    if (!read_varint(at, feature.end, length) || length != static_cast<size_t>(feature.end - at)) return false;
    if (tag != 0x0a && tag != 0x12 && tag != 0x1a) return false;
    usual = {static_cast<Kind>(tag >> 3), {at, feature.end}};
    return true;
}

// Calls visit(int64_t), visit(float) or visit(Span) with each value.
template <class Visit>
void each_int64(Span part, Visit visit) {
    Field field;
    while (read_field(part, field)) {
        if (field.is(1, kVarint)) {
            visit(static_cast<int64_t>(field.value));
        } else if (field.is(1, kDelimited)) {
            const uint8_t* at = field.bytes.begin;
            while (at < field.bytes.end) {
                uint64_t value;
                if (!read_varint(at, field.bytes.end, value)) bad_message("a packed integer is cut or too long");
                visit(static_cast<int64_t>(value));
            }
        }
    }
}

template <class Visit>
void each_float(Span part, Visit visit) {
    Field field;
    while (read_field(part, field)) {
        if (field.number != 1 || (field.wire != kFixed32 && field.wire != kDelimited)) continue;
        if (field.bytes.size() % 4) bad_message("packed floats end inside a float");
        for (const uint8_t* at = field.bytes.begin; at < field.bytes.end; at += 4) {
            float value;
            std::memcpy(&value, at, 4);
            visit(value);
        }
    }
}

template <class Visit>
void each_bytes(Span part, Visit visit) {
    Field field;
    while (read_field(part, field))
        if (field.is(1, kDelimited)) visit(field.bytes);
}

// Calls visit(key, values) for each entry of a map with string keys; `values` are the spans of its value, to be merged.
template <class Visit>
void each_entry(Span map, Visit visit) {
    Field field;
    std::vector<Span> values;
    while (read_field(map, field)) {
        if (!field.is(1, kDelimited)) continue;
        Span entry = field.bytes, key{entry.begin, entry.begin};
        values.clear();
        while (read_field(entry, field)) {
            if (field.is(1, kDelimited)) key = field.bytes;
            if (field.is(2, kDelimited)) values.push_back(field.bytes);
            if (field.is(1, kDelimited) && !is_utf8(key)) bad_message("a feature's name is not UTF-8");
        }
        visit(key, values);
    }
}

}  // namespace gridflow
