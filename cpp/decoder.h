// Records into batches of Arrow columns.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "column.h"
#include "framing.h"
#include "group.h"
#include "names.h"

namespace gridflow {

enum class RecordType { kExample, kSequenceExample, kByteArray };

class Decoder {
public:
    enum class State { kMore, kBatch, kEnd };

    Decoder(std::vector<ColumnSpec> columns, RecordType type, size_t batch_rows, size_t batch_bytes,
            uint64_t max_length, bool skip, bool check_crc);

    Framer& framer() { return framer_; }
    // Decodes what has been committed until a batch is full, more is needed, or the end is reached.
    State decode();
    // Hands over the rows decoded so far.
    ArrayParts take();
    size_t rows() const { return rows_; }

private:
    size_t cost(Span payload) const { return payload.size() + row_bytes_; }
    size_t begin_group();
    void decode_group();
    size_t stamp_columns(size_t entries);
    void append_nulls(size_t rows);
    void decode_record(Span payload, const uint8_t* resumed, size_t entries);
    void decode_message(Span payload);
    void decode_features(Span features);
    void begin_learning();
    __attribute__((always_inline)) bool decode_usual_entry(Span entry, Names::Name*& previous);
    void decode_entry(Span key, const std::vector<Span>& values, Names::Name*& previous);
    void decode_lists(Span lists);
    void begin_cell(Column& column);
    void note_misfit(const BadRecord& error);

    Framer framer_;
    RecordType type_;
    std::vector<Column> columns_;
    Names features_, lists_;
    Names::Name* previous_ = nullptr;
    const uint8_t* resumed_ = nullptr;
    Pattern pattern_;
    Group group_;
    Span ahead_[Group::kMost];  // records that the framer has looked at
    size_t ahead_at_ = 0, ahead_count_ = 0;
    size_t group_size_ = 1, taken_ = 0, surprises_ = 0;
    bool is_surprised_ = true, is_learning_ = false;
    FeatureView scratch_;
    Column* current_ = nullptr;
    std::vector<std::pair<Column*, BadRecord>> misfits_;
    size_t batch_rows_, batch_bytes_, row_bytes_ = 0;
    size_t rows_ = 0, bytes_ = 0, found_ = 0;
    int64_t stamp_ = 0;
    bool is_begun_ = false;
};

}  // namespace gridflow
