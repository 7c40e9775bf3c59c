#include "decoder.h"

namespace gridflow {
namespace {

// Offsets of 32 bits end here.
constexpr size_t kMaxBatchBytes = (1ull << 31) - 64;

void set_words(Names::Name& name) {
    uint8_t padded[16] = {};
    std::memcpy(padded, name.text.data(), name.text.size() < 16 ? name.text.size() : 16);
    uint8_t mask[16] = {};
    std::memset(mask, 0xff, name.text.size() < 16 ? name.text.size() : 16);
    std::memcpy(name.words, padded, 16);
    std::memcpy(name.masks, mask, 16);
}

}  // namespace

Names::Names() {
    stranger_.column = -1;
    // No key is equal to it.
    stranger_.text = std::string(1 << 10, '\xff');
    set_words(stranger_);
    stranger_.next = &stranger_;
    before_first_.column = -1;
    before_first_.next = &stranger_;
    slots_.assign(64, nullptr);
}

size_t Names::slot(const uint8_t* key, size_t size) const {
    uint64_t hash = size * 0x9e3779b97f4a7c15ull;
    size_t at = 0;
    for (; at + 8 <= size; at += 8) hash = (hash ^ load_word(key + at)) * 0xff51afd7ed558ccdull, hash ^= hash >> 32;
    uint64_t tail = 0;
    if (at < size) std::memcpy(&tail, key + at, size - at);
    hash = (hash ^ tail) * 0xff51afd7ed558ccdull;
    return static_cast<size_t>(hash ^ (hash >> 29)) & (slots_.size() - 1);
}

Names::Name* Names::insert(const std::string& text, int column) {
    names_.push_back(Name{text, {}, {}, column, &stranger_});
    set_words(names_.back());
    if (names_.size() * 2 > slots_.size()) {
        rehash();
    } else {
        size_t at = slot(reinterpret_cast<const uint8_t*>(text.data()), text.size());
        while (slots_[at]) at = (at + 1) & (slots_.size() - 1);
        slots_[at] = &names_.back();
    }
    return &names_.back();
}

void Names::rehash() {
    slots_.assign(slots_.size() * 2, nullptr);
    for (Name& name : names_) {
        size_t at = slot(reinterpret_cast<const uint8_t*>(name.text.data()), name.text.size());
        while (slots_[at]) at = (at + 1) & (slots_.size() - 1);
        slots_[at] = &name;
    }
}

void Names::add(const std::string& text, int column) { insert(text, column); }

Names::Name* Names::probe(const uint8_t* key, size_t size) {
    for (size_t at = slot(key, size); slots_[at]; at = (at + 1) & (slots_.size() - 1)) {
        Name* name = slots_[at];
        if (name->text.size() == size && std::memcmp(name->text.data(), key, size) == 0) return name;
    }
    return nullptr;
}

Names::Name* Names::look_up(const uint8_t* key, size_t size) {
    if (Name* known = probe(key, size)) return known;
    if (!is_utf8({key, key + size})) bad_message("a feature's name is not UTF-8");
    if (learned_ >= kMaxLearned || size > 1000) return &stranger_;
    ++learned_;
    return insert(std::string(reinterpret_cast<const char*>(key), size), -1);
}

Names::Name* Names::find_or_add(Name*& previous, const uint8_t* key, size_t size, int column) {
    Name* found = previous->next;
    if (!found->is(key, size)) {
        found = probe(key, size);
        if (!found) found = insert(std::string(reinterpret_cast<const char*>(key), size), column);
        previous->next = found;
    }
    previous = found;
    return found;
}

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
        Span payload = pending_;
        if (!is_pending_) {
            const Framer::Next next = framer_.next(payload);
            if (next == Framer::Next::kMore) return State::kMore;
            if (next == Framer::Next::kEnd) return State::kEnd;
        }
        const size_t cost = payload.size() + row_bytes_;
        is_pending_ = rows_ > 0 && bytes_ + cost > kMaxBatchBytes;
        if (is_pending_) {
            pending_ = payload;
            return State::kBatch;
        }
        ++stamp_;
        found_ = 0;
        try {
            decode_record(payload);
        } catch (const BadRecord& error) {
            framer_.refuse(error);
            for (Column& column : columns_)
                if (column.stamp == stamp_) column.take_back(rows_);
            continue;
        }
        if (found_ < columns_.size())
            for (Column& column : columns_)
                if (column.stamp != stamp_) column.append_null();
        ++rows_;
        bytes_ += cost;
    }
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

void Decoder::decode_record(Span payload) {
    if (type_ == RecordType::kByteArray) {
        begin_cell(columns_[0]);
        columns_[0].append_payload(payload);
        return;
    }
    previous_ = features_.first();
    misfits_.clear();
    Field field;
    while (read_field(payload, field)) {
        if (field.is(1, kDelimited)) decode_features(field.bytes);
        if (field.is(2, kDelimited) && type_ == RecordType::kSequenceExample) decode_lists(field.bytes);
    }
    if (!misfits_.empty()) throw misfits_.front().second;
}

