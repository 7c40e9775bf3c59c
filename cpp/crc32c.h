// CRC-32C (Castagnoli), by the processor's own instruction where it has one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gridflow {

uint32_t crc32c(const uint8_t* data, size_t size);

// TFRecord stores checksums rotated and shifted, so that a checksum of data which holds checksums stays sound.
inline uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

// What computes checksums here: "sse4.2", "arm" or "table".
const char* crc32c_method();

// The portable way, for processors without the instruction and for the tests of the others.
uint32_t crc32c_table(const uint8_t* data, size_t size);

}  // namespace gridflow
