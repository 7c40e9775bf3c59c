#include "placement_expected.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace gridflow::placement {

namespace {

constexpr size_t kMaxKinds = 256;
constexpr double kGrowth = 1.2;

// How many leading bits tell kinds apart where there are too many: of CPUs and memory, and of shares.
struct Bits {
    int others, share;
};
constexpr Bits kFinestFirst[] = {{4, 5}, {3, 4}, {2, 3}, {1, 3}, {0, 2}};

int64_t leading(int64_t number, int bits) {
    int dropped = 0;
    while (number >> dropped >= int64_t{1} << bits) dropped++;
    return number >> dropped << dropped;
}

// Makes one kind of those that are alike; it asks for what they ask for on average.
std::vector<Expected::Kind> merged(const std::vector<Expected::Kind>& kinds, Bits bits) {
    std::map<std::tuple<int, int64_t, int64_t, int64_t, decltype(Demand::models), decltype(Demand::indices)>,
             Expected::Kind>
        groups;
    for (const auto& [demand, count] : kinds) {
        const int64_t share = leading(demand.share.value_or(0), bits.share);
        const int64_t cpus = leading(demand.cpus, bits.others), memory = leading(demand.memory, bits.others);
        auto& [like, total] = groups[{demand.gpus, share, cpus, memory, demand.models, demand.indices}];
        if (total == 0) like = demand;
        total += count;
        const double part = count / total;
        like.cpus += static_cast<int64_t>(part * (demand.cpus - like.cpus));
        like.memory += static_cast<int64_t>(part * (demand.memory - like.memory));
        if (like.share) *like.share += static_cast<int64_t>(part * (*demand.share - *like.share));
    }
    std::vector<Expected::Kind> result;
    for (const auto& [key, kind] : groups) result.push_back(kind);
    return result;
}

}  // namespace

void Expected::learn(int kind, const Demand& demand) {
    if (kinds_.size() <= static_cast<size_t>(kind)) kinds_.resize(kind + 1);
    if (kinds_[kind].count == 0) kinds_[kind].demand = demand;
    kinds_[kind].count++;
    arrived_++;
}

bool Expected::is_due() {
    if (arrived_ < kGrowth * arrived_when_due_ + 1) return false;
    arrived_when_due_ = arrived_;
    return true;
}

std::vector<Expected::Kind> Expected::common() const {
    std::vector<Kind> seen;
    for (const Kind& kind : kinds_)
        if (kind.count > 0) seen.push_back(kind);
    std::vector<Kind> kinds = seen;
    for (const Bits bits : kFinestFirst)
        if (kinds.size() > kMaxKinds) kinds = merged(seen, bits);
    std::stable_sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) { return a.count > b.count; });
    if (kinds.size() > kMaxKinds) kinds.resize(kMaxKinds);
    return kinds;
}

}  // namespace gridflow::placement
