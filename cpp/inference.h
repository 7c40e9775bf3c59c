// What features a stream of records holds, for the schema that follows from it.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>

#include "decoder.h"

namespace gridflow {

class Inference {
public:
    struct Seen {
        int64_t records = 0;      // that have it, with a kind
        int64_t numbers_at = -1;  // the first record with numbers, and with bytes
        int64_t bytes_at = -1;
        int64_t bytes_offset = -1, numbers_offset = -1;
        bool is_met = false;
        bool has_integers = false, has_floats = false, has_bytes = false;
        bool is_scalar = true;  // every list has one value
        bool is_utf8 = true;
        int64_t size = -1;  // of every list; -2 if they differ
    };
    using Found = std::unordered_map<std::string, Seen>;

    Inference(RecordType type, uint64_t max_length, bool skip, bool check_crc, int64_t limit);

    Framer& framer() { return framer_; }
    // Looks at what has been committed; kEnd also when `limit` records have been seen.
    Decoder::State look();
    Found features() const { return features_.found(); }
    Found lists() const { return lists_.found(); }
    int64_t records() const { return records_; }

private:
    // What was seen of each name, and what the present record has said of it so far: of equal keys the last counts.
    struct Table {
        struct Row {
            std::string name;
            Seen seen;
            int64_t stamp = -1;
            std::vector<Span> values;
        };
        Names names;
        std::deque<Row> rows;
        std::vector<Row*> touched;

        void gather(Span map, int64_t stamp);
        Row& touch(Span key, Names::Name*& previous, int64_t stamp);
        Found found() const;
    };

    void look_at(Span payload);
    void look_at_feature(Seen& seen, const std::vector<Span>& parts);
    void note(Seen& seen, Kind kind, int64_t count);

    Framer framer_;
    RecordType type_;
    int64_t limit_, records_ = 0, stamp_ = 0;
    Table features_, lists_;
    FeatureView scratch_;
};

}  // namespace gridflow
