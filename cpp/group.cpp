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
    using Value = uint64_t;

    explicit Integer(const Expected& entry) : head_(entry) {
        for (size_t size = 1; size <= 8; ++size) {
            Sized& sized = sized_[size - 1];
            for (size_t word = 0; word < kWords; ++word) sized.words[word] = head_.word_for(word, size);
            sized.bits = 0x7f7f7f7f7f7f7f7full >> (64 - 8 * size);
        }
    }

    // Returns where the entry ends, or null if another one is there.
    const uint8_t* read(const uint8_t* at, const uint8_t* end, size_t head_size, uint8_t* out) const {
        const uint8_t* const number = at + head_size;
        const uint64_t word = load_word(number), stops = ~word & 0x8080808080808080ull;
        if (__builtin_expect(!stops, 0)) return read_long(at, end, out);
        const size_t more = static_cast<unsigned>(__builtin_ctzll(stops)) / 8;
        const Sized& sized = sized_[more];
        uint64_t difference = load_word(number - 8) ^ sized.words[kWords - 1];
        for (size_t each = 0; each + 1 < kWords; ++each) difference |= load_word(at + 8 * each) ^ sized.words[each];
        if (difference) return nullptr;
        const Value value = Join::join(word, sized.bits);
        std::memcpy(out, &value, sizeof value);
        return number + more + 1;
    }

private:
    struct alignas(32) Sized {
        uint64_t words[kWords], bits;
    };

    // Numbers of more than eight bytes, as negative ones are.
    __attribute__((noinline)) const uint8_t* read_long(const uint8_t* at, const uint8_t* end, uint8_t* out) const {
        const uint8_t* const number = at + head_.size;
        const uint8_t* behind = number;
        Value value;
        if (!read_varint(behind, end, value) || !head_.is_at(at, static_cast<size_t>(behind - number))) return nullptr;
        std::memcpy(out, &value, sizeof value);
        return behind;
    }

    Head<kWords> head_;
    Sized sized_[8];
};

template <size_t kWords>
class Float {
public:
    using Value = uint32_t;

    explicit Float(const Expected& entry) {
        const Head<kWords> head(entry);
        for (size_t word = 0; word < kWords; ++word) words_[word] = head.word_for(word, sizeof(Value));
    }

    const uint8_t* read(const uint8_t* at, const uint8_t*, size_t head_size, uint8_t* out) const {
        const uint8_t* const number = at + head_size;
        uint64_t difference = load_word(number - 8) ^ words_[kWords - 1];
        for (size_t word = 0; word + 1 < kWords; ++word) difference |= load_word(at + 8 * word) ^ words_[word];
        if (difference) return nullptr;
        std::memcpy(out, number, sizeof(Value));
        return number + sizeof(Value);
    }

private:
    uint64_t words_[kWords];
};

// One or two numbers of one kind that follow each other: what is to be done for each record is shared by them.
template <class Entry>
class Run : public Step {
public:
    explicit Run(const Expected& entry) : first_(entry) { Run::add(entry); }

    bool add(const Expected& entry) override {
        if (entries_.size() == 2 || !is_alike(entry)) return false;
        entries_.emplace_back(entry);
        columns_.push_back(entry.column);
        head_sizes_.push_back(head_size(entry));
        return true;
    }

    size_t take(Group& group, size_t count) const override {
        return entries_.size() == 2 ? take_each<2>(group, count) : take_each<1>(group, count);
    }

private:
    // More than two do not make it faster, and would need more slack.
    static_assert(2 * (kMaxHead + 10) + kMaxHead + 8 <= Framer::kSlack);
    using Value = typename Entry::Value;

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
            const uint8_t* const end = group.end[record];
            for (size_t each = 0; at && each < kEntries; ++each)
                at = entries[each].read(at, end, head_sizes[each], out[each] + sizeof(Value) * record);
            // It may be behind the end only now: until here the slack, or the next record, was read.
            if (!at || at > end) break;
            group.at[record] = at;
        }
        for (size_t each = 0; each < kEntries; ++each) columns_[each]->close(count, record);
        return record;
    }

    bool is_alike(const Expected& entry) const {
        return entry.column && entry.kind == first_.kind && head_words(entry) == head_words(first_);
    }

    const Expected first_;
    std::vector<Entry> entries_;
    std::vector<Column*> columns_;
    std::vector<size_t> head_sizes_;
};

// A window on these, from `size` bytes before their middle on, has the highest bit of so many bytes.
constexpr std::array<uint8_t, 2 * kShortString> make_high_bits() {
    std::array<uint8_t, 2 * kShortString> bytes{};
    for (size_t at = 0; at < kShortString; ++at) bytes[at] = 0x80;
    return bytes;
}
constexpr auto kHighBits = make_high_bits();

// False also where a string is too long to tell in a moment.
inline bool is_short_ascii(const uint8_t* at, size_t size) {
    if (size > kShortString) return false;
    const uint8_t* bits = kHighBits.data() + kShortString - size;
    uint64_t high = 0;
    for (size_t word = 0; word < kShortString; word += 8) high |= load_word(at + word) & load_word(bits + word);
    return !high;
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
            if (size > head.max_value_size() || end > group.end[record] || !head.is_at(at, size)) break;
            if (kIsText && !is_short_ascii(value, size) && !is_text({value, end})) break;
            copy_string(out.data + out.size, {value, end});
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
            if (size > head.max_value_size() || end > group.end[record] || !head.is_at(at, size)) break;
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
    if (entry.kind == Kind::kFloat) return std::make_unique<Run<Float<kWords>>>(entry);
    if (entry.kind == Kind::kBytes) {
        if (entry.column->spec().type == Physical::kUtf8) return std::make_unique<Strings<kWords, true>>(entry);
        return std::make_unique<Strings<kWords, false>>(entry);
    }
#if defined(__x86_64__)
    if (kCanExtract) return std::make_unique<Run<Integer<kWords, Extract>>>(entry);
#endif
    return std::make_unique<Run<Integer<kWords, Shift>>>(entry);
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
        if (group.at[record] != payloads[record].end) taken = {record, entries_.size()};
    // Of the records behind the one that differs, take back what was taken.
    if (taken.records + 1 >= count) return taken;
    for (size_t entry = 0; entry < taken.entries; ++entry)
        if (entries_[entry].column) entries_[entry].column->take_back(rows + taken.records + 1);
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
