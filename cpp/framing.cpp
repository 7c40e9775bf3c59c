#include "framing.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "crc32c.h"

namespace gridflow {
namespace {

constexpr size_t kHeader = 12, kFooter = 4;
// A header whose checksum is wrong is waited for if its length is no more than this: only the checksum may be damaged.
constexpr uint64_t kPatience = 16 << 20;
// Records are looked at ahead only as far as the nearest cache holds them until they are used; large ones gain nothing.
constexpr size_t kAhead = 24 << 10, kLarge = 1 << 10;

uint64_t load64(const uint8_t* at) {
    uint64_t value;
    std::memcpy(&value, at, 8);
    return value;
}

uint32_t load32(const uint8_t* at) {
    uint32_t value;
    std::memcpy(&value, at, 4);
    return value;
}

bool is_header(const uint8_t* at) { return masked(crc32c(at, 8)) == load32(at + 8); }

bool is_data(const uint8_t* at, size_t length) { return masked(crc32c(at, length)) == load32(at + length); }

}  // namespace

Framer::Framer(uint64_t max_length, bool skip, bool check_crc)
    : max_length_(max_length < kMaxLength ? max_length : kMaxLength), skip_(skip), check_crc_(check_crc) {}

Framer::~Framer() { std::free(buffer_); }

uint8_t* Framer::reserve(size_t size) {
    if (begin_ > 0) {
        if (end_ > begin_) std::memmove(buffer_, buffer_ + begin_, end_ - begin_);
        end_ -= begin_;
        begin_ = 0;
    }
    const size_t wanted = end_ + size + kSlack;
    if (wanted > capacity_) {
        const size_t grown = wanted > 2 * capacity_ ? wanted : 2 * capacity_;
        void* moved = std::realloc(buffer_, grown);
        if (!moved) throw std::bad_alloc();
        buffer_ = static_cast<uint8_t*>(moved);
        capacity_ = grown;
    }
    return buffer_ + end_;
}

void Framer::commit(size_t size) {
    end_ += size;
    std::memset(buffer_ + end_, 0, kSlack);
}

void Framer::abandon() {
    ++lost_;
    lost_bytes_ += static_cast<int64_t>(end_ - begin_);
    advance(end_ - begin_);
    is_last_ = true;
    is_lost_ = false;
}

void Framer::lose(const char* kind, const char* message) {
    if (!skip_) throw RecordError{kind, record_, offset_, message};
    ++lost_;
}

void Framer::refuse(const BadRecord& error) {
    if (!skip_) throw RecordError{error.kind, record_ - 1, last_offset_, error.message};
    ++lost_;
    lost_bytes_ += offset_ - last_offset_;
}

inline bool Framer::is_sound(size_t place, Span& payload) const {
    const uint8_t* at = buffer_ + place;
    const size_t available = end_ - place;
    if (available < kHeader) return false;
    const uint64_t length = load64(at);
    if (length > max_length_ || length + kHeader + kFooter > available) return false;
    payload = {at + kHeader, at + kHeader + length};
    return !check_crc_ || (is_header(at) && is_data(payload.begin, length));
}

// Finds the next sound record, behind any damage.
inline Framer::Next Framer::find(Span& payload) {
    while (is_lost_ || !is_sound(begin_, payload)) {
        if (is_lost_) {
            const Next next = resynchronise();
            if (next != Next::kRecord) return next;
        } else if (!pass_damage()) {
            return is_last_ ? Next::kEnd : Next::kMore;
        }
    }
    return Next::kRecord;
}

Framer::Next Framer::next(Span& payload) {
    const Next next = find(payload);
    if (next == Next::kRecord) {
        last_offset_ = offset_;
        advance(payload.size() + kHeader + kFooter);
        ++record_;
    }
    return next;
}

Framer::Next Framer::look_ahead(Span* payloads, size_t& count) {
    const Next next = find(payloads[0]);
    if (next != Next::kRecord) return next;
    size_t found = 1;
    for (const size_t most = count; found < most; ++found) {
        const size_t place = static_cast<size_t>(payloads[found - 1].end - buffer_) + kFooter;
        if (place - begin_ > kAhead || payloads[found - 1].size() > kLarge) break;
        if (!is_sound(place, payloads[found])) break;
    }
    count = found;
    return next;
}

void Framer::take(Span payload, size_t count) {
    last_offset_ = offset_ + (payload.begin - (buffer_ + begin_)) - static_cast<int64_t>(kHeader);
    advance(static_cast<size_t>(payload.end - buffer_) + kFooter - begin_);
    record_ += static_cast<int64_t>(count);
}

// Passes over what stands in place of the next record; false if there is nothing, or more has to come to tell.
bool Framer::pass_damage() {
    const size_t available = end_ - begin_;
    const uint8_t* at = buffer_ + begin_;
    if (available < kHeader) {
        if (!is_last_ || available == 0) return false;
        lose("cut", "the file ends inside the header of a record");
        lost_bytes_ += static_cast<int64_t>(available);
        advance(available);
        return true;
    }
    const uint64_t length = load64(at);
    const bool is_whole = length <= max_length_ && length + kHeader + kFooter <= available;
    const bool is_length_right = !check_crc_ || is_header(at);
    const bool may_be_whole = is_length_right ? length <= max_length_ : skip_ && length <= kPatience;
    if (!is_whole && !is_last_ && may_be_whole) return false;
    if (!is_length_right) {
        lose("length-crc", "the checksum of the record's length is wrong");
    } else if (length > max_length_) {
        lose("length", "the record is said to be longer than any record may be");
    } else if (!is_whole) {
        lose("cut", "the file ends inside a record");
    } else {
        lose("data-crc", "the checksum of the record's data is wrong");
    }
    is_lost_ = !is_whole || (!is_length_right && !is_data(at + kHeader, length));
    if (!is_lost_) {
        lost_bytes_ += static_cast<int64_t>(length + kHeader + kFooter);
        advance(length + kHeader + kFooter);
        ++record_;
    }
    return true;
}

// Looks byte by byte for a record whose two checksums are right. The damage itself has been counted.
Framer::Next Framer::resynchronise() {
    size_t place = begin_ + 1;
    for (; place + kHeader <= end_; ++place) {
        const uint8_t* at = buffer_ + place;
        const uint64_t length = load64(at);
        if (length > max_length_ || !is_header(at)) continue;
        if (length + kHeader + kFooter > end_ - place) {
            if (is_last_) continue;
            break;
        }
        if (!is_data(at + kHeader, length)) continue;
        lost_bytes_ += static_cast<int64_t>(place - begin_);
        advance(place - begin_);
        is_lost_ = false;
        ++record_;
        return Next::kRecord;
    }
    // What has been looked at is given up, but for one byte that stands for the place before the next to look at.
    const size_t looked_at = (is_last_ ? end_ : place - 1) - begin_;
    lost_bytes_ += static_cast<int64_t>(looked_at);
    advance(looked_at);
    if (!is_last_) return Next::kMore;
    is_lost_ = false;
    return Next::kEnd;
}

}  // namespace gridflow
