// A column that is being filled: values, offsets and validity as Arrow lays them out.
#pragma once

#include <string>

#include "arrow.h"
#include "decimal.h"
#include "wire.h"

namespace gridflow {

enum class Physical : uint8_t { kInt64, kInt32, kUInt8, kFloat, kDouble, kUtf8, kBinary, kNull, kDecimal };

// What is asked for: `depth` 0 is a scalar, 1 a list, 2 a feature list.
struct ColumnSpec {
    std::string name;
    Physical type;
    int depth;
    int64_t fixed_size;  // of each list, or -1
    int64_t low, high;   // integers must be within; of decimals, these are their precision and scale
};

// Strings of up to so many bytes are copied as whole words; behind them must be as much slack on both sides.
constexpr size_t kShortString = 32;
static_assert(kShortString <= Framer::kSlack);

inline void copy_string(uint8_t* out, Span string) {
    std::memcpy(out, string.begin, kShortString);
    if (string.size() > kShortString) std::memcpy(out, string.begin, string.size());
}

// A validity bitmap, which does not exist until the first null.
class Validity {
public:
    void append_valid() {
        if (nulls_) set(length_, true);
        ++length_;
    }
    void append_valid(size_t count) {
        if (nulls_) set_valid(count);
        length_ += count;
    }
    void append_null() {
        if (!nulls_) begin();
        set(length_++, false);
        ++nulls_;
    }
    void truncate(size_t length);
    size_t length() const { return length_; }
    size_t nulls() const { return nulls_; }
    void* release();

private:
    void begin();
    void set_valid(size_t count);
    void set(size_t index, bool valid) {
        const size_t byte = index / 8;
        while (bits_.size() <= byte) bits_.push(0);
        const uint8_t bit = static_cast<uint8_t>(1u << (index % 8));
        bits_[byte] = static_cast<uint8_t>(valid ? bits_[byte] | bit : bits_[byte] & ~bit);
    }

    Buffer<uint8_t> bits_;
    size_t length_ = 0, nulls_ = 0;
};

class Column {
public:
    explicit Column(ColumnSpec spec);

    // Prepares memory for a batch of about as many values as the last one had.
    void begin(size_t rows);

    // Appends a scalar that is alone in its list, `data` being the value itself. False: nothing was appended.
    bool append_scalar(Kind kind, Span data) {
        if (spec_.depth != 0) return false;
        if (kind == Kind::kInt64) {
            uint64_t value;
            if (spec_.type != Physical::kInt64 || is_checked_ || !read_varint(data.begin, data.end, value) ||
                data.begin != data.end)
                return false;
            std::memcpy(data_.extend(8), &value, 8);
        } else if (kind == Kind::kFloat) {
            if (spec_.type != Physical::kFloat || data.size() != 4) return false;
            std::memcpy(data_.extend(4), data.begin, 4);
        } else {
            if (spec_.type == Physical::kUtf8 ? !is_text(data) : spec_.type != Physical::kBinary) return false;
            copy_string(data_.extend(data.size() + kShortString), data);
            data_.resize(data_.size() - kShortString);
            byte_offsets_.push(static_cast<int32_t>(data_.size()));
        }
        rows_.append_valid();
        return true;
    }
    // For many scalars at once: room for `count` numbers, and then how many of them have been filled in.
    uint8_t* open(size_t count) { return data_.extend(width_ * count); }
    void close(size_t count, size_t filled) {
        data_.resize(data_.size() - width_ * (count - filled));
        rows_.append_valid(filled);
    }
    // The same for strings of up to `max_size` bytes; behind them is slack. `size` are the bytes of all so far.
    struct OpenStrings {
        uint8_t* data;
        size_t size;
        int32_t* offsets;  // where each ends
    };
    OpenStrings open_strings(size_t count, size_t max_size) {
        data_.reserve(data_.size() + count * max_size + kShortString);
        return {data_.data(), data_.size(), byte_offsets_.extend(count)};
    }
    void close_strings(const OpenStrings& strings, size_t count, size_t filled) {
        data_.resize(strings.size);
        byte_offsets_.resize(byte_offsets_.size() - (count - filled));
        rows_.append_valid(filled);
    }
    // Appends a row from a list in its usual encoding: one part, numbers packed. False: it is of another encoding,
    // nothing was appended, and `append` has to do it.
    bool append_usual(Kind kind, Span list);
    // Appends a row from any Feature.
    void append(const FeatureView& feature);
    void append_null();
    // Appends a row of a feature list; `lists` are the parts of a FeatureList.
    void append_lists(const std::vector<Span>& lists, FeatureView& scratch);
    void append_payload(Span payload);
    // Takes back what the last record gave, whole or in part; `rows` are those before it.
    void take_back(size_t rows);

    ArrayParts release();
    size_t rows() const { return rows_.length(); }
    const ColumnSpec& spec() const { return spec_; }

    // The record that gave the last row, to find keys that come twice.
    int64_t stamp = -1;

private:
    [[noreturn]] void fail_kind(Kind kind) const;
    [[noreturn]] void fail_count(size_t count) const;
    template <class Number>
    [[noreturn]] void fail_range(Number value) const;
    [[noreturn]] void fail_utf8() const;

    void end_row(size_t values_before);
    size_t values() const;
    void append_values(const FeatureView& feature);
    void put_int64(int64_t value);
    void put_float(float value);
    template <class Number>
    void put_decimal(Number value);
    void put_bytes(Span value);
    bool put_packed_int64(const uint8_t* at, const uint8_t* end);
    void put_packed_floats(const uint8_t* at, size_t count);
    void put_empty(size_t count);
    ArrayParts release_values();

    const ColumnSpec spec_;
    const size_t width_;  // of a value in bytes; 0 for bytes and null
    const bool is_checked_;
    Buffer<uint8_t> data_;
    Buffer<int32_t> byte_offsets_;  // of strings
    Buffer<int32_t> offsets_;       // of lists; of the inner ones at depth 2
    Buffer<int32_t> outer_offsets_;
    Validity rows_, inner_;
    size_t null_values_ = 0;
    size_t data_hint_ = 0, strings_hint_ = 0, lists_hint_ = 0;
};

}  // namespace gridflow
