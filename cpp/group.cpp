#include "group.h"

#include <array>

namespace gridflow {
namespace {

// Short scalars, as usual writers encode them, each length in one byte:
//
//     0a ENTRY 0a SIZE key… 12 FEATURE TAG LIST 0a VALUE value…
//
// Whether one is there is a comparison of its head, the bytes before the value: the lengths follow from each other.
constexpr size_t kMaxHead = 32;
using HeadBytes = std::array<uint8_t, kMaxHead>;

size_t head_size(const Expected& entry) { return entry.name->text.size() + 10; }

// Of what nobody asked for, only the frame has to be right: all up to FEATURE.
size_t compared_size(const Expected& entry) { return head_size(entry) - (entry.column ? 0 : 4); }

// How many words there are to compare; 0 if the entry is not, or cannot be, one of the short scalars.
size_t head_words(const Expected& entry) {
    const size_t compared = compared_size(entry);
    return entry.is_short && compared >= 8 && head_size(entry) <= kMaxHead ? (compared + 7) / 8 : 0;
}

HeadBytes make_head(const Expected& entry, size_t value_size) {
    HeadBytes bytes{};
    const std::string& key = entry.name->text;
    const size_t kind = static_cast<size_t>(entry.kind);
    const size_t before[] = {0x0a, key.size() + value_size + 8, 0x0a, key.size()};
    const size_t behind[] = {0x12, value_size + 4, kind << 3 | 2, value_size + 2, 0x0a, value_size};
    uint8_t* out = bytes.data();
    for (size_t byte : before) *out++ = static_cast<uint8_t>(byte);
    for (char byte : key) *out++ = static_cast<uint8_t>(byte);
    for (size_t byte : behind) *out++ = static_cast<uint8_t>(byte);
    return bytes;
}

// A head as words that stay in registers. The last one ends with the head, so it overlaps the one before it.
template <size_t kWords>
struct Head {
    explicit Head(const Expected& entry) : size(head_size(entry)), last(compared_size(entry) - 8) {
        const HeadBytes empty = make_head(entry, 0), longer = make_head(entry, 1);
        for (size_t word = 0; word < kWords; ++word) {
            const size_t at = word + 1 < kWords ? 8 * word : last;
            words[word] = load_word(empty.data() + at);
            lengths[word] = load_word(longer.data() + at) - words[word];
        }
    }
    size_t value_size(const uint8_t* at) const { return at[1] + size_t{2} - size; }
    size_t max_value_size() const { return 0x7f + size_t{2} - size; }
    uint64_t word_for(size_t word, size_t value_size) const { return words[word] + value_size * lengths[word]; }
    bool is_at(const uint8_t* at, size_t value_size) const {
        uint64_t difference = load_word(at + last) ^ word_for(kWords - 1, value_size);
        for (size_t word = 0; word + 1 < kWords; ++word)
            difference |= load_word(at + 8 * word) ^ word_for(word, value_size);
        return !difference;
    }

    size_t size, last;
    uint64_t words[kWords], lengths[kWords];
};

using Vector = uint64_t __attribute__((vector_size(16)));

size_t head_vectors(const Expected& entry) { return head_words(entry) ? (head_size(entry) + 15) / 16 : 0; }

inline Vector load_vector(const uint8_t* at) {
    Vector vector;
    std::memcpy(&vector, at, sizeof vector);
    return vector;
}

// Two ways to put the bits of a varint together.
struct Shift {
    static uint64_t join(uint64_t word, uint64_t bits) { return join_varint(word & bits); }
};

#if defined(__x86_64__)
struct Extract {
    static uint64_t join(uint64_t word, uint64_t bits) {
        uint64_t value;
        __asm__("pext %2, %1, %0" : "=r"(value) : "r"(word), "rm"(bits));
        return value;
    }
};

bool can_extract() {
    __builtin_cpu_init();
    // There it is slower than shifting.
    const bool is_slow = __builtin_cpu_is("amdfam15h") || __builtin_cpu_is("znver1") || __builtin_cpu_is("znver2");
    return __builtin_cpu_supports("bmi2") && !is_slow;
}
const bool kCanExtract = can_extract();
#endif

// An integer's head and, for each number of bytes it may have, the head's words and the bits of the value.
template <size_t kWords, class Join>
class Integer {
public:
    explicit Integer(const Expected& entry) : head_(entry) {
        for (size_t size = 1; size <= 8; ++size) {
            Sized& sized = sized_[size - 1];
            for (size_t word = 0; word < kWords; ++word) sized.words[word] = head_.word_for(word, size);
            sized.bits = 0x7f7f7f7f7f7f7f7full >> (64 - 8 * size);
        }
    }

