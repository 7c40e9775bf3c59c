#include "blocks.h"

#include <malloc.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

namespace gridflow {
namespace {

// malloc has smaller ones at hand anyway.
constexpr size_t kLarge = 64 << 10;
constexpr size_t kMaxKept = 64, kMaxKeptBytes = 64 << 20;

class Kept {
public:
    // Returns a block of at least `size` bytes, and of not much more; or null.
    void* take(size_t size) {
        const std::lock_guard lock(mutex_);
        size_t best = blocks_.size(), best_size = 2 * size + 1;
        for (size_t at = 0; at < blocks_.size(); ++at) {
            const size_t usable = malloc_usable_size(blocks_[at]);
            if (usable >= size && usable < best_size) {
                best = at;
                best_size = usable;
            }
        }
        if (best == blocks_.size()) return nullptr;
        void* block = blocks_[best];
        blocks_[best] = blocks_.back();
        blocks_.pop_back();
        bytes_ -= best_size;
        return block;
    }

    bool keep(void* block, size_t size) {
        const std::lock_guard lock(mutex_);
        if (blocks_.size() >= kMaxKept || bytes_ + size > kMaxKeptBytes) return false;
        blocks_.push_back(block);
        bytes_ += size;
        return true;
    }

private:
    std::mutex mutex_;
    std::vector<void*> blocks_;
    size_t bytes_ = 0;
};

// Never destroyed: batches may come back while the process ends.
Kept& kept() {
    static Kept& instance = *new Kept;
    return instance;
}

}  // namespace

void* grow_block(void* block, size_t used, size_t size) {
    if (size >= kLarge) {
        if (void* other = kept().take(size)) {
            if (used) std::memcpy(other, block, used);
            give_back_block(block);
            return other;
        }
    }
    void* grown = std::realloc(block, size);
    if (!grown) throw std::bad_alloc();
    return grown;
}

void give_back_block(void* block) {
    if (!block) return;
    const size_t size = malloc_usable_size(block);
    if (size < kLarge || !kept().keep(block, size)) std::free(block);
}

}  // namespace gridflow
