#include "inference.h"

namespace gridflow {

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

void Inference::Table::gather(Span map, int64_t stamp) {
    Names::Name* previous = names.first();
    each_entry(map, [&](Span key, const std::vector<Span>& values) {
        const auto next = static_cast<int>(rows.size());
        Names::Name* name = names.find_or_add(previous, key.begin, key.size(), next);
        if (name->column == next) {
            rows.emplace_back();
            rows.back().name = name->text;
        }
        Row& row = rows[static_cast<size_t>(name->column)];
        if (row.stamp != stamp) touched.push_back(&row);
        row.stamp = stamp;
        row.values = values;
    });
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
        scratch_.clear();
        for (Span value : row->values) scratch_.merge(value);
        row->seen.is_met = true;
        look_at_feature(row->seen, scratch_);
    }
    for (Table::Row* row : lists_.touched) {
        row->seen.is_met = true;
        for (Span list : row->values) {
            while (read_field(list, field)) {
                if (!field.is(1, kDelimited)) continue;
                scratch_.clear();
                scratch_.merge(field.bytes);
                look_at_feature(row->seen, scratch_);
            }
        }
    }
}

void Inference::look_at_feature(Seen& seen, const FeatureView& feature) {
    if (feature.kind == Kind::kNone) return;
    int64_t count = 0;
    for (const Span& part : feature.parts) {
        if (feature.kind == Kind::kInt64) each_int64(part, [&](int64_t) { ++count; });
        if (feature.kind == Kind::kFloat) each_float(part, [&](float) { ++count; });
        if (feature.kind == Kind::kBytes) {
            each_bytes(part, [&](Span value) {
                ++count;
                if (seen.is_utf8 && !is_utf8(value)) seen.is_utf8 = false;
            });
        }
    }
    ++seen.records;
    if (count != 1) seen.is_scalar = false;
    seen.size = seen.size == -1 || seen.size == count ? count : -2;
    if (count == 0) return;
    seen.has_integers |= feature.kind == Kind::kInt64;
    seen.has_floats |= feature.kind == Kind::kFloat;
    seen.has_bytes |= feature.kind == Kind::kBytes;
    int64_t& first = feature.kind == Kind::kBytes ? seen.bytes_at : seen.numbers_at;
    int64_t& offset = feature.kind == Kind::kBytes ? seen.bytes_offset : seen.numbers_offset;
    if (first < 0) {
        first = framer_.record() - 1;
        offset = framer_.last_offset();
    }
}

}  // namespace gridflow
