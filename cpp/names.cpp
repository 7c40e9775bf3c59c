#include "names.h"

namespace gridflow {
namespace {

void set_words(Names::Name& name) {
    uint8_t padded[16] = {};
    std::memcpy(padded, name.text.data(), name.text.size() < 16 ? name.text.size() : 16);
    uint8_t mask[16] = {};
    std::memset(mask, 0xff, name.text.size() < 16 ? name.text.size() : 16);
    std::memcpy(name.words, padded, 16);
    std::memcpy(name.masks, mask, 16);
}

}  // namespace

Names::Names() {
    stranger_.column = -1;
    // No key is equal to it.
    stranger_.text = std::string(1 << 10, '\xff');
    set_words(stranger_);
    stranger_.next = &stranger_;
    before_first_.column = -1;
    before_first_.next = &stranger_;
    slots_.assign(64, nullptr);
}

size_t Names::slot(const uint8_t* key, size_t size) const {
    uint64_t hash = size * 0x9e3779b97f4a7c15ull;
    size_t at = 0;
    for (; at + 8 <= size; at += 8) hash = (hash ^ load_word(key + at)) * 0xff51afd7ed558ccdull, hash ^= hash >> 32;
    if (at < size) hash = (hash ^ (load_word(key + at) << (64 - 8 * (size - at)))) * 0xff51afd7ed558ccdull;
    return static_cast<size_t>(hash ^ (hash >> 29)) & (slots_.size() - 1);
}

Names::Name* Names::insert(const std::string& text, int column) {
    names_.push_back(Name{text, {}, {}, column, &stranger_});
    set_words(names_.back());
    if (names_.size() * 2 > slots_.size()) {
        slots_.assign(slots_.size() * 2, nullptr);
        for (Name& name : names_) place(name);
    } else {
        place(names_.back());
    }
    return &names_.back();
}

void Names::place(Name& name) {
    // Keys are loaded as whole words.
    const std::string padded = name.text + std::string(8, '\0');
    size_t at = slot(reinterpret_cast<const uint8_t*>(padded.data()), name.text.size());
    while (slots_[at]) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = &name;
}

void Names::add(const std::string& text, int column) { insert(text, column); }

Names::Name* Names::probe(const uint8_t* key, size_t size) {
    for (size_t at = slot(key, size); slots_[at]; at = (at + 1) & (slots_.size() - 1)) {
        if (slots_[at]->is(key, size)) return slots_[at];
    }
    return nullptr;
}

Names::Name* Names::look_up(const uint8_t* key, size_t size) {
    if (Name* known = probe(key, size)) return known;
    if (!is_utf8({key, key + size})) bad_message("a feature's name is not UTF-8");
    if (learned_ >= kMaxLearned || size > 1000) return &stranger_;
    ++learned_;
    return insert(std::string(reinterpret_cast<const char*>(key), size), -1);
}

Names::Name* Names::find_or_add(Name*& previous, const uint8_t* key, size_t size, int column) {
    Name* found = previous->next;
    if (!found->is(key, size)) {
        found = probe(key, size);
        if (!found) found = insert(std::string(reinterpret_cast<const char*>(key), size), column);
        previous->next = found;
    }
    previous = found;
    return found;
}

}  // namespace gridflow
