#include "encoder.h"

#include <cmath>
#include <limits>

#include "crc32c.h"

namespace gridflow {
namespace {

// Rows that are encoded together, column by column: their records fit the second-level cache.
constexpr size_t kBlock = 256;
constexpr uint32_t kNoFeature = UINT32_MAX;
constexpr size_t kHeader = 12, kFooter = 4;

inline uint32_t varint_size(uint64_t value) {
    return static_cast<uint32_t>((64 - static_cast<uint32_t>(__builtin_clzll(value | 1)) + 6) / 7);
}

inline uint8_t* write_varint(uint8_t* out, uint64_t value) {
    while (value >= 0x80) {
        *out++ = static_cast<uint8_t>(value) | 0x80;
        value >>= 7;
    }
    *out++ = static_cast<uint8_t>(value);
    return out;
}

inline uint8_t* write_bytes(uint8_t* out, const void* bytes, size_t size) {
    if (size) std::memcpy(out, bytes, size);
    return out + size;
}

inline bool is_valid(const ArrowArray& array, size_t row) {
    const auto* bits = static_cast<const uint8_t*>(array.buffers[0]);
    const size_t at = row + static_cast<size_t>(array.offset);
    return !bits || (bits[at / 8] >> (at % 8) & 1);
}

template <class T>
inline const T* values_of(const ArrowArray& array, int buffer = 1) {
    return static_cast<const T*>(array.buffers[buffer]) + array.offset;
}

inline bool is_bytes(Physical type) { return type == Physical::kUtf8 || type == Physical::kBinary; }

uint8_t tag_of(Physical type) {
    if (is_bytes(type)) return 0x0a;
    return type == Physical::kInt64 ? 0x1a : 0x12;
}

// What lies around a list: LIST within FEATURE within ENTRY, each behind a tag and its length.
struct Layers {
    uint32_t list, feature, entry;
    Layers(uint32_t body, bool packed, size_t key)
        : list(packed ? (body ? 1 + varint_size(body) + body : 0) : body),
          feature(1 + varint_size(list) + list),
          entry(static_cast<uint32_t>(key) + 1 + varint_size(feature) + feature) {}
    uint32_t total() const { return 1 + varint_size(entry) + entry; }
};

// The values of one list, from `begin` to `end` of the values array.
uint64_t body_size(const ArrowArray& values, Physical type, int64_t begin, int64_t end) {
    if (begin == end) return 0;
    switch (type) {
        case Physical::kInt64: {
            const auto* data = values_of<int64_t>(values);
            uint64_t size = 0;
            for (int64_t at = begin; at < end; ++at) size += varint_size(static_cast<uint64_t>(data[at]));
            return size;
        }
        case Physical::kFloat:
        case Physical::kDouble:
            return 4 * static_cast<uint64_t>(end - begin);
        case Physical::kUtf8:
        case Physical::kBinary: {
            const auto* offsets = values_of<int32_t>(values);
            uint64_t size = 0;
            for (int64_t at = begin; at < end; ++at) {
                const auto length = static_cast<uint32_t>(offsets[at + 1] - offsets[at]);
                size += 1 + varint_size(length) + length;
            }
            return size;
        }
        default:
            return 0;
    }
}

// Whether no finite number becomes an infinite one.
bool fits_floats(const ArrowArray& values, int64_t begin, int64_t end) {
    const auto* data = values_of<double>(values);
    for (int64_t at = begin; at < end; ++at)
        if (std::isinf(static_cast<float>(data[at])) && !std::isinf(data[at])) return false;
    return true;
}

inline uint8_t* write_body(uint8_t* out, const ArrowArray& values, Physical type, int64_t begin, int64_t end) {
    switch (type) {
        case Physical::kInt64: {
            const auto* data = values_of<int64_t>(values);
            for (int64_t at = begin; at < end; ++at) out = write_varint(out, static_cast<uint64_t>(data[at]));
            return out;
        }
        case Physical::kFloat:
            return write_bytes(out, values_of<float>(values) + begin, 4 * static_cast<size_t>(end - begin));
        case Physical::kDouble: {
            const auto* data = values_of<double>(values);
            for (int64_t at = begin; at < end; ++at) {
                const float narrow = static_cast<float>(data[at]);
                out = write_bytes(out, &narrow, 4);
            }
            return out;
        }
        case Physical::kUtf8:
        case Physical::kBinary: {
            const auto* offsets = values_of<int32_t>(values);
            const auto* data = static_cast<const uint8_t*>(values.buffers[2]);
            for (int64_t at = begin; at < end; ++at) {
                const auto length = static_cast<uint32_t>(offsets[at + 1] - offsets[at]);
                *out++ = 0x0a;
                out = write_varint(out, length);
                out = write_bytes(out, data + offsets[at], length);
            }
            return out;
        }
        default:
            return out;
    }
}

inline uint8_t* write_list(uint8_t* out, uint8_t tag, const Layers& layers, uint32_t body, bool packed) {
    *out++ = tag;
    out = write_varint(out, layers.list);
    if (packed && body) {
        *out++ = 0x0a;
        out = write_varint(out, body);
    }
    return out;
}

// Copies whole blocks: up to 15 bytes behind are overwritten too, which whoever comes next has still to write.
inline uint8_t* write_head(uint8_t* out, const std::string& head) {
    for (size_t at = 0; at < head.size(); at += 16) std::memcpy(out + at, head.data() + at, 16);
    return out + head.size();
}

// Up to seven bytes behind are overwritten.
inline uint8_t* write_varint_fast(uint8_t* out, uint64_t value, uint32_t size) {
    if (size > 8) return write_varint(out, value);
    value = (value & 0x000000000fffffffull) | ((value & 0x00fffffff0000000ull) << 4);
    value = (value & 0x00003fff00003fffull) | ((value & 0x0fffc0000fffc000ull) << 2);
    value = (value & 0x007f007f007f007full) | ((value & 0x3f803f803f803f80ull) << 1);
    value |= 0x8080808080808080ull & ((1ull << (8 * (size - 1))) - 1);
    std::memcpy(out, &value, 8);
    return out + size;
}

inline uint8_t* write_frame_head(uint8_t* out, uint64_t length) {
    std::memcpy(out, &length, 8);
    const uint32_t crc = masked(crc32c(out, 8));
    std::memcpy(out + 8, &crc, 4);
    return out + kHeader;
}

inline void write_frame_tail(const uint8_t* payload, uint8_t* end) {
    const uint32_t crc = masked(crc32c(payload, static_cast<size_t>(end - payload)));
    std::memcpy(end, &crc, 4);
}

uint64_t message_size(uint64_t size) { return size ? 1 + varint_size(size) + size : 0; }

}  // namespace

Encoder::Encoder(std::vector<ColumnSpec> columns, RecordType type)
    : type_(type), features_sizes_(kBlock), lists_sizes_(kBlock), cursors_(kBlock) {
    for (ColumnSpec& spec : columns) {
        Source source;
        uint8_t length[10];
        source.key = '\x0a';
        source.key.append(reinterpret_cast<char*>(length),
                          static_cast<size_t>(write_varint(length, spec.name.size()) - length));
        source.key += spec.name;
        source.bodies.resize(kBlock);
        for (uint32_t body = 1; body <= 10; ++body) {
            const Layers layers(body, true, source.key.size());
            std::string head(64 + source.key.size(), '\0');
            auto* out = reinterpret_cast<uint8_t*>(&head[0]);
            uint8_t* end = write_varint(out + 1, layers.entry);
            *out = 0x0a;
            end = write_bytes(end, source.key.data(), source.key.size());
            *end++ = 0x12;
            end = write_list(write_varint(end, layers.feature), tag_of(spec.type), layers, body, true);
            head.resize(static_cast<size_t>(end - out));
            head.reserve(head.size() + 16);
            source.heads[body] = std::move(head);
            source.totals[body] = layers.total();
        }
        source.spec = std::move(spec);
        sources_.push_back(std::move(source));
    }
}

void Encoder::fail(const Source& source, size_t row, const char* kind, const char* what) const {
    throw RecordError{kind, records_ + static_cast<int64_t>(row), -1, "column '" + source.spec.name + "' " + what};
}

void Encoder::bind(Source& source, const ArrowArray& column) {
    source.rows = source.values = &column;
    for (int depth = 0; depth < source.spec.depth; ++depth) source.values = source.values->children[0];
}

Span Encoder::encode(const ArrowArray& batch) {
    out_.resize(0);
    for (size_t at = 0; at < sources_.size(); ++at) bind(sources_[at], *batch.children[at]);
    const auto rows = static_cast<size_t>(batch.length);
    for (size_t first = 0; first < rows; first += kBlock) {
        const size_t count = rows - first < kBlock ? rows - first : kBlock;
        if (type_ == RecordType::kByteArray) {
            encode_byte_arrays(first, count);
        } else {
            encode_block(first, count);
        }
    }
    records_ += batch.length;
    return {out_.data(), out_.data() + out_.size()};
}

void Encoder::encode_byte_arrays(size_t first, size_t count) {
    Source& source = sources_[0];
    const auto* offsets = values_of<int32_t>(*source.values);
    const auto* data = static_cast<const uint8_t*>(source.values->buffers[2]);
    for (size_t row = first; row < first + count; ++row) {
        if (!is_valid(*source.rows, row)) fail(source, row, "null", "is null, which a record cannot be");
        const auto length = static_cast<uint32_t>(offsets[row + 1] - offsets[row]);
        uint8_t* out = out_.extend(length + kHeader + kFooter);
        uint8_t* payload = write_frame_head(out, length);
        write_frame_tail(payload, write_bytes(payload, data + offsets[row], length));
    }
}

void Encoder::encode_block(size_t first, size_t count) {
    std::fill_n(features_sizes_.begin(), count, 0);
    std::fill_n(lists_sizes_.begin(), count, 0);
    for (Source& source : sources_) measure(source, first, count);
    uint64_t total = 0;
    for (size_t row = 0; row < count; ++row) {
        const uint64_t size = message_size(features_sizes_[row]) + message_size(lists_sizes_[row]);
        if (size > Framer::kMaxLength)
            throw RecordError{"length", records_ + static_cast<int64_t>(first + row), -1, "the record exceeds 2 GiB"};
        total += size + kHeader + kFooter;
    }
    // Entries are written a little beyond their ends, so heads and tails of frames come last; sixteen bytes of them lie
    // between two records.
    out_.reserve(out_.size() + total + 2 * 16);
    uint8_t* out = out_.extend(total);
    for (size_t row = 0; row < count; ++row) {
        const uint64_t features = features_sizes_[row], lists = lists_sizes_[row];
        const uint64_t size = message_size(features) + message_size(lists);
        uint8_t* payload = out + kHeader;
        out = payload + size + kFooter;
        if (features) {
            *payload++ = 0x0a;
            payload = write_varint(payload, features);
        }
        cursors_[row] = payload;
    }
    for (Source& source : sources_)
        if (source.spec.depth < 2) write(source, first, count);
    for (size_t row = 0; row < count; ++row) {
        const uint64_t features = features_sizes_[row], lists = lists_sizes_[row];
        if (lists) {
            uint8_t* at = cursors_[row];
            *at++ = 0x12;
            at = write_varint(at, lists);
            for (Source& source : sources_)
                if (source.spec.depth == 2) at = write_lists(source, first + row, at);
            cursors_[row] = at;
        }
        const uint64_t size = message_size(features) + message_size(lists);
        uint8_t* payload = cursors_[row] - size;
        write_frame_head(payload - kHeader, size);
        write_frame_tail(payload, cursors_[row]);
    }
}

void Encoder::measure(Source& source, size_t first, size_t count) {
    const Physical type = source.spec.type;
    const bool packed = !is_bytes(type);
    const ArrowArray& rows = *source.rows;
    if (type == Physical::kNull && source.spec.depth == 0) {
        std::fill_n(source.bodies.begin(), count, kNoFeature);
        return;
    }
    if (source.spec.depth == 2) {
        for (size_t row = 0; row < count; ++row) lists_sizes_[row] += measure_lists(source, first + row);
        return;
    }
    const bool has_nulls = rows.null_count != 0 && rows.buffers[0];
    if (source.is_number() && !has_nulls) return measure_numbers(source, first, count);
    const bool is_list = source.spec.depth == 1;
    const int32_t* offsets = is_list ? values_of<int32_t>(rows) : nullptr;
    for (size_t row = 0; row < count; ++row) {
        const size_t at = first + row;
        if (has_nulls && !is_valid(rows, at)) {
            source.bodies[row] = kNoFeature;
            continue;
        }
        const int64_t begin = is_list ? offsets[at] : static_cast<int64_t>(at);
        const int64_t end = is_list ? offsets[at + 1] : begin + 1;
        const uint64_t body = body_size(*source.values, type, begin, end);
        if (body > Framer::kMaxLength) fail(source, at, "length", "exceeds 2 GiB");
        if (type == Physical::kDouble && !fits_floats(*source.values, begin, end))
            fail(source, at, "range", "holds a number that no 32-bit float can hold");
        source.bodies[row] = static_cast<uint32_t>(body);
        features_sizes_[row] += Layers(source.bodies[row], packed, source.key.size()).total();
    }
}

// Numbers that stand alone, none of them null.
void Encoder::measure_numbers(Source& source, size_t first, size_t count) {
    if (source.spec.type == Physical::kFloat) {
        std::fill_n(source.bodies.begin(), count, 4);
        for (size_t row = 0; row < count; ++row) features_sizes_[row] += source.totals[4];
        return;
    }
    const auto* data = values_of<int64_t>(*source.values) + first;
    for (size_t row = 0; row < count; ++row) {
        source.bodies[row] = varint_size(static_cast<uint64_t>(data[row]));
        features_sizes_[row] += source.totals[source.bodies[row]];
    }
}

void Encoder::write_numbers(Source& source, size_t first, size_t count) {
    if (source.spec.type == Physical::kFloat) {
        const auto* data = values_of<float>(*source.values) + first;
        for (size_t row = 0; row < count; ++row)
            if (source.bodies[row] != kNoFeature)
                cursors_[row] = write_bytes(write_head(cursors_[row], source.heads[4]), data + row, 4);
        return;
    }
    const auto* data = values_of<int64_t>(*source.values) + first;
    for (size_t row = 0; row < count; ++row) {
        const uint32_t body = source.bodies[row];
        if (body == kNoFeature) continue;
        cursors_[row] = write_varint_fast(write_head(cursors_[row], source.heads[body]),
                                          static_cast<uint64_t>(data[row]), body);
    }
}

void Encoder::write(Source& source, size_t first, size_t count) {
    if (source.is_number()) return write_numbers(source, first, count);
    const Physical type = source.spec.type;
    const bool packed = !is_bytes(type);
    const uint8_t tag = tag_of(type);
    const bool is_list = source.spec.depth == 1;
    const int32_t* offsets = is_list ? values_of<int32_t>(*source.rows) : nullptr;
    for (size_t row = 0; row < count; ++row) {
        const uint32_t body = source.bodies[row];
        if (body == kNoFeature) continue;
        const Layers layers(body, packed, source.key.size());
        const auto at = static_cast<int64_t>(first + row);
        uint8_t* out = cursors_[row];
        *out++ = 0x0a;
        out = write_varint(out, layers.entry);
        out = write_bytes(out, source.key.data(), source.key.size());
        *out++ = 0x12;
        out = write_varint(out, layers.feature);
        out = write_list(out, tag, layers, body, packed);
        cursors_[row] = write_body(out, *source.values, type, is_list ? offsets[at] : at,
                                   is_list ? offsets[at + 1] : at + 1);
    }
}

// The size of a FeatureList's entry, with its tag and length.
uint64_t Encoder::measure_lists(const Source& source, size_t row) const {
    if (!is_valid(*source.rows, row)) return 0;
    const bool packed = !is_bytes(source.spec.type);
    const ArrowArray& inner = *source.rows->children[0];
    const auto* outer = values_of<int32_t>(*source.rows);
    const auto* offsets = values_of<int32_t>(inner);
    uint64_t size = 0;
    for (int32_t at = outer[row]; at < outer[row + 1]; ++at) {
        uint32_t feature = 0;
        if (is_valid(inner, static_cast<size_t>(at))) {
            const uint64_t body = body_size(*source.values, source.spec.type, offsets[at], offsets[at + 1]);
            if (body > Framer::kMaxLength) fail(source, row, "length", "exceeds 2 GiB");
            if (source.spec.type == Physical::kDouble && !fits_floats(*source.values, offsets[at], offsets[at + 1]))
                fail(source, row, "range", "holds a number that no 32-bit float can hold");
            feature = Layers(static_cast<uint32_t>(body), packed, 0).feature;
        }
        size += 1 + varint_size(feature) + feature;
    }
    if (size > Framer::kMaxLength) fail(source, row, "length", "exceeds 2 GiB");
    const uint64_t entry = source.key.size() + 1 + varint_size(size) + size;
    return 1 + varint_size(entry) + entry;
}

uint8_t* Encoder::write_lists(const Source& source, size_t row, uint8_t* out) const {
    if (!is_valid(*source.rows, row)) return out;
    const Physical type = source.spec.type;
    const bool packed = !is_bytes(type);
    const ArrowArray& inner = *source.rows->children[0];
    const auto* outer = values_of<int32_t>(*source.rows);
    const auto* offsets = values_of<int32_t>(inner);
    std::vector<uint32_t> bodies;
    uint64_t size = 0;
    for (int32_t at = outer[row]; at < outer[row + 1]; ++at) {
        const bool has_kind = is_valid(inner, static_cast<size_t>(at));
        bodies.push_back(has_kind ? static_cast<uint32_t>(body_size(*source.values, type, offsets[at], offsets[at + 1]))
                                  : kNoFeature);
        const uint32_t feature = has_kind ? Layers(bodies.back(), packed, 0).feature : 0;
        size += 1 + varint_size(feature) + feature;
    }
    *out++ = 0x0a;
    out = write_varint(out, source.key.size() + 1 + varint_size(size) + size);
    out = write_bytes(out, source.key.data(), source.key.size());
    *out++ = 0x12;
    out = write_varint(out, size);
    for (int32_t at = outer[row]; at < outer[row + 1]; ++at) {
        const uint32_t body = bodies[static_cast<size_t>(at - outer[row])];
        *out++ = 0x0a;
        if (body == kNoFeature) {
            *out++ = 0;
            continue;
        }
        const Layers layers(body, packed, 0);
        out = write_varint(out, layers.feature);
        out = write_list(out, tag_of(type), layers, body, packed);
        out = write_body(out, *source.values, type, offsets[at], offsets[at + 1]);
    }
    return out;
}

}  // namespace gridflow
