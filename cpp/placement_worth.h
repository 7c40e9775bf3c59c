// What a remainder of a GPU is worth, given the shares that are asked for.
#pragma once

#include <map>
#include <vector>

namespace gridflow::placement {

// For each remainder from 0 to kWhole thousandths, its worth in thousandths. `counts` says how often each size of
// share, in thousandths and less than a whole, is asked for.
//
// Shares that go together well make a remainder worth more than its size, those that leave gaps less: with many demands
// for 810 and few for 190, what is left beside an 810 is worth nothing, and a remainder of 810 as much as a whole GPU.
std::vector<double> worth(const std::map<int, double>& counts);

}  // namespace gridflow::placement
