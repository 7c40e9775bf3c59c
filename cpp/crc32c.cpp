#include "crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define GRIDFLOW_SSE42 1
#define GRIDFLOW_METHOD "sse4.2"
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define GRIDFLOW_ARM 1
#define GRIDFLOW_METHOD "arm"
#else
#define GRIDFLOW_METHOD "table"
#endif

namespace gridflow {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // bits reversed

struct Tables {
    std::array<std::array<uint32_t, 256>, 8> rows{};
    constexpr Tables() {
        for (uint32_t byte = 0; byte < 256; ++byte) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
            rows[0][byte] = crc;
        }
        for (uint32_t byte = 0; byte < 256; ++byte)
            for (size_t row = 1; row < 8; ++row)
                rows[row][byte] = (rows[row - 1][byte] >> 8) ^ rows[0][rows[row - 1][byte] & 0xff];
    }
};
constexpr Tables kTables;

inline uint64_t load64(const uint8_t* at) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    return word;
}

#if GRIDFLOW_SSE42
// Three streams at once hide the instruction's latency; a carry-less multiplication joins them.
// `kShift.words[n]` moves a checksum over 8 * n bytes: x^(64 n - 33) mod P.
constexpr size_t kMaxWords = 128;
struct Shifts {
    std::array<uint32_t, 2 * kMaxWords + 1> words{};
    constexpr Shifts() {
        uint32_t power = 0x80000000u;  // x^0
        int exponent = 0;
        for (size_t n = 1; n <= 2 * kMaxWords; ++n) {
            for (; exponent < static_cast<int>(64 * n) - 33; ++exponent)
                power = (power >> 1) ^ (power & 1 ? kPolynomial : 0);
            words[n] = power;
        }
    }
};
constexpr Shifts kShift;

__attribute__((target("sse4.2,pclmul"))) uint32_t crc32c_sse42(const uint8_t* data, size_t size) {
    uint64_t crc = 0xffffffffu;
    while (size >= 48) {
        size_t words = size / 24;
        if (words > kMaxWords) words = kMaxWords;
        const uint8_t* first = data;
        const uint8_t* second = data + 8 * words;
        const uint8_t* third = data + 16 * words;
        uint64_t crc1 = 0, crc2 = 0;
        for (size_t word = 0; word + 1 < words; ++word, first += 8, second += 8, third += 8) {
            crc = _mm_crc32_u64(crc, load64(first));
            crc1 = _mm_crc32_u64(crc1, load64(second));
            crc2 = _mm_crc32_u64(crc2, load64(third));
        }
        crc = _mm_crc32_u64(crc, load64(first));
        crc1 = _mm_crc32_u64(crc1, load64(second));
        const __m128i moved =
            _mm_xor_si128(_mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(crc)),
                                               _mm_cvtsi32_si128(static_cast<int>(kShift.words[2 * words])), 0),
                          _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(crc1)),
                                               _mm_cvtsi32_si128(static_cast<int>(kShift.words[words])), 0));
        crc = _mm_crc32_u64(crc2, load64(third) ^ static_cast<uint64_t>(_mm_cvtsi128_si64(moved)));
        data += 24 * words;
        size -= 24 * words;
    }
    for (; size >= 8; data += 8, size -= 8) crc = _mm_crc32_u64(crc, load64(data));
    for (; size > 0; ++data, --size) crc = _mm_crc32_u8(static_cast<uint32_t>(crc), *data);
    return ~static_cast<uint32_t>(crc);
}
#endif

#if GRIDFLOW_ARM
__attribute__((target("+crc"))) uint32_t crc32c_arm(const uint8_t* data, size_t size) {
    uint32_t crc = 0xffffffffu;
    for (; size >= 8; data += 8, size -= 8) crc = __crc32cd(crc, load64(data));
    for (; size > 0; ++data, --size) crc = __crc32cb(crc, *data);
    return ~crc;
}
#endif

using Method = uint32_t (*)(const uint8_t*, size_t);

Method choose() {
#if GRIDFLOW_SSE42
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) return crc32c_sse42;
#endif
#if GRIDFLOW_ARM
    constexpr unsigned long kHasCrc32 = 1ul << 7;  // HWCAP_CRC32
    if (getauxval(AT_HWCAP) & kHasCrc32) return crc32c_arm;
#endif
    return crc32c_table;
}

const Method kMethod = choose();

}  // namespace

uint32_t crc32c_table(const uint8_t* data, size_t size) {
    const auto& rows = kTables.rows;
    uint32_t crc = 0xffffffffu;
    for (; size >= 8; data += 8, size -= 8) {
        const uint64_t word = load64(data) ^ crc;
        crc = rows[7][word & 0xff] ^ rows[6][(word >> 8) & 0xff] ^ rows[5][(word >> 16) & 0xff] ^
              rows[4][(word >> 24) & 0xff] ^ rows[3][(word >> 32) & 0xff] ^ rows[2][(word >> 40) & 0xff] ^
              rows[1][(word >> 48) & 0xff] ^ rows[0][word >> 56];
    }
    for (; size > 0; ++data, --size) crc = (crc >> 8) ^ rows[0][(crc ^ *data) & 0xff];
    return ~crc;
}

uint32_t crc32c(const uint8_t* data, size_t size) { return kMethod(data, size); }

const char* crc32c_method() { return kMethod == crc32c_table ? "table" : GRIDFLOW_METHOD; }

}  // namespace gridflow
