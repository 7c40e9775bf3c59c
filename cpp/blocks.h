// Memory for the buffers of batches. Large blocks that come back are kept for the next batch: memory that is fresh from
// the kernel costs a page fault for every 4 kB, which is more than to fill it.
#pragma once

#include <cstddef>

namespace gridflow {

// Like realloc, and from the same heap.
void* grow_block(void* block, size_t used, size_t size);
// Like free.
void give_back_block(void* block);

}  // namespace gridflow
