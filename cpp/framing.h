// Cuts a stream of bytes into records.
//
//     uint64 length | uint32 masked CRC of length | byte data[length] | uint32 masked CRC of data     (little endian)
//
// The stream comes in pieces: ask for room with `reserve`, fill it, `commit`, then take records with `next` until it
// asks for more. Memory grows with the bytes that have come, never with a length that some header claims.
#pragma once

#include <cstddef>
#include <cstdint>

#include "error.h"

namespace gridflow {

struct Span {
    const uint8_t* begin;
    const uint8_t* end;
    size_t size() const { return static_cast<size_t>(end - begin); }
    bool empty() const { return begin == end; }
};

class Framer {
public:
    enum class Next { kRecord, kMore, kEnd };

    static constexpr uint64_t kMaxLength = (1ull << 31) - 32;
    // Readable zeros behind the last byte, so that decoders may load whole words, and see late that a record has ended.
    static constexpr size_t kSlack = 512;

    Framer(uint64_t max_length, bool skip, bool check_crc);
    ~Framer();
    Framer(const Framer&) = delete;
    Framer& operator=(const Framer&) = delete;

    uint8_t* reserve(size_t size);
    void commit(size_t size);
    // No more bytes will come.
    void finish() { is_last_ = true; }
    // Gives up what is left of the stream, because of a damage below the framing.
    void abandon();

    // Throws RecordError, or in skip mode counts the damage and goes on at the next sound record.
    Next next(Span& payload);
    // Like `next`, but of up to `count` records, and without taking them; `count` becomes how many were found. Those
    // behind a damage, or behind some kilobytes, are for another call.
    Next look_ahead(Span* payloads, size_t& count);
    // Takes records that have been looked at, the last of which is `payload`.
    void take(Span payload, size_t count);
    // Counts the record taken last as lost, in skip mode; else throws.
    void refuse(const BadRecord& error);

    int64_t record() const { return record_; }  // the next one
    int64_t offset() const { return offset_; }  // its offset
    int64_t last_offset() const { return last_offset_; }
    int64_t lost() const { return lost_; }
    int64_t lost_bytes() const { return lost_bytes_; }

private:
    void advance(size_t size) {
        begin_ += size;
        offset_ += static_cast<int64_t>(size);
    }
    bool is_sound(size_t place, Span& payload) const;
    Next find(Span& payload);
    bool pass_damage();
    void lose(const char* kind, const char* message);
    Next resynchronise();

    uint8_t* buffer_ = nullptr;
    size_t capacity_ = 0, begin_ = 0, end_ = 0;
    uint64_t max_length_;
    bool skip_, check_crc_, is_last_ = false, is_lost_ = false;
    int64_t record_ = 0, offset_ = 0, last_offset_ = 0, lost_ = 0, lost_bytes_ = 0;
};

}  // namespace gridflow
