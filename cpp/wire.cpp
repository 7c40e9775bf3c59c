#include "wire.h"

namespace gridflow {
namespace {

constexpr int kMaxDepth = 100;

// Tags and lengths have five bytes at most.
bool read_small(const uint8_t*& at, const uint8_t* end, uint64_t& value) {
    const uint8_t* limit = end - at > 5 ? at + 5 : end;
    return read_varint(at, limit, value);
}

bool read_tag(Span& message, Field& field) {
    uint64_t tag;
    if (!read_small(message.begin, message.end, tag) || tag > UINT32_MAX) bad_message("a tag is cut or too long");
    field.number = static_cast<uint32_t>(tag >> 3);
    field.wire = static_cast<uint32_t>(tag & 7);
    if (field.number == 0) bad_message("a field has the number 0");
    return true;
}

void read_value(Span& message, Field& field, int depth);

void skip_group(Span& message, uint32_t number, int depth) {
    if (depth >= kMaxDepth) bad_message("groups are nested too deeply");
    Field field;
    while (!message.empty()) {
        read_tag(message, field);
        if (field.wire == kEndGroup) {
            if (field.number != number) bad_message("a group ends that did not begin");
            return;
        }
        read_value(message, field, depth + 1);
    }
    bad_message("a group does not end");
}

void read_value(Span& message, Field& field, int depth) {
    size_t size = 0;
    switch (field.wire) {
        case kVarint:
            if (!read_varint(message.begin, message.end, field.value)) bad_message("an integer is cut or too long");
            return;
        case kFixed64:
            size = 8;
            break;
        case kFixed32:
            size = 4;
            break;
        case kDelimited: {
            uint64_t length;
            if (!read_small(message.begin, message.end, length)) bad_message("a length is cut or too long");
            if (length > message.size()) bad_message("a field is longer than what is around it");
            size = static_cast<size_t>(length);
            break;
        }
        case kGroup:
            skip_group(message, field.number, depth);
            return;
        default:
            bad_message("a field is of no known wire type");
    }
    if (size > message.size()) bad_message("a field is cut");
    field.bytes = {message.begin, message.begin + size};
    message.begin += size;
}

}  // namespace

bool read_field(Span& message, Field& field) {
    if (message.empty()) return false;
    read_tag(message, field);
    read_value(message, field, 0);
    return true;
}

bool is_utf8(Span bytes) {
    const uint8_t* at = bytes.begin;
    const uint8_t* end = bytes.end;
    while (at < end) {
        if (end - at >= 8 && !(load_word(at) & 0x8080808080808080ull)) {
            at += 8;
            continue;
        }
        const uint8_t lead = *at++;
        if (lead < 0x80) continue;
        int more;
        uint8_t low = 0x80, high = 0xbf;  // of the second byte
        if (lead >= 0xc2 && lead <= 0xdf) {
            more = 1;
        } else if (lead >= 0xe0 && lead <= 0xef) {
            more = 2;
            if (lead == 0xe0) low = 0xa0;
            if (lead == 0xed) high = 0x9f;
        } else if (lead >= 0xf0 && lead <= 0xf4) {
            more = 3;
            if (lead == 0xf0) low = 0x90;
            if (lead == 0xf4) high = 0x8f;
        } else {
            return false;
        }
        if (end - at < more || *at < low || *at > high) return false;
        for (int i = 1; i < more; ++i)
            if ((at[i] & 0xc0) != 0x80) return false;
        at += more;
    }
    return true;
}

void FeatureView::merge(Span feature) {
    Field field;
    while (read_field(feature, field)) {
        if (field.wire != kDelimited || field.number > 3) continue;
        const Kind found = static_cast<Kind>(field.number);
        if (found != kind) parts.clear();
        kind = found;
        parts.push_back(field.bytes);
    }
}

size_t FeatureView::count() const {
    size_t values = 0;
    for (const Span& part : parts) {
        if (kind == Kind::kInt64) each_int64(part, [&](int64_t) { ++values; });
        if (kind == Kind::kFloat) each_float(part, [&](float) { ++values; });
        if (kind == Kind::kBytes) each_bytes(part, [&](Span) { ++values; });
    }
    return values;
}

}  // namespace gridflow
