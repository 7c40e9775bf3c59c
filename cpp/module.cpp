// gridflow.tfrecord._codec: the codec as Python sees it. All work happens without the interpreter's lock.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <map>

#include "crc32c.h"
#include "decoder.h"
#include "encoder.h"
#include "inference.h"

namespace nb = nanobind;
using namespace gridflow;
using namespace nb::literals;

namespace {

// name, type, depth, fixed size, lowest and highest integer
using PythonColumn = std::tuple<std::string, std::string, int, int64_t, int64_t, int64_t>;

Physical physical_of(const std::string& name) {
    static const std::map<std::string, Physical> kTypes = {
        {"int64", Physical::kInt64},   {"int32", Physical::kInt32}, {"uint8", Physical::kUInt8},
        {"float", Physical::kFloat},   {"double", Physical::kDouble}, {"string", Physical::kUtf8},
        {"binary", Physical::kBinary}, {"null", Physical::kNull},   {"decimal", Physical::kDecimal},
    };
    const auto found = kTypes.find(name);
    if (found == kTypes.end()) throw nb::value_error("no such type");
    return found->second;
}

std::vector<ColumnSpec> specs_of(const std::vector<PythonColumn>& columns) {
    std::vector<ColumnSpec> specs;
    for (const auto& [name, type, depth, size, low, high] : columns)
        specs.push_back({name, physical_of(type), depth, size, low, high});
    return specs;
}

RecordType record_type_of(const std::string& name) {
    if (name == "Example") return RecordType::kExample;
    if (name == "SequenceExample") return RecordType::kSequenceExample;
    if (name == "ByteArray") return RecordType::kByteArray;
    throw nb::value_error("no such record type");
}

// A decoder's batches for Arrow: what it has decoded since the last one, and an end whenever there is nothing. A stream
// gives its schema once; made anew for each batch, it would cost as much as decoding some hundred records.
struct Batches {
    nb::object owner;  // of the decoder
    Decoder& decoder;

    // Arrow asks for it first; later it would take rows with it.
    static int get_schema(ArrowArrayStream* stream, ArrowSchema* out) {
        return run(stream, [out](Decoder& decoder) {
            if (decoder.rows()) return EINVAL;
            ArrayParts nothing = decoder.take();
            make_schema(nothing, out);
            ArrowArray array;
            make_array(std::move(nothing), &array);
            array.release(&array);
            return 0;
        });
    }
    static int get_next(ArrowArrayStream* stream, ArrowArray* out) {
        return run(stream, [out](Decoder& decoder) {
            *out = {};
            if (decoder.rows()) make_array(decoder.take(), out);
            return 0;
        });
    }
    static void release(ArrowArrayStream* stream) {
        const nb::gil_scoped_acquire acquired;
        delete static_cast<Batches*>(stream->private_data);
        stream->release = nullptr;
    }

private:
    template <class Work>
    static int run(ArrowArrayStream* stream, Work work) {
        try {
            return work(static_cast<Batches*>(stream->private_data)->decoder);
        } catch (const std::bad_alloc&) {
            return ENOMEM;
        }
    }
};

nb::capsule export_batches(nb::handle decoder, nb::object /*requested_schema*/) {
    auto* stream = new ArrowArrayStream{
        Batches::get_schema, Batches::get_next, [](ArrowArrayStream*) -> const char* { return nullptr; },
        Batches::release, new Batches{nb::borrow(decoder), nb::cast<Decoder&>(decoder)}};
    return nb::capsule(stream, "arrow_array_stream", [](void* pointer) noexcept {
        auto* owned = static_cast<ArrowArrayStream*>(pointer);
        if (owned->release) owned->release(owned);
        delete owned;
    });
}

// A view on memory of ours that Python fills; it must not be used after the next call.
nb::object writable_view(uint8_t* data, size_t size) {
    return nb::steal(PyMemoryView_FromMemory(reinterpret_cast<char*>(data), static_cast<Py_ssize_t>(size), PyBUF_WRITE));
}

template <class Reader, class Class>
void bind_stream(Class& bound) {
    bound
        .def("reserve", [](Reader& self, size_t size) { return writable_view(self.framer().reserve(size), size); },
             "size"_a, "Give a view to fill with the next bytes; valid until the next call.")
        .def("commit", [](Reader& self, size_t size) { self.framer().commit(size); }, "size"_a,
             "Say how many bytes of the view were filled.")
        .def("append",
             [](Reader& self, nb::bytes data) {
                 if (!data.size()) return;
                 std::memcpy(self.framer().reserve(data.size()), data.c_str(), data.size());
                 self.framer().commit(data.size());
             },
             "data"_a, "Add bytes.")
        .def("finish", [](Reader& self) { self.framer().finish(); }, "Say that no more bytes will come.")
        .def("abandon", [](Reader& self) { self.framer().abandon(); }, "Give up what is left, and count it as lost.")
        .def_prop_ro("record", [](Reader& self) { return self.framer().record(); }, "The number of the next record.")
        .def_prop_ro("offset", [](Reader& self) { return self.framer().offset(); }, "The offset of the next record.")
        .def_prop_ro("lost", [](Reader& self) { return self.framer().lost(); }, "Damaged places met so far.")
        .def_prop_ro("lost_bytes", [](Reader& self) { return self.framer().lost_bytes(); }, "Bytes passed over.");
}

// Framing alone, for counting and checking.
class Scanner {
public:
    Scanner(uint64_t max_length, bool skip, bool check_crc) : framer_(max_length, skip, check_crc) {}
    Framer& framer() { return framer_; }
    Decoder::State scan() {
        Span payload{nullptr, nullptr};
        Framer::Next next;
        while ((next = framer_.next(payload)) == Framer::Next::kRecord) {
            ++records_;
            payload_bytes_ += static_cast<int64_t>(payload.size());
        }
        return next == Framer::Next::kMore ? Decoder::State::kMore : Decoder::State::kEnd;
    }
    int64_t records() const { return records_; }
    int64_t payload_bytes() const { return payload_bytes_; }

private:
    Framer framer_;
    int64_t records_ = 0, payload_bytes_ = 0;
};

nb::dict describe(const Inference::Found& found) {
    nb::dict table;
    for (const auto& [name, seen] : found) {
        nb::dict row;
        row["records"] = seen.records;
        row["has_integers"] = seen.has_integers;
        row["has_floats"] = seen.has_floats;
        row["has_bytes"] = seen.has_bytes;
        row["is_scalar"] = seen.is_scalar;
        row["is_utf8"] = seen.is_utf8;
        row["size"] = seen.size;
        row["numbers_at"] = nb::make_tuple(seen.numbers_at, seen.numbers_offset);
        row["bytes_at"] = nb::make_tuple(seen.bytes_at, seen.bytes_offset);
        table[nb::str(name.data(), name.size())] = row;
    }
    return table;
}

}  // namespace

