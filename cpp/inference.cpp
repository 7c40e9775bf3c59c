#include "inference.h"

namespace gridflow {
namespace {

// Counts the values of a list in its usual encoding, numbers packed; -1: it is of another one. `is_utf8` becomes false
// if one of them is not.
int64_t count_usual(const UsualList& list, bool& is_utf8) {
    const uint8_t* at = list.values.begin;
    const uint8_t* const end = list.values.end;
    int64_t count = 0;
    uint64_t length, value;
    if (list.kind == Kind::kBytes) {
        for (; at < end; at += length, ++count) {
            if (*at++ != 0x0a || !read_varint(at, end, length) || length > static_cast<size_t>(end - at)) return -1;
            if (is_utf8 && !is_text({at, at + length})) is_utf8 = false;
        }
        return count;
    }
    if (at == end || *at++ != 0x0a || !read_varint(at, end, length) || length != static_cast<size_t>(end - at))
        return -1;
    if (list.kind == Kind::kFloat) return length % 4 ? -1 : static_cast<int64_t>(length / 4);
    for (; at < end; ++count)
        if (!read_varint(at, end, value)) return -1;
    return count;
}

}  // namespace

Inference::Inference(RecordType type, uint64_t max_length, bool skip, bool check_crc, int64_t limit)
    : framer_(max_length, skip, check_crc), type_(type), limit_(limit) {}

Decoder::State Inference::look() {
    while (limit_ < 0 || records_ < limit_) {
        Span payload{nullptr, nullptr};
        const Framer::Next next = framer_.next(payload);
        if (next == Framer::Next::kMore) return Decoder::State::kMore;
        if (next == Framer::Next::kEnd) return Decoder::State::kEnd;
        try {
            look_at(payload);
        } catch (const BadRecord& error) {
            framer_.refuse(error);
            continue;
        }
        ++records_;
    }
    return Decoder::State::kEnd;
}

// Finds the row of a name that the present record has; what the record said of it before no longer counts.
Inference::Table::Row& Inference::Table::touch(Span key, Names::Name*& previous, int64_t stamp) {
    const auto next = static_cast<int>(rows.size());
    Names::Name* name = names.find_or_add(previous, key.begin, key.size(), next);
    if (name->column == next) {
        rows.emplace_back();
        rows.back().name = name->text;
    }
    Row& row = rows[static_cast<size_t>(name->column)];
    if (row.stamp != stamp) touched.push_back(&row);
    row.stamp = stamp;
    return row;
}

void Inference::Table::gather(Span map, int64_t stamp) {
    Names::Name* previous = names.first();
    while (!map.empty()) {
        const uint8_t* at = map.begin + 1;
        uint64_t length;
        UsualEntry entry;
        if (*map.begin == 0x0a && read_varint(at, map.end, length) && length <= static_cast<size_t>(map.end - at) &&
            read_usual({at, at + length}, entry) && is_text(entry.key)) {
            touch(entry.key, previous, stamp).values.assign(1, entry.feature);
            map.begin = at + length;
            continue;
        }
        // One field the thorough way.
        Span rest = map;
        Field field;
        read_field(rest, field);
        each_entry({map.begin, rest.begin}, [&](Span key, const std::vector<Span>& values) {
            touch(key, previous, stamp).values = values;
        });
        map = rest;
    }
}

Inference::Found Inference::Table::found() const {
    Found table;
    for (const Row& row : rows)
        if (row.seen.is_met) table[row.name] = row.seen;
    return table;
}

void Inference::look_at(Span payload) {
    if (type_ == RecordType::kByteArray) return;
    ++stamp_;
    features_.touched.clear();
    lists_.touched.clear();
    Field field;
    while (read_field(payload, field)) {
        if (field.is(1, kDelimited)) features_.gather(field.bytes, stamp_);
        if (field.is(2, kDelimited) && type_ == RecordType::kSequenceExample) lists_.gather(field.bytes, stamp_);
    }
    for (Table::Row* row : features_.touched) {
        row->seen.is_met = true;
        look_at_feature(row->seen, row->values);
    }
    for (Table::Row* row : lists_.touched) {
        row->seen.is_met = true;
        for (Span list : row->values) {
            while (read_field(list, field)) {
                if (field.is(1, kDelimited)) look_at_feature(row->seen, {field.bytes});
            }
        }
    }
}

// Looks at a Feature, given in parts if a writer made it so.
void Inference::look_at_feature(Seen& seen, const std::vector<Span>& parts) {
    UsualList list;
    if (parts.size() == 1 && read_usual(parts[0], list)) {
        bool is_utf8 = seen.is_utf8;
        const int64_t count = count_usual(list, is_utf8);
        if (count >= 0) {
            seen.is_utf8 = is_utf8;
            note(seen, list.kind, count);
            return;
        }
    }
    scratch_.clear();
    for (Span part : parts) scratch_.merge(part);
    if (scratch_.kind == Kind::kNone) return;
    int64_t count = 0;
    for (const Span& part : scratch_.parts) {
        if (scratch_.kind == Kind::kInt64) each_int64(part, [&](int64_t) { ++count; });
        if (scratch_.kind == Kind::kFloat) each_float(part, [&](float) { ++count; });
        if (scratch_.kind == Kind::kBytes) {
            each_bytes(part, [&](Span value) {
                ++count;
                if (seen.is_utf8 && !is_utf8(value)) seen.is_utf8 = false;
            });
        }
    }
    note(seen, scratch_.kind, count);
}

// Notes a list of so many values.
void Inference::note(Seen& seen, Kind kind, int64_t count) {
    ++seen.records;
    if (count != 1) seen.is_scalar = false;
    seen.size = seen.size == -1 || seen.size == count ? count : -2;
    if (count == 0) return;
    seen.has_integers |= kind == Kind::kInt64;
    seen.has_floats |= kind == Kind::kFloat;
    seen.has_bytes |= kind == Kind::kBytes;
    int64_t& first = kind == Kind::kBytes ? seen.bytes_at : seen.numbers_at;
    int64_t& offset = kind == Kind::kBytes ? seen.bytes_offset : seen.numbers_offset;
    if (first < 0) {
        first = framer_.record() - 1;
        offset = framer_.last_offset();
    }
}

}  // namespace gridflow
