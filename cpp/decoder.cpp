#include "decoder.h"

#include <algorithm>

namespace gridflow {
namespace {

// Offsets of 32 bits end here.
constexpr size_t kMaxBatchBytes = (1ull << 31) - 64;

// Finds the features that a record begins with, if it does.
inline bool find_features(Span payload, const uint8_t*& at, const uint8_t*& end) {
    // Nothing but features, whose length has two bytes: 0a LENGTH LENGTH features…
    const size_t rest = payload.size() - 3;
    if (rest >= 0x80 && rest < 0x4000 &&
        (load_word(payload.begin) & 0xffffff) == (0x800a | (rest & 0x7f) << 8 | (rest & 0x3f80) << 9)) {
        at = payload.begin + 3;
        end = payload.end;
        return true;
    }
    at = payload.begin + 1;
    uint64_t length;
    // Longer ones would not be as usual writers write them.
    if (payload.empty() || *payload.begin != 0x0a || !read_varint(at, payload.end, length)) return false;
    if (length > static_cast<size_t>(payload.end - at) || at - payload.begin > 6) return false;
    end = at + length;
    return true;
}

}  // namespace

Decoder::Decoder(std::vector<ColumnSpec> columns, RecordType type, size_t batch_rows, size_t batch_bytes,
                 uint64_t max_length, bool skip, bool check_crc)
    : framer_(max_length, skip, check_crc),
      type_(type),
      batch_rows_(batch_rows),
      batch_bytes_(batch_bytes < kMaxBatchBytes ? batch_bytes : kMaxBatchBytes) {
    columns_.reserve(columns.size());
    for (ColumnSpec& spec : columns) {
        const int index = static_cast<int>(columns_.size());
        (spec.depth == 2 ? lists_ : features_).add(spec.name, index);
        if (spec.fixed_size > 0) row_bytes_ += 8 * static_cast<size_t>(spec.fixed_size);
        columns_.emplace_back(std::move(spec));
    }
}

Decoder::State Decoder::decode() {
    if (!is_begun_) {
        for (Column& column : columns_) column.begin(batch_rows_ < 65536 ? batch_rows_ : 65536);
        is_begun_ = true;
    }
    while (true) {
        if (rows_ >= batch_rows_ || bytes_ >= batch_bytes_) return State::kBatch;
        if (ahead_at_ == ahead_count_) {
            size_t count = Group::kMost;
            const Framer::Next next = framer_.look_ahead(ahead_, count);
            if (next == Framer::Next::kMore) return State::kMore;
            if (next == Framer::Next::kEnd) return State::kEnd;
            ahead_at_ = 0;
            ahead_count_ = count;
        }
        if (rows_ > 0 && bytes_ + cost(ahead_[ahead_at_]) > kMaxBatchBytes) return State::kBatch;
        decode_group();
    }
}

// Finds the next records that may be decoded together.
size_t Decoder::begin_group() {
    if (type_ == RecordType::kByteArray) return 0;
    const Span* const payloads = ahead_ + ahead_at_;
    size_t most = std::min({ahead_count_ - ahead_at_, group_size_, batch_rows_ - rows_});
    // The last records of a batch go one by one, since one of them is to fill it.
    const size_t bytes = static_cast<size_t>(payloads[most - 1].end - payloads[0].begin) + most * row_bytes_;
    if (bytes_ + bytes >= batch_bytes_) most = 1;
    size_t count = 0;
    while (count < most && find_features(payloads[count], group_.at[count], group_.end[count])) ++count;
    return count;
}

// Decodes records as long as they are as expected, and the first other one.
void Decoder::decode_group() {
    const size_t count = begin_group();
    const Span* const payloads = ahead_ + ahead_at_;
    const Pattern::Taken taken = pattern_.take(group_, payloads, count, rows_);
    if (taken.records) {
        append_nulls(taken.records);
        rows_ += taken.records;
        for (size_t record = 0; record < taken.records; ++record) bytes_ += cost(payloads[record]);
        framer_.take(payloads[taken.records - 1], taken.records);
        ahead_at_ += taken.records;
        is_surprised_ = false;
    }
    // Where records differ often, a large group would have to be taken back for the most part.
    const bool is_whole = count && taken.records == count;
    const size_t size = is_whole ? std::max(group_size_, 2 * count) : 2 * taken.records;
    group_size_ = std::clamp<size_t>(size, 1, Group::kMost);
    if (is_whole) {
        surprises_ = 0;
        return;
    }
    decode_record(payloads[taken.records], count ? group_.at[taken.records] : nullptr, taken.entries);
}

// Notes for the first entries of the pattern that their columns have a value, and returns how many columns these are.
size_t Decoder::stamp_columns(size_t entries) {
    size_t columns = 0;
    for (size_t entry = 0; entry < entries; ++entry) {
        Column* const column = pattern_[entry].column;
        if (!column) continue;
        column->stamp = stamp_;
        ++columns;
    }
    return columns;
}

// Appends nulls to the columns that nothing in the pattern is of.
void Decoder::append_nulls(size_t rows) {
    if (pattern_.columns() == columns_.size()) return;
    ++stamp_;
    stamp_columns(pattern_.size());
    for (Column& column : columns_)
        for (size_t row = 0; column.stamp != stamp_ && row < rows; ++row) column.append_null();
}

// Decodes a record of which the first entries have been taken, up to `resumed`.
void Decoder::decode_record(Span payload, const uint8_t* resumed, size_t entries) {
    framer_.take(payload, 1);
    ++ahead_at_;
    ++stamp_;
    found_ = stamp_columns(entries);
    previous_ = entries ? pattern_[entries - 1].name : features_.first();
    resumed_ = resumed;
    taken_ = entries;
    try {
        decode_message(payload);
    } catch (const BadRecord& error) {
        framer_.refuse(error);
        for (Column& column : columns_)
            if (column.stamp == stamp_) column.take_back(rows_);
        return;
    }
    if (found_ < columns_.size())
        for (Column& column : columns_)
            if (column.stamp != stamp_) column.append_null();
    ++rows_;
    bytes_ += cost(payload);
}

void Decoder::begin_cell(Column& column) {
    current_ = &column;
    if (column.stamp != stamp_) {
        column.stamp = stamp_;
        ++found_;
        return;
    }
    column.take_back(rows_);
    for (size_t at = 0; at < misfits_.size(); ++at)
        if (misfits_[at].first == &column) misfits_.erase(misfits_.begin() + static_cast<std::ptrdiff_t>(at--));
}

// Of equal keys the last counts, so a value that does not fit its column is no error until the record has ended.
void Decoder::note_misfit(const BadRecord& error) {
    if (std::strcmp(error.kind, "message") == 0) throw error;
    misfits_.emplace_back(current_, error);
}

void Decoder::decode_message(Span payload) {
    if (type_ == RecordType::kByteArray) {
        begin_cell(columns_[0]);
        columns_[0].append_payload(payload);
        return;
    }
    misfits_.clear();
    Field field;
    while (read_field(payload, field)) {
        if (field.is(1, kDelimited)) decode_features(field.bytes);
        if (field.is(2, kDelimited) && type_ == RecordType::kSequenceExample) decode_lists(field.bytes);
    }
    if (!misfits_.empty()) throw misfits_.front().second;
}

// One odd record is not what to expect of the next; and where all differ, it does not pay to learn from each.
void Decoder::begin_learning() {
    is_learning_ = is_surprised_ && (++surprises_ < 32 || surprises_ % 1024 == 0);
    is_surprised_ = true;
    if (is_learning_) pattern_.forget(taken_);
}

// Decodes an entry as usual writers make it. False: it is another one.
inline bool Decoder::decode_usual_entry(Span entry, Names::Name*& previous) {
    UsualEntry usual;
    if (!read_usual(entry, usual)) return false;
    Names::Name* name = features_.find(previous, usual.key.begin, usual.key.size());
    const uint8_t* at = usual.feature.begin;
    const size_t size = usual.feature.size();
    if (name->column < 0) {
        if (is_learning_) is_learning_ = pattern_.add({name, nullptr, Kind::kNone, size >= 4 && entry.size() < 0x80});
        return true;
    }
    Column& column = columns_[static_cast<size_t>(name->column)];
    // TAG LENGTH 0a LENGTH VALUE: one value, or packed ones.
    const uint64_t word = load_word(at) & 0xffffffff, tag = word & 0xff;
    UsualList list;
    bool is_scalar = false;
    if (size >= 4 && entry.size() < 0x80 && word == (tag | (size - 2) << 8 | 0x0a0000 | (size - 4) << 24) &&
        (tag == 0x0a || tag == 0x12 || tag == 0x1a)) {
        list = {static_cast<Kind>(tag >> 3), {at + 2, entry.end}};
        begin_cell(column);
        is_scalar = column.append_scalar(list.kind, {at + 4, entry.end});
    } else {
        if (!read_usual(usual.feature, list)) return false;
        begin_cell(column);
    }
    if (!is_scalar && !column.append_usual(list.kind, list.values)) return false;
    if (is_learning_) is_learning_ = pattern_.add({name, &column, list.kind, is_scalar});
    return true;
}

void Decoder::decode_features(Span features) {
    const uint8_t* at = features.begin;
    const uint8_t* next = at;
    const uint8_t* const end = features.end;
    Names::Name* previous = previous_;
    is_learning_ = false;
    if (resumed_) {
        at = std::exchange(resumed_, nullptr);
        if (at < end) begin_learning();
    }
    while (at < end) {
        try {
            while (at < end) {
                const uint8_t* body = at + 1;
                uint64_t length;
                if (*at == 0x0a && read_varint(body, end, length) && length <= static_cast<size_t>(end - body)) {
                    next = body + length;
                    if (decode_usual_entry({body, next}, previous)) {
                        at = next;
                        continue;
                    }
                }
                // One field the thorough way.
                is_learning_ = false;
                Span rest{at, end};
                Field field;
                read_field(rest, field);
                next = rest.begin;
                each_entry({at, next}, [&](Span key, const std::vector<Span>& values) {
                    decode_entry(key, values, previous);
                });
                at = next;
            }
        } catch (const BadRecord& error) {
            is_learning_ = false;
            note_misfit(error);
            at = next;
        }
    }
    previous_ = previous;
}

void Decoder::decode_entry(Span key, const std::vector<Span>& values, Names::Name*& previous) {
    Names::Name* name = features_.find(previous, key.begin, key.size());
    if (name->column < 0) return;
    Column& column = columns_[static_cast<size_t>(name->column)];
    scratch_.clear();
    for (Span value : values) scratch_.merge(value);
    begin_cell(column);
    column.append(scratch_);
}

void Decoder::decode_lists(Span lists) {
    Names::Name* previous = lists_.first();
    each_entry(lists, [&](Span key, const std::vector<Span>& values) {
        Names::Name* name = lists_.find(previous, key.begin, key.size());
        if (name->column < 0) return;
        Column& column = columns_[static_cast<size_t>(name->column)];
        begin_cell(column);
        try {
            column.append_lists(values, scratch_);
        } catch (const BadRecord& error) {
            note_misfit(error);
        }
    });
}

ArrayParts Decoder::take() {
    ArrayParts batch;
    batch.format = "+s";
    batch.length = static_cast<int64_t>(rows_);
    batch.buffers.push_back(nullptr);
    if (!is_begun_)
        for (Column& column : columns_) column.begin(0);
    for (Column& column : columns_) batch.children.push_back(column.release());
    is_begun_ = false;
    rows_ = bytes_ = 0;
    return batch;
}

}  // namespace gridflow
