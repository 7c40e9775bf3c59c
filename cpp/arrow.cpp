#include "arrow.h"

namespace gridflow {
namespace {

struct ArrayOwner {
    std::vector<void*> buffers;
    std::vector<ArrowArray> children;
    std::vector<ArrowArray*> pointers;
    ~ArrayOwner() {
        for (void* buffer : buffers) give_back_block(buffer);
    }
};

struct SchemaOwner {
    std::string format, name;
    std::vector<ArrowSchema> children;
    std::vector<ArrowSchema*> pointers;
};

template <class Structure, class Owner>
void release(Structure* structure) {
    // A consumer may have moved a child out, which it then releases itself.
    for (int64_t child = 0; child < structure->n_children; ++child)
        if (structure->children[child]->release) structure->children[child]->release(structure->children[child]);
    delete static_cast<Owner*>(structure->private_data);
    structure->release = nullptr;
}

}  // namespace

void make_array(ArrayParts&& parts, ArrowArray* out) {
    auto owner = std::make_unique<ArrayOwner>();
    owner->children.resize(parts.children.size());
    owner->pointers.resize(parts.children.size());
    for (size_t child = 0; child < parts.children.size(); ++child) {
        make_array(std::move(parts.children[child]), &owner->children[child]);
        owner->pointers[child] = &owner->children[child];
    }
    owner->buffers = std::move(parts.buffers);
    *out = {};
    out->length = parts.length;
    out->null_count = parts.null_count;
    out->n_buffers = static_cast<int64_t>(owner->buffers.size());
    out->n_children = static_cast<int64_t>(owner->children.size());
    out->buffers = const_cast<const void**>(owner->buffers.data());
    out->children = owner->pointers.data();
    out->release = release<ArrowArray, ArrayOwner>;
    out->private_data = owner.release();
}

void make_schema(const ArrayParts& parts, ArrowSchema* out) {
    auto owner = std::make_unique<SchemaOwner>();
    owner->format = parts.format;
    owner->name = parts.name;
    owner->children.resize(parts.children.size());
    owner->pointers.resize(parts.children.size());
    for (size_t child = 0; child < parts.children.size(); ++child) {
        make_schema(parts.children[child], &owner->children[child]);
        owner->pointers[child] = &owner->children[child];
    }
    *out = {};
    out->format = owner->format.c_str();
    out->name = owner->name.c_str();
    out->flags = ARROW_FLAG_NULLABLE;
    out->n_children = static_cast<int64_t>(owner->children.size());
    out->children = owner->pointers.data();
    out->release = release<ArrowSchema, SchemaOwner>;
    out->private_data = owner.release();
}

}  // namespace gridflow
