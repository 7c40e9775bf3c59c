#include "decimal.h"

#include <charconv>
#include <cmath>

namespace gridflow {
namespace {

constexpr int kMostDigits = 38;

struct Powers {
    Int128 of[kMostDigits + 1];
    Powers() {
        of[0] = 1;
        for (int at = 1; at <= kMostDigits; ++at) of[at] = of[at - 1] * 10;
    }
};

Int128 power(int exponent) {
    static const Powers powers;
    return powers.of[exponent];
}

// Brings a number that is not negative, times ten to the power of `shift`, into a type.
bool fit(Int128 number, int shift, int precision, Int128& out) {
    if (shift < 0) {
        if (-shift > kMostDigits) {
            out = 0;
            return true;
        }
        const Int128 divisor = power(-shift), rest = number % divisor;
        out = number / divisor + (rest >= divisor - rest ? 1 : 0);
    } else {
        if (number && (shift > kMostDigits || number >= power(kMostDigits) / power(shift))) return false;
        out = number ? number * power(shift) : 0;
    }
    return out < power(precision);
}

bool signed_fit(bool is_negative, Int128 magnitude, int shift, DecimalType type, Int128& out) {
    if (!fit(magnitude, shift + type.scale, type.precision, out)) return false;
    if (is_negative) out = -out;
    return true;
}

}  // namespace

bool to_decimal(int64_t value, DecimalType type, Int128& out) {
    const Int128 wide = value;
    return signed_fit(value < 0, value < 0 ? -wide : wide, 0, type, out);
}

bool to_decimal(float value, DecimalType type, Int128& out) {
    const float magnitude = std::fabs(value);
    if (!(magnitude < 1e38f)) return false;  // nor is NaN
    if (magnitude >= 0x1p24f) return signed_fit(value < 0, static_cast<Int128>(magnitude), 0, type, out);
    char text[32];  // 1.2345678e-05
    const char* end = std::to_chars(text, text + sizeof text, magnitude, std::chars_format::scientific).ptr;
    int64_t digits = 0;
    int behind_point = 0;
    const char* at = text;
    for (bool has_point = false; at < end && *at != 'e'; ++at) {
        if (*at == '.') {
            has_point = true;
            continue;
        }
        digits = digits * 10 + (*at - '0');
        behind_point += has_point;
    }
    int exponent = 0;
    // A sign of plus is not taken.
    if (at < end) std::from_chars(at + (at[1] == '+' ? 2 : 1), end, exponent);
    return signed_fit(value < 0, digits, exponent - behind_point, type, out);
}

}  // namespace gridflow