NB_MODULE(_codec, module) {
    nb::set_leak_warnings(false);
    static nb::object codec_error = nb::steal(PyErr_NewException("gridflow.tfrecord._codec.CodecError", nullptr, nullptr));
    module.attr("CodecError") = codec_error;
    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (const RecordError& error) {
            nb::tuple arguments = nb::make_tuple(error.kind, error.record, error.offset, error.message);
            PyErr_SetObject(codec_error.ptr(), arguments.ptr());
        }
    });

    nb::enum_<Decoder::State>(module, "State")
        .value("MORE", Decoder::State::kMore)
        .value("BATCH", Decoder::State::kBatch)
        .value("END", Decoder::State::kEnd);

    nb::class_<Decoder> decoder(module, "Decoder");
    decoder
        .def("__init__",
             [](Decoder* self, const std::vector<PythonColumn>& columns, const std::string& type, size_t batch_rows,
                size_t batch_bytes, uint64_t max_length, bool skip, bool check_crc) {
                 new (self) Decoder(specs_of(columns), record_type_of(type), batch_rows, batch_bytes, max_length, skip,
                                    check_crc);
             },
             "columns"_a, "record_type"_a, "batch_rows"_a, "batch_bytes"_a, "max_length"_a, "skip"_a, "check_crc"_a)
        .def("decode", &Decoder::decode, nb::call_guard<nb::gil_scoped_release>())
        .def("__arrow_c_stream__", &export_batches, "requested_schema"_a = nb::none())
        .def_prop_ro("rows", &Decoder::rows);
    bind_stream<Decoder>(decoder);

    nb::class_<Scanner> scanner(module, "Scanner");
    scanner.def(nb::init<uint64_t, bool, bool>(), "max_length"_a, "skip"_a, "check_crc"_a)
        .def("scan", &Scanner::scan, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("records", &Scanner::records)
        .def_prop_ro("payload_bytes", &Scanner::payload_bytes);
    bind_stream<Scanner>(scanner);

    nb::class_<Inference> inference(module, "Inference");
    inference
        .def("__init__",
             [](Inference* self, const std::string& type, uint64_t max_length, bool skip, bool check_crc,
                int64_t limit) {
                 new (self) Inference(record_type_of(type), max_length, skip, check_crc, limit);
             },
             "record_type"_a, "max_length"_a, "skip"_a, "check_crc"_a, "limit"_a)
        .def("look", &Inference::look, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("records", &Inference::records)
        .def("features", [](Inference& self) { return describe(self.features()); })
        .def("lists", [](Inference& self) { return describe(self.lists()); });
    bind_stream<Inference>(inference);

    nb::class_<Encoder>(module, "Encoder")
        .def("__init__",
             [](Encoder* self, const std::vector<PythonColumn>& columns, const std::string& type) {
                 new (self) Encoder(specs_of(columns), record_type_of(type));
             },
             "columns"_a, "record_type"_a)
        .def("encode",
             [](Encoder& self, nb::object array_capsule) {
                 auto* array = static_cast<ArrowArray*>(PyCapsule_GetPointer(array_capsule.ptr(), "arrow_array"));
                 if (!array) throw nb::python_error();
                 Span bytes{nullptr, nullptr};
                 {
                     nb::gil_scoped_release released;
                     bytes = self.encode(*array);
                 }
                 return nb::steal(PyMemoryView_FromMemory(
                     reinterpret_cast<char*>(const_cast<uint8_t*>(bytes.begin)),
                     static_cast<Py_ssize_t>(bytes.size()), PyBUF_READ));
             },
             "array"_a, "Encode a batch; the view is valid until the next call.")
        .def_prop_ro("records", &Encoder::records);

    module.def("crc32c", [](nb::bytes data) {
        return crc32c(reinterpret_cast<const uint8_t*>(data.c_str()), data.size());
    });
    module.def("crc32c_table", [](nb::bytes data) {
        return crc32c_table(reinterpret_cast<const uint8_t*>(data.c_str()), data.size());
    });
    module.def("is_header", [](nb::bytes data) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(data.c_str());
        uint32_t stored;
        if (data.size() < 12) return false;
        std::memcpy(&stored, bytes + 8, 4);
        return masked(crc32c(bytes, 8)) == stored;
    }, "data"_a, "Tell whether some bytes begin with the header of a record.");
    module.attr("CRC_METHOD") = crc32c_method();
}
