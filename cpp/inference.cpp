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

// Of entries with equal keys only the last counts, so all are gathered first.
void Inference::look_at(Span payload) {
    if (type_ == RecordType::kByteArray) return;
    std::unordered_map<std::string, std::vector<Span>> features, lists;
    Field field;
    while (read_field(payload, field)) {
        if (field.is(1, kDelimited)) look_at_entries(field.bytes, features);
        if (field.is(2, kDelimited) && type_ == RecordType::kSequenceExample) look_at_entries(field.bytes, lists);
    }
    for (const auto& [name, values] : features) {
        scratch_.clear();
        for (Span value : values) scratch_.merge(value);
        look_at_feature(features_[name], scratch_);
    }
    for (const auto& [name, values] : lists) {
        Seen& seen = lists_[name];
        for (Span list : values) {
            while (read_field(list, field)) {
                if (!field.is(1, kDelimited)) continue;
                scratch_.clear();
                scratch_.merge(field.bytes);
                look_at_feature(seen, scratch_);
            }
        }
    }
}

void Inference::look_at_entries(Span map, std::unordered_map<std::string, std::vector<Span>>& entries) {
    each_entry(map, [&](Span key, const std::vector<Span>& values) {
        entries[std::string(reinterpret_cast<const char*>(key.begin), key.size())] = values;
    });
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
