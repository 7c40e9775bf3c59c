// Decimals as Arrow lays them out: whole numbers of 128 bits that stand for themselves over ten to the power of a scale.
#pragma once

#include <cstdint>

namespace gridflow {

__extension__ typedef __int128 Int128;

// At most `precision` digits (38 are possible), of which `scale` stand behind the point.
struct DecimalType {
    int precision, scale;
};

// Both round half up (away from zero) and return false for what has more digits than the type.
bool to_decimal(int64_t value, DecimalType type, Int128& out);
// A float stands for the shortest decimal that is nearest to it, so that 0.1 is 0.1; from 2^24 on, where all floats are
// whole numbers, for itself.
bool to_decimal(float value, DecimalType type, Int128& out);

}  // namespace gridflow