    // Reads the entry and goes behind it; false if another one is there.
    bool read(const uint8_t*& at, const uint8_t* const* end, size_t head_size, uint8_t* out) const {
        const uint8_t* const number = at + head_size;
        const uint64_t word = load_word(number), stops = ~word & 0x8080808080808080ull;
        if (__builtin_expect(!stops, 0)) {
            const uint8_t* const behind = read_long(at, *end, out);
            if (behind) at = behind;
            return behind;
        }
        const size_t more = static_cast<unsigned>(__builtin_ctzll(stops)) / 8;
        const Sized& sized = sized_[more];
        uint64_t difference = load_word(number - 8) ^ sized.words[kWords - 1];
        for (size_t each = 0; each + 1 < kWords; ++each) difference |= load_word(at + 8 * each) ^ sized.words[each];
        if (difference) return false;
        const uint64_t value = Join::join(word, sized.bits);
        std::memcpy(out, &value, sizeof value);
        at = number + more + 1;
        return true;
    }

private:
    struct alignas(32) Sized {
        uint64_t words[kWords], bits;
    };

    // Numbers of more than eight bytes, as negative ones are.
    __attribute__((noinline)) const uint8_t* read_long(const uint8_t* at, const uint8_t* end, uint8_t* out) const {
        const uint8_t* const number = at + head_.size;
        const uint8_t* behind = number;
        uint64_t value;
        if (!read_varint(behind, end, value) || !head_.is_at(at, static_cast<size_t>(behind - number))) return nullptr;
        std::memcpy(out, &value, sizeof value);
        return behind;
    }

    Head<kWords> head_;
    Sized sized_[8];
};

// One or two integers that follow each other: what is to be done for each record is shared by them.
template <size_t kWords, class Join>
class Integers : public Step {
public:
    explicit Integers(const Expected& entry) { Integers::add(entry); }

    bool add(const Expected& entry) override {
        // More than two do not make it faster.
        if (entries_.size() == 2) return false;
        if (!entry.column || entry.kind != Kind::kInt64 || head_words(entry) != kWords) return false;
        entries_.emplace_back(entry);
        columns_.push_back(entry.column);
        head_sizes_.push_back(head_size(entry));
        return true;
    }

    size_t take(Group& group, size_t count) const override {
        return entries_.size() == 2 ? take_each<2>(group, count) : take_each<1>(group, count);
    }

private:
    using Entry = Integer<kWords, Join>;

    template <size_t kEntries>
    size_t take_each(Group& group, size_t count) const {
        const Entry* const entries = entries_.data();
        uint8_t* out[kEntries];
        size_t head_sizes[kEntries];
        for (size_t each = 0; each < kEntries; ++each) {
            out[each] = columns_[each]->open(count);
            head_sizes[each] = head_sizes_[each];
        }
        size_t record = 0;
        for (; record < count; ++record) {
            const uint8_t* at = group.at[record];
            bool is_there = true;
            for (size_t each = 0; is_there && each < kEntries; ++each)
                is_there = entries[each].read(at, group.end + record, head_sizes[each], out[each] + 8 * record);
            if (!is_there) break;
            group.at[record] = at;
        }
        for (size_t each = 0; each < kEntries; ++each) columns_[each]->close(count, record);
        return record;
    }

    std::vector<Entry> entries_;
    std::vector<Column*> columns_;
    std::vector<size_t> head_sizes_;
};

// One or two floats that follow each other: their sizes are known, so that they are compared as one piece.
template <size_t kVectors>
class Floats : public Step {
public:
    explicit Floats(const Expected& entry) { Floats::add(entry); }

    bool add(const Expected& entry) override {
        if (count_ == kMost) return false;
        if (!entry.column || entry.kind != Kind::kFloat || head_vectors(entry) != kVectors) return false;
        const HeadBytes head = make_head(entry, sizeof(float));
        HeadBytes mask{};
        std::memset(mask.data(), 0xff, head_size(entry));
        Entry& added = entries_[count_];
        added.first = size_;
        added.value = size_ + head_size(entry);
        added.mask = load_vector(mask.data());
        added.head[0] = load_vector(head.data());
        if (kVectors > 1) added.head[kVectors - 1] = load_vector(head.data() + head_size(entry) - sizeof(Vector));
        size_ = added.value + sizeof(float);
        columns_[count_++] = entry.column;
        return true;
    }