Expected::Expected(Names::Name* name, Column* column, Kind kind)
    : name(name), column(column), kind_(kind), name_size_(name->text.size()) {
    uint8_t words[24] = {0x0a, 0, 0x0a, static_cast<uint8_t>(name_size_)}, masks[24] = {0xff, 0, 0xff, 0xff};
    std::memcpy(words + 4, name->text.data(), name_size_);
    std::memset(masks + 4, 0xff, name_size_);
    std::memcpy(words_, words, 24);
    std::memcpy(masks_, masks, 24);
    // The three lengths are 2, 4 and 6 less than what is behind the name. They are at least 1, so nothing is borrowed.
    tail_ = 0x0a00020012ull + (static_cast<uint64_t>(kind) << 19) - (2ull << 8 | 4ull << 24 | 6ull << 40);
    tail_mask_ = column ? 0xffffffffffffull : 0xffffull;
}

// Takes the entries that are as the last records had them; returns where the first other one begins.
inline const uint8_t* Decoder::decode_expected(const uint8_t* at, const uint8_t* end, Names::Name*& previous) {
    size_t taken = 0;
    for (const Expected& expected : expected_) {
        const uint8_t* next = at < end ? expected.take(at, end) : nullptr;
        if (!next) break;
        if (expected.column) {
            expected.column->stamp = stamp_;
            ++found_;
        }
        at = next;
        ++taken;
    }
    if (taken) previous = expected_[taken - 1].name;
    // Where records differ for good, it does not pay to learn from each of them.
    is_learning_ = at < end && (++surprises_ < 32 || surprises_ % 64 == 0);
    if (is_learning_) expected_.erase(expected_.begin() + static_cast<std::ptrdiff_t>(taken), expected_.end());
    return at;
}

void Decoder::expect(Names::Name* name, Column* column, Kind kind) {
    is_learning_ = name->text.size() <= Expected::kMaxName && expected_.size() < 4096;
    for (const Expected& other : expected_)
        if (other.name == name) is_learning_ = false;
    if (is_learning_) expected_.emplace_back(name, column, kind);
}

// An entry as all usual writers make it: 0a KEY 12 FEATURE, the feature's list in one part. False: it is not.
inline bool Decoder::decode_usual_entry(Span entry, Names::Name*& previous) {
    const uint8_t* at = entry.begin;
    if (entry.size() < 4 || at[0] != 0x0a || at[1] >= 0x80) return false;
    const size_t key_size = at[1];
    const uint8_t* key = at + 2;
    if (key_size + 4 > entry.size()) return false;
    at = key + key_size;
    const size_t rest = static_cast<size_t>(entry.end - at);
    const uint64_t word = load_word(at);
    const uint64_t tag_bits = word & 0xff0000;
    // 12 LENGTH TAG LENGTH 0a LENGTH VALUE: one value, or packed ones, all lengths of one byte.
    const uint64_t expected = 0x0a00000012ull | (rest - 2) << 8 | tag_bits | (rest - 4) << 24 | (rest - 6) << 40;
    if (rest >= 6 && rest < 0x80 && (word & 0xffffffffffffull) == expected &&
        (tag_bits == 0x0a0000 || tag_bits == 0x120000 || tag_bits == 0x1a0000)) {
        Names::Name* name = features_.find(previous, key, key_size);
        const Kind kind = static_cast<Kind>(tag_bits >> 19);
        if (name->column < 0) {
            if (is_learning_) expect(name, nullptr, kind);
            return true;
        }
        Column& column = columns_[static_cast<size_t>(name->column)];
        begin_cell(column);
        if (column.append_scalar(kind, {at + 6, entry.end})) {
            if (is_learning_) expect(name, &column, kind);
            return true;
        }
        is_learning_ = false;
        return column.append_usual(kind, {at + 4, entry.end});
    }
    is_learning_ = false;
    uint64_t length;
    if (*at++ != 0x12 || !read_varint(at, entry.end, length) || length != static_cast<size_t>(entry.end - at))
        return false;
    Names::Name* name = features_.find(previous, key, key_size);
    if (name->column < 0) return true;
    Column& column = columns_[static_cast<size_t>(name->column)];
    if (length < 2) return false;
    const uint8_t tag = *at++;
    if (!read_varint(at, entry.end, length) || length != static_cast<size_t>(entry.end - at)) return false;
    if (tag != 0x0a && tag != 0x12 && tag != 0x1a) return false;
    begin_cell(column);
    return column.append_usual(static_cast<Kind>(tag >> 3), {at, entry.end});
}

void Decoder::decode_features(Span features) {
    const uint8_t* at = features.begin;
    const uint8_t* next = at;
    const uint8_t* const end = features.end;
    Names::Name* previous = previous_;
    is_learning_ = false;
    // Only of a record's first Features nothing has been given before.
    if (previous == features_.first()) at = decode_expected(at, end, previous);
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
