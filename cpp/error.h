// What the codec throws; `kind` is one of the words listed in tests/tfrecord/golden/README.md.
#pragma once

#include <cstdint>
#include <string>

namespace gridflow {

struct RecordError {
    const char* kind;
    int64_t record;  // from 0
    int64_t offset;  // of the record's header, in the uncompressed bytes
    std::string message;
};

// A record that cannot be used; whoever knows its place turns this into a RecordError.
struct BadRecord {
    const char* kind;
    std::string message;
};

}  // namespace gridflow
