#include "column.h"

namespace gridflow {
namespace {

size_t width_of(Physical type) {
    switch (type) {
        case Physical::kDecimal:
            return sizeof(Int128);
        case Physical::kInt64:
        case Physical::kDouble:
            return 8;
        case Physical::kInt32:
        case Physical::kFloat:
            return 4;
        case Physical::kUInt8:
            return 1;
        default:
            return 0;
    }
}

std::string format_of(const ColumnSpec& spec) {
    switch (spec.type) {
        case Physical::kDecimal:
            return "d:" + std::to_string(spec.low) + "," + std::to_string(spec.high);
        case Physical::kInt64:
            return "l";
        case Physical::kInt32:
            return "i";
        case Physical::kUInt8:
            return "C";
        case Physical::kFloat:
            return "f";
        case Physical::kDouble:
            return "g";
        case Physical::kUtf8:
            return "u";
        case Physical::kBinary:
            return "z";
        default:
            return "n";
    }
}

const char* name_of(Kind kind) {
    return kind == Kind::kBytes ? "bytes" : kind == Kind::kFloat ? "floats" : "integers";
}

}  // namespace

void Validity::begin() {
    const size_t bytes = (length_ + 8) / 8;
    bits_.resize(bytes);
    std::memset(bits_.data(), 0xff, bytes);
}

// Sets the bits of the next rows. What is in the last byte behind them is overwritten by rows to come.
void Validity::set_valid(size_t count) {
    const size_t whole = (length_ + 7) / 8, bytes = (length_ + count + 7) / 8;
    bits_.resize(bytes);
    if (length_ % 8) bits_[length_ / 8] |= static_cast<uint8_t>(0xff << (length_ % 8));
    if (bytes > whole) std::memset(bits_.data() + whole, 0xff, bytes - whole);
}

void Validity::truncate(size_t length) {
    if (nulls_) {
        while (length_ > length) {
            --length_;
            if (!(bits_[length_ / 8] >> (length_ % 8) & 1)) --nulls_;
        }
    }
    if (length < length_) length_ = length;
}

void* Validity::release() {
    void* bits = nulls_ ? bits_.release() : nullptr;
    bits_.resize(0);
    length_ = nulls_ = 0;
    return bits;
}

Column::Column(ColumnSpec spec)
    : spec_(std::move(spec)),
      width_(width_of(spec_.type)),
      is_checked_(spec_.type == Physical::kInt32 || spec_.type == Physical::kUInt8 || spec_.low != INT64_MIN ||
                  spec_.high != INT64_MAX) {}

void Column::begin(size_t rows) {
    const bool has_strings = spec_.type == Physical::kUtf8 || spec_.type == Physical::kBinary;
    // The rows of many columns are written side by side. Without the odd lines between them, buffers of one size would
    // all lie at the same place of a page, and so compete for the same few lines of the processor's cache.
    data_.reserve(data_hint_ + (spec_.depth == 0 ? width_ * rows : 64) + 5 * 64);
    if (has_strings) {
        byte_offsets_.reserve((strings_hint_ > rows ? strings_hint_ : rows) + 1);
        byte_offsets_.push(0);
    }
    if (spec_.depth > 0 && (spec_.fixed_size < 0 || spec_.depth == 2)) {
        offsets_.reserve((lists_hint_ > rows ? lists_hint_ : rows) + 1);
        offsets_.push(0);
    }
    if (spec_.depth == 2) {
        outer_offsets_.reserve(rows + 1);
        outer_offsets_.push(0);
    }
}

void Column::fail_kind(Kind kind) const {
    throw BadRecord{"kind", "feature '" + spec_.name + "' holds " + name_of(kind) +
                                ", which a column of this type cannot hold"};
}

void Column::fail_count(size_t count) const {
    const std::string wanted = spec_.fixed_size < 0 ? "one value" : std::to_string(spec_.fixed_size) + " values";
    throw BadRecord{"count",
                    "feature '" + spec_.name + "' has " + std::to_string(count) + " values, its column " + wanted};
}

template <class Number>
void Column::fail_range(Number value) const {
    throw BadRecord{"range",
                    "feature '" + spec_.name + "': " + std::to_string(value) + " is out of the range of its column"};
}

void Column::fail_utf8() const {
    throw BadRecord{"utf8", "feature '" + spec_.name + "' is not UTF-8, as a string column must be"};
}

inline size_t Column::values() const {
    if (width_) return data_.size() / width_;
    return spec_.type == Physical::kNull ? null_values_ : byte_offsets_.size() - 1;
}

template <class Number>
inline void Column::put_decimal(Number value) {
    Int128 decimal;
    if (!to_decimal(value, {static_cast<int>(spec_.low), static_cast<int>(spec_.high)}, decimal)) fail_range(value);
    std::memcpy(data_.extend(sizeof decimal), &decimal, sizeof decimal);
}

inline void Column::put_int64(int64_t value) {
    if (spec_.type == Physical::kDecimal) return put_decimal(value);
    if (is_checked_ && (value < spec_.low || value > spec_.high)) fail_range(value);
    switch (spec_.type) {
        case Physical::kInt64:
            std::memcpy(data_.extend(8), &value, 8);
            return;
        case Physical::kInt32: {
            const int32_t narrow = static_cast<int32_t>(value);
            std::memcpy(data_.extend(4), &narrow, 4);
            return;
        }
        case Physical::kUInt8:
            data_.push(static_cast<uint8_t>(value));
            return;
        case Physical::kFloat: {
            const float real = static_cast<float>(value);
            std::memcpy(data_.extend(4), &real, 4);
            return;
        }
        case Physical::kDouble: {
            const double real = static_cast<double>(value);
            std::memcpy(data_.extend(8), &real, 8);
            return;
        }
        default:
            fail_kind(Kind::kInt64);
    }
}

inline void Column::put_float(float value) {
    if (spec_.type == Physical::kFloat) {
        std::memcpy(data_.extend(4), &value, 4);
    } else if (spec_.type == Physical::kDouble) {
        const double real = value;
        std::memcpy(data_.extend(8), &real, 8);
    } else if (spec_.type == Physical::kDecimal) {
        put_decimal(value);
    } else {
        fail_kind(Kind::kFloat);
    }
}

inline void Column::put_bytes(Span value) {
    if (spec_.type == Physical::kUtf8) {
        if (!is_utf8(value)) fail_utf8();
    } else if (spec_.type != Physical::kBinary) {
        fail_kind(Kind::kBytes);
    }
    if (value.size()) std::memcpy(data_.extend(value.size()), value.begin, value.size());
    byte_offsets_.push(static_cast<int32_t>(data_.size()));
}

// False: an integer is cut; what was appended has to be taken back.
inline bool Column::put_packed_int64(const uint8_t* at, const uint8_t* end) {
    uint64_t value;
    if (spec_.type == Physical::kInt64 && !is_checked_) {
        // A value takes a byte at least.
        const size_t before = data_.size();
        int64_t* out = reinterpret_cast<int64_t*>(data_.extend(8 * static_cast<size_t>(end - at)));
        int64_t* first = out;
        while (at < end) {
            if (!read_varint(at, end, value)) return false;
            *out++ = static_cast<int64_t>(value);
        }
        data_.resize(before + 8 * static_cast<size_t>(out - first));
        return true;
    }
    while (at < end) {
        if (!read_varint(at, end, value)) return false;
        put_int64(static_cast<int64_t>(value));
    }
    return true;
}

inline void Column::put_packed_floats(const uint8_t* at, size_t count) {
    if (spec_.type == Physical::kFloat) {
        if (count) std::memcpy(data_.extend(4 * count), at, 4 * count);
        return;
    }
    for (size_t index = 0; index < count; ++index) {
        float value;
        std::memcpy(&value, at + 4 * index, 4);
        put_float(value);
    }
}

void Column::put_empty(size_t count) {
    if (width_) {
        std::memset(data_.extend(width_ * count), 0, width_ * count);
    } else if (spec_.type == Physical::kNull) {
        null_values_ += count;
    } else {
        for (size_t index = 0; index < count; ++index) byte_offsets_.push(static_cast<int32_t>(data_.size()));
    }
}

inline void Column::end_row(size_t values_before) {
    const size_t count = values() - values_before;
    if (spec_.depth == 0) {
        if (count != 1) fail_count(count);
    } else if (spec_.fixed_size >= 0) {
        if (count != static_cast<size_t>(spec_.fixed_size)) fail_count(count);
    } else {
        offsets_.push(static_cast<int32_t>(values()));
    }
    rows_.append_valid();
}

bool Column::append_usual(Kind kind, Span list) {
    if (spec_.type == Physical::kNull) return false;
    const uint8_t* at = list.begin;
    const size_t before = spec_.depth == 0 ? 0 : values();
    if (kind == Kind::kBytes) {
        size_t count = 0;
        while (at < list.end) {
            uint64_t length;
            if (*at++ != 0x0a || !read_varint(at, list.end, length) || length > static_cast<size_t>(list.end - at)) {
                take_back(rows_.length());
                return false;
            }
            put_bytes({at, at + length});
            at += length;
            ++count;
        }
        if (spec_.depth == 0) {
            if (count != 1) fail_count(count);
            rows_.append_valid();
            return true;
        }
        end_row(before);
        return true;
    }
    if (list.empty()) {
        if (spec_.depth == 0) fail_count(0);
        end_row(before);
        return true;
    }
    uint64_t length;
    if (*at++ != 0x0a || !read_varint(at, list.end, length) || length != static_cast<size_t>(list.end - at))
        return false;
    if (kind == Kind::kInt64) {
        if (spec_.depth == 0 && length && length <= 10) {
            // One number, as in most files: no need to count.
            uint64_t value;
            if (!read_varint(at, list.end, value) || at != list.end) return false;
            put_int64(static_cast<int64_t>(value));
            rows_.append_valid();
            return true;
        }
        if (!put_packed_int64(at, list.end)) {
            take_back(rows_.length());
            return false;
        }
    } else {
        if (spec_.depth == 0 && length == 4 && spec_.type == Physical::kFloat) {
            std::memcpy(data_.extend(4), at, 4);
            rows_.append_valid();
            return true;
        }
        if (length % 4) return false;
        put_packed_floats(at, length / 4);
    }
    if (spec_.depth == 0) {
        const size_t count = values() - rows_.length();
        if (count != 1) fail_count(count);
        rows_.append_valid();
        return true;
    }
    end_row(before);
    return true;
}

void Column::append_values(const FeatureView& feature) {
    for (const Span& part : feature.parts) {
        if (feature.kind == Kind::kInt64) each_int64(part, [this](int64_t value) { put_int64(value); });
        if (feature.kind == Kind::kFloat) each_float(part, [this](float value) { put_float(value); });
        if (feature.kind == Kind::kBytes) each_bytes(part, [this](Span value) { put_bytes(value); });
    }
}

void Column::append(const FeatureView& feature) {
    if (feature.kind == Kind::kNone) return append_null();
    if (spec_.type == Physical::kNull && spec_.depth == 0) {
        if (feature.count()) fail_kind(feature.kind);
        return append_null();
    }
    const size_t before = values();
    append_values(feature);
    end_row(before);
}

void Column::append_null() {
    if (spec_.depth == 0) {
        put_empty(1);
    } else if (spec_.depth == 2) {
        outer_offsets_.push(static_cast<int32_t>(inner_.length()));
    } else if (spec_.fixed_size >= 0) {
        put_empty(static_cast<size_t>(spec_.fixed_size));
    } else {
        offsets_.push(static_cast<int32_t>(values()));
    }
    rows_.append_null();
}

void Column::append_lists(const std::vector<Span>& lists, FeatureView& scratch) {
    Field field;
    for (Span list : lists) {
        while (read_field(list, field)) {
            if (!field.is(1, kDelimited)) continue;
            scratch.clear();
            scratch.merge(field.bytes);
            append_values(scratch);
            offsets_.push(static_cast<int32_t>(values()));
            if (scratch.kind == Kind::kNone) {
                inner_.append_null();
            } else {
                inner_.append_valid();
            }
        }
    }
    outer_offsets_.push(static_cast<int32_t>(inner_.length()));
    rows_.append_valid();
}

void Column::append_payload(Span payload) {
    put_bytes(payload);
    rows_.append_valid();
}

void Column::take_back(size_t rows) {
    size_t values = rows;
    if (spec_.depth == 2) {
        outer_offsets_.resize(rows + 1);
        const auto lists = static_cast<size_t>(outer_offsets_[rows]);
        inner_.truncate(lists);
        offsets_.resize(lists + 1);
        values = static_cast<size_t>(offsets_[lists]);
    } else if (spec_.depth == 1 && spec_.fixed_size >= 0) {
        values = rows * static_cast<size_t>(spec_.fixed_size);
    } else if (spec_.depth == 1) {
        offsets_.resize(rows + 1);
        values = static_cast<size_t>(offsets_[rows]);
    }
    if (width_) {
        data_.resize(values * width_);
    } else if (spec_.type == Physical::kNull) {
        null_values_ = values;
    } else {
        byte_offsets_.resize(values + 1);
        data_.resize(static_cast<size_t>(byte_offsets_[values]));
    }
    rows_.truncate(rows);
}

ArrayParts Column::release_values() {
    ArrayParts parts;
    parts.format = format_of(spec_);
    parts.length = static_cast<int64_t>(values());
    if (spec_.type == Physical::kNull) {
        parts.null_count = parts.length;
        null_values_ = 0;
        return parts;
    }
    parts.buffers.push_back(nullptr);
    if (!width_) {
        strings_hint_ = byte_offsets_.size();
        parts.buffers.push_back(byte_offsets_.release());
    }
    data_hint_ = spec_.depth == 0 && width_ ? 0 : data_.size() + data_.size() / 16;
    // Arrow wants a buffer even where there are no bytes.
    data_.reserve(1);
    parts.buffers.push_back(data_.release());
    return parts;
}

ArrayParts Column::release() {
    const int64_t rows = static_cast<int64_t>(rows_.length());
    ArrayParts parts = release_values();
    if (spec_.depth >= 1) {
        parts.name = "item";
        ArrayParts list;
        const bool is_fixed = spec_.fixed_size >= 0 && spec_.depth == 1;
        Validity& validity = spec_.depth == 2 ? inner_ : rows_;
        list.format = is_fixed ? "+w:" + std::to_string(spec_.fixed_size) : "+l";
        list.length = static_cast<int64_t>(validity.length());
        list.null_count = static_cast<int64_t>(validity.nulls());
        list.buffers.push_back(validity.release());
        if (!is_fixed) {
            lists_hint_ = offsets_.size();
            list.buffers.push_back(offsets_.release());
        }
        list.children.push_back(std::move(parts));
        parts = std::move(list);
    }
    if (spec_.depth == 2) {
        parts.name = "item";
        ArrayParts outer;
        outer.format = "+l";
        outer.length = rows;
        outer.null_count = static_cast<int64_t>(rows_.nulls());
        outer.buffers = {rows_.release(), outer_offsets_.release()};
        outer.children.push_back(std::move(parts));
        parts = std::move(outer);
    }
    if (spec_.depth == 0) {
        parts.null_count = static_cast<int64_t>(rows_.nulls());
        void* bits = rows_.release();
        if (spec_.type == Physical::kNull) {
            give_back_block(bits);
            parts.null_count = parts.length = rows;
        } else {
            parts.buffers[0] = bits;
        }
    }
    parts.name = spec_.name;
    return parts;
}

}  // namespace gridflow