    size_t take(Group& group, size_t count) const override {
        return count_ == 2 ? take_each<2>(group, count) : take_each<1>(group, count);
    }

private:
    static constexpr size_t kMost = 2;
    // Nothing looks like an entry in the slack, so this begins at most where a value ends that began before it.
    static_assert(0x7f + kMost * (kMaxHead + sizeof(float)) + sizeof(Vector) <= Framer::kSlack);
    struct Entry {
        size_t first, value;          // where its head and its value begin
        Vector mask, head[kVectors];  // the last one ends with the head
    };

    template <size_t kEntries>
    size_t take_each(Group& group, size_t count) const {
        Entry entries[kEntries];
        uint8_t* out[kEntries];
        for (size_t each = 0; each < kEntries; ++each) {
            entries[each] = entries_[each];
            out[each] = columns_[each]->open(count);
        }
        const size_t size = size_;
        size_t record = 0;
        for (; record < count; ++record) {
            const uint8_t* const at = group.at[record];
            Vector difference{};
            for (size_t each = 0; each < kEntries; ++each) {
                const Entry& entry = entries[each];
                const uint8_t* const value = at + entry.value;
                difference |= (load_vector(at + entry.first) ^ entry.head[0]) & entry.mask;
                if (kVectors > 1) difference |= load_vector(value - sizeof(Vector)) ^ entry.head[kVectors - 1];
                std::memcpy(out[each] + sizeof(float) * record, value, sizeof(float));
            }
            if (difference[0] | difference[1]) break;
            group.at[record] = at + size;
        }
        for (size_t each = 0; each < kEntries; ++each) columns_[each]->close(count, record);
        return record;
    }

    Entry entries_[kMost];
    Column* columns_[kMost];
    size_t count_ = 0, size_ = 0;
};

// A window on these, from `size` bytes before their middle on, has the highest bit of so many bytes.
constexpr std::array<uint8_t, 2 * kShortString> make_high_bits() {
    std::array<uint8_t, 2 * kShortString> bytes{};
    for (size_t at = 0; at < kShortString; ++at) bytes[at] = 0x80;
    return bytes;
}
constexpr auto kHighBits = make_high_bits();

// Copies a short string, or the beginning of a longer one. False: not all of it is known to be ASCII.
inline bool copy_ascii(uint8_t* out, const uint8_t* at, size_t size) {
    const Vector low = load_vector(at), high = load_vector(at + sizeof low);
    std::memcpy(out, &low, sizeof low);
    std::memcpy(out + sizeof low, &high, sizeof high);
    if (size > kShortString) return false;
    const uint8_t* const bits = kHighBits.data() + kShortString - size;
    const Vector found = (low & load_vector(bits)) | (high & load_vector(bits + sizeof low));
    return !(found[0] | found[1]);
}

template <size_t kWords, bool kIsText>
class Strings : public Step {
public:
    explicit Strings(const Expected& entry) : column_(*entry.column), head_(entry) {}

    size_t take(Group& group, size_t count) const override {
        const Head<kWords> head = head_;
        Column::OpenStrings out = column_.open_strings(count, head.max_value_size());
        size_t record = 0;
        for (; record < count; ++record) {
            const uint8_t* at = group.at[record];
            const size_t size = head.value_size(at);
            const uint8_t* const value = at + head.size;
            const uint8_t* const end = at + 2 + at[1];
            if (size > head.max_value_size() || !head.is_at(at, size)) break;
            if (!copy_ascii(out.data + out.size, value, size)) {
                if (kIsText && !is_text({value, end})) break;
                std::memcpy(out.data + out.size, value, size);
            }
            out.size += size;
            out.offsets[record] = static_cast<int32_t>(out.size);
            group.at[record] = end;
        }
        column_.close_strings(out, count, record);
        return record;
    }

private:
    Column& column_;
    const Head<kWords> head_;
};

// What nobody asked for.
template <size_t kWords>
class Passed : public Step {
public:
    explicit Passed(const Expected& entry) : head_(entry) {}

