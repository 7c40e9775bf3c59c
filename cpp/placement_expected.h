// What has arrived so far, for policies that expect more of the same.
#pragma once

#include <cstddef>
#include <vector>

#include "placement.h"

namespace gridflow::placement {

class Expected {
public:
    struct Kind {
        Demand demand;
        double count = 0;
    };

    void learn(int kind, const Demand& demand);
    // Whether a fifth more has arrived than when this was last said.
    bool is_due();
    // The most common kinds first. A policy's effort grows with them, so where there are many, like ones become one.
    std::vector<Kind> common() const;

private:
    std::vector<Kind> kinds_;  // by their numbers
    double arrived_ = 0, arrived_when_due_ = 0;
};

}  // namespace gridflow::placement
