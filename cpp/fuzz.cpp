// Feeds the decoder, the framing and the inference of schemas with whatever libFuzzer makes up, under the sanitizers.
//
// The first byte of an input chooses what is read and how; the rest is a file, which comes in pieces of any size.
// Nothing may crash, and what an array says about itself must be true.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "decoder.h"
#include "inference.h"

using namespace gridflow;

namespace {

using Random = std::mt19937_64;

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "fuzz: %s\n", what);
    std::abort();
}

// Checks offsets and lengths of an array that is handed out.
void check(const ArrowArray& array, const ArrowSchema& schema, int64_t length) {
    require(array.length == length, "an array is not as long as its batch");
    require(array.null_count >= 0 && array.null_count <= array.length, "more nulls than values");
    const std::string format = schema.format;
    if (array.null_count > 0 && format != "n") require(array.buffers[0] != nullptr, "nulls without a bitmap");
    if (format == "u" || format == "z" || format == "+l") {
        const auto* offsets = static_cast<const int32_t*>(array.buffers[1]);
        require(offsets[0] == 0, "offsets do not begin with 0");
        for (int64_t at = 0; at < length; ++at) require(offsets[at] <= offsets[at + 1], "offsets go back");
        if (format == "+l") check(*array.children[0], *schema.children[0], offsets[length]);
        volatile uint8_t last = 0;
        if (format != "+l" && offsets[length] > 0)
            last = static_cast<const uint8_t*>(array.buffers[2])[offsets[length] - 1];
        (void)last;
    }
    if (format.rfind("+w:", 0) == 0)
        check(*array.children[0], *schema.children[0], length * std::atoll(format.c_str() + 3));
    if (format == "+s")
        for (int64_t child = 0; child < array.n_children; ++child)
            check(*array.children[child], *schema.children[child], length);
}

void take(Decoder& decoder) {
    ArrayParts parts = decoder.take();
    ArrowSchema schema;
    ArrowArray array;
    make_schema(parts, &schema);
    make_array(std::move(parts), &array);
    check(array, schema, array.length);
    array.release(&array);
    schema.release(&schema);
}

template <class Reader, class Step>
void feed(Reader& reader, Span bytes, Random& random, Step step) {
    size_t at = 0;
    const size_t piece = 1 + static_cast<size_t>(random() % (bytes.size() + 64));
    try {
        while (true) {
            const Decoder::State state = step();
            if (state == Decoder::State::kEnd) return;
            if (state == Decoder::State::kBatch) continue;
            const size_t size = std::min(piece, bytes.size() - at);
            if (size) std::memcpy(reader.framer().reserve(size), bytes.begin + at, size);
            if (size) reader.framer().commit(size);
            at += size;
            if (!size) reader.framer().finish();
        }
    } catch (const RecordError&) {
    }
}

std::vector<ColumnSpec> random_columns(RecordType type, Random& random) {
    static const char* const kNames[] = {"a", "b", "i", "f", "s", "id", "text", "e", "tags", ""};
    std::vector<ColumnSpec> columns;
    if (type == RecordType::kByteArray) return {{"byteArray", Physical::kBinary, 0, -1, INT64_MIN, INT64_MAX}};
    for (const char* name : kNames) {
        const auto physical = static_cast<Physical>(random() % 9);
        const int depth = static_cast<int>(random() % (type == RecordType::kSequenceExample ? 3 : 2));
        const int64_t fixed = depth == 1 && physical != Physical::kNull && random() % 4 == 0 ? 2 : -1;
        const bool narrow = physical == Physical::kInt32 || physical == Physical::kUInt8;
        if (physical == Physical::kDecimal) {
            columns.push_back({name, physical, depth, fixed, 12, 3});
        } else {
            columns.push_back({name, physical, depth, fixed, narrow ? 0 : INT64_MIN, narrow ? 200 : INT64_MAX});
        }
    }
    return columns;
}

void run_case(Span bytes, Random& random) {
    const auto type = static_cast<RecordType>(random() % 3);
    const bool skip = random() % 2, check_crc = random() % 4 == 0;
    // Few rows for many batches, or many for groups of records.
    const size_t rows = random() % 2 ? 1 + random() % 4 : 200;
    Decoder decoder(random_columns(type, random), type, rows, 1 << 20, 1 << 24, skip, check_crc);
    feed(decoder, bytes, random, [&] {
        const Decoder::State state = decoder.decode();
        if (state != Decoder::State::kMore) take(decoder);
        return state;
    });
    Inference inference(type, 1 << 24, skip, check_crc, -1);
    feed(inference, bytes, random, [&] { return inference.look(); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (!size) return 0;
    Random random(data[0]);
    run_case({data + 1, data + size}, random);
    return 0;
}