    size_t take(Group& group, size_t count) const override {
        const Head<kWords> head = head_;
        size_t record = 0;
        for (; record < count; ++record) {
            const uint8_t* at = group.at[record];
            const size_t size = head.value_size(at);
            const uint8_t* const end = at + 2 + at[1];
            if (size > head.max_value_size() || !head.is_at(at, size)) break;
            group.at[record] = end;
        }
        return record;
    }

private:
    const Head<kWords> head_;
};

// Any usual entry, of any size and type.
class Usual : public Step {
public:
    explicit Usual(const Expected& entry) : name_(*entry.name), column_(entry.column) {}

    size_t take(Group& group, size_t count) const override {
        const size_t rows = column_ ? column_->rows() : 0;
        size_t record = 0;
        try {
            while (record < count && take_one(group.at[record], group.end[record])) ++record;
        } catch (const BadRecord&) {
            // It is found again, and reported, where this record is decoded alone.
            column_->take_back(rows + record);
        }
        return record;
    }

private:
    bool take_one(const uint8_t*& place, const uint8_t* end) const {
        const uint8_t* at = place;
        uint64_t length;
        if (at >= end || *at++ != 0x0a || !read_varint(at, end, length)) return false;
        if (length > static_cast<size_t>(end - at)) return false;
        UsualEntry entry;
        if (!read_usual({at, at + length}, entry) || !name_.is(entry.key.begin, entry.key.size())) return false;
        UsualList list;
        if (column_ && !read_usual(entry.feature, list)) return false;
        if (column_ && !column_->append_usual(list.kind, list.values)) return false;
        place = at + length;
        return true;
    }

    const Names::Name& name_;
    Column* const column_;
};

template <size_t kWords>
std::unique_ptr<Step> make_short(const Expected& entry) {
    if (!entry.column) return std::make_unique<Passed<kWords>>(entry);
    if (entry.kind == Kind::kFloat) return std::make_unique<Floats<kWords <= 2 ? 1 : 2>>(entry);
    if (entry.kind == Kind::kBytes) {
        if (entry.column->spec().type == Physical::kUtf8) return std::make_unique<Strings<kWords, true>>(entry);
        return std::make_unique<Strings<kWords, false>>(entry);
    }
#if defined(__x86_64__)
    if (kCanExtract) return std::make_unique<Integers<kWords, Extract>>(entry);
#endif
    return std::make_unique<Integers<kWords, Shift>>(entry);
}

std::unique_ptr<Step> make_step(const Expected& entry) {
    switch (head_words(entry)) {
        case 0:
            return std::make_unique<Usual>(entry);
        case 1:
            return make_short<1>(entry);
        case 2:
            return make_short<2>(entry);
        case 3:
            return make_short<3>(entry);
        default:
            return make_short<4>(entry);
    }
}

}  // namespace

Pattern::Taken Pattern::take(Group& group, const Span* payloads, size_t count, size_t rows) const {
    Taken taken{count, 0};
    for (const Stage& stage : stages_) {
        if (!taken.records) break;
        const size_t records = stage.step->take(group, taken.records);
        if (records < taken.records) taken = {records, stage.first};
    }
    for (size_t record = 0; record < taken.records; ++record)
        if (group.at[record] != group.end[record] || group.end[record] != payloads[record].end)
            taken = {record, entries_.size()};
    const size_t differs = taken.records;
    if (differs == count) return taken;
    // Take back what was taken of the records behind the one that differs, and of that one too if it was left behind.
    const bool is_beyond = group.at[differs] > group.end[differs];
    const size_t kept = rows + differs + (is_beyond ? 0 : 1);
    for (size_t entry = 0; entry < taken.entries; ++entry) {
        Column* const column = entries_[entry].column;
        if (column && column->rows() > kept) column->take_back(kept);
    }
    if (is_beyond) {
        group.at[differs] = nullptr;
        taken.entries = 0;
    }
    return taken;
}

void Pattern::forget(size_t kept) {
    while (!stages_.empty() && stages_.back().first >= kept) stages_.pop_back();
    for (; entries_.size() > kept; entries_.pop_back())
        if (entries_.back().column) --columns_;
}

bool Pattern::add(const Expected& entry) {
    constexpr size_t kMaxEntries = 4096, kMaxName = 0x7f;
    if (entry.name->text.size() > kMaxName || entries_.size() >= kMaxEntries) return false;
    for (const Expected& other : entries_)
        if (other.name == entry.name) return false;
    if (stages_.empty() || !stages_.back().step->add(entry)) stages_.push_back({entries_.size(), make_step(entry)});
    entries_.push_back(entry);
    if (entry.column) ++columns_;
    return true;
}

}  // namespace gridflow
