// The Arrow C data and stream interfaces, as specified, and buffers that can be handed over through them.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blocks.h"

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE
#define ARROW_FLAG_NULLABLE 2

extern "C" {
struct ArrowSchema {
    const char* format;
    const char* name;
    const char* metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema** children;
    struct ArrowSchema* dictionary;
    void (*release)(struct ArrowSchema*);
    void* private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void** buffers;
    struct ArrowArray** children;
    struct ArrowArray* dictionary;
    void (*release)(struct ArrowArray*);
    void* private_data;
};
}
#endif  // ARROW_C_DATA_INTERFACE

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE
extern "C" {
struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream*, struct ArrowSchema* out);
    int (*get_next)(struct ArrowArrayStream*, struct ArrowArray* out);
    const char* (*get_last_error)(struct ArrowArrayStream*);
    void (*release)(struct ArrowArrayStream*);
    void* private_data;
};
}
#endif  // ARROW_C_STREAM_INTERFACE

namespace gridflow {

// A growing array of plain values whose memory can be given away.
template <class T>
class Buffer {
public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Buffer(Buffer&& other) noexcept : data_(other.data_), size_(other.size_), capacity_(other.capacity_) {
        other.data_ = nullptr;
        other.size_ = other.capacity_ = 0;
    }
    ~Buffer() { give_back_block(data_); }

    T* data() { return data_; }
    size_t size() const { return size_; }
    size_t capacity() const { return capacity_; }
    T& operator[](size_t index) { return data_[index]; }
    void resize(size_t size) {
        reserve(size);
        size_ = size;
    }
    void reserve(size_t size) {
        if (size > capacity_) grow(size);
    }
    // Makes room for `count` values and returns where they go.
    T* extend(size_t count) {
        if (size_ + count > capacity_) grow(size_ + count);
        T* at = data_ + size_;
        size_ += count;
        return at;
    }
    void push(T value) { *extend(1) = value; }
    void* release() {
        void* data = data_;
        data_ = nullptr;
        size_ = capacity_ = 0;
        return data;
    }

private:
    __attribute__((noinline)) void grow(size_t size) {
        size_t wanted = 2 * capacity_ > size ? 2 * capacity_ : size;
        if (wanted < 64) wanted = 64;
        data_ = static_cast<T*>(grow_block(data_, size_ * sizeof(T), wanted * sizeof(T)));
        capacity_ = wanted;
    }

    T* data_ = nullptr;
    size_t size_ = 0, capacity_ = 0;
};

// One array on its way out; `make_array` turns the tree into the C structure, which then owns the buffers.
struct ArrayParts {
    std::string format, name;
    int64_t length = 0, null_count = 0;
    std::vector<void*> buffers;  // grown blocks; the first is the validity bitmap
    std::vector<ArrayParts> children;
};

void make_array(ArrayParts&& parts, ArrowArray* out);
void make_schema(const ArrayParts& parts, ArrowSchema* out);

}  // namespace gridflow
