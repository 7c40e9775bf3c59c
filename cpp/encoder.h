// Batches of Arrow columns into framed records.
#pragma once

#include <string>
#include <vector>

#include "arrow.h"
#include "column.h"
#include "decoder.h"

namespace gridflow {

class Encoder {
public:
    // Columns are int64, float, double, utf8, binary or null, or lists (of lists) of these with 32-bit offsets.
    Encoder(std::vector<ColumnSpec> columns, RecordType type);

    // Encodes a struct array whose children are the columns. The bytes stay valid until the next call.
    Span encode(const ArrowArray& batch);
    int64_t records() const { return records_; }

private:
    struct Source {
        ColumnSpec spec;
        std::string key;  // 0a LENGTH NAME
        std::vector<uint32_t> bodies;
        // Of numbers that stand alone: all that comes before them, by the bytes they take; and the size of the whole.
        std::string heads[11];
        uint32_t totals[11] = {};
        const ArrowArray* rows = nullptr;    // the column itself
        const ArrowArray* values = nullptr;  // its innermost values

        bool is_number() const {
            return spec.depth == 0 && (spec.type == Physical::kInt64 || spec.type == Physical::kFloat);
        }
    };

    void bind(Source& source, const ArrowArray& column);
    void measure(Source& source, size_t first, size_t count);
    void write(Source& source, size_t first, size_t count);
    void measure_numbers(Source& source, size_t first, size_t count);
    void write_numbers(Source& source, size_t first, size_t count);
    uint64_t measure_lists(const Source& source, size_t row) const;
    uint8_t* write_lists(const Source& source, size_t row, uint8_t* out) const;
    void encode_block(size_t first, size_t count);
    void encode_byte_arrays(size_t first, size_t count);
    [[noreturn]] void fail(const Source& source, size_t row, const char* kind, const char* what) const;

    RecordType type_;
    std::vector<Source> sources_;
    std::vector<uint64_t> features_sizes_, lists_sizes_;
    std::vector<uint8_t*> cursors_;
    Buffer<uint8_t> out_;
    int64_t records_ = 0;
    size_t block_first_ = 0;
};

}  // namespace gridflow
