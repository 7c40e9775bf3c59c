// Records that resemble each other, decoded together: entry by entry instead of record by record.
//
// Within a record the place of an entry depends on the sizes of those before it, so a processor waits for each. The
// same entry of many records is many independent places, and what kind of value it has is asked once.
#pragma once

#include <memory>
#include <vector>

#include "column.h"
#include "names.h"

namespace gridflow {

struct Group {
    static constexpr size_t kMost = 64;

    // Where each record's next entry begins. It is not held against `end` until all entries have been taken: what is
    // behind a record may look like them, but then it ends at another place.
    const uint8_t* at[kMost];
    const uint8_t* end[kMost];  // of its features
};

// An entry that records are expected to have.
struct Expected {
    Names::Name* name;
    Column* column;  // null where nobody asked for it
    Kind kind;
    bool is_short;  // a scalar whose entry has less than 128 bytes, or anything of that size that nobody asked for
};

// What takes one expected entry, or some that follow each other.
class Step {
public:
    virtual ~Step() = default;
    // Takes these entries of `count` records, and returns of how many: up to the first that has others.
    virtual size_t take(Group& group, size_t count) const = 0;
    // False: the next entry needs a step of its own.
    virtual bool add(const Expected&) { return false; }
};

// The entries that records are expected to have, in order, as the last ones had them.
class Pattern {
public:
    struct Taken {
        size_t records;  // that had all of these entries, and no other
        size_t entries;  // that the record behind them had
    };

    // Appends what the records have to the columns, which have `rows` before. Of the first record that differs, this is
    // the entries up to the difference, which begins at `group.at`; or somewhat fewer; or none, and `group.at` is null.
    Taken take(Group& group, const Span* payloads, size_t count, size_t rows) const;

    const Expected& operator[](size_t index) const { return entries_[index]; }
    size_t size() const { return entries_.size(); }
    // How many columns the entries are of.
    size_t columns() const { return columns_; }
    // Forgets all but the first entries.
    void forget(size_t kept);
    // False: no entry can be expected behind this one.
    bool add(const Expected& entry);

private:
    struct Stage {
        size_t first;  // of its entries
        std::unique_ptr<Step> step;
    };
    std::vector<Expected> entries_;
    std::vector<Stage> stages_;
    size_t columns_ = 0;
};

}  // namespace gridflow
