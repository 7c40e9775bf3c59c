#include "placement_lookahead.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace gridflow::placement {

namespace {

// Typical demands are the most common ones that together make up this part of all.
constexpr double kTypicalPart = 0.95;
// Less than this is no difference.
constexpr double kPrecision = 1e-9;

// Memory limits where a demand fits, but takes no part in the score.
auto without_memory(const Demand& demand) {
    return std::tie(demand.cpus, demand.share, demand.gpus, demand.models, demand.indices);
}

}  // namespace

Lookahead::Option Lookahead::best(const Node& node, const Demand& demand) {
    const std::vector<int> fullest_first = pick_devices(node, demand, Prefer::kFullest);
    Option best{cost_of(node, demand, fullest_first), fullest_first};
    if (!demand.is_on_one_device()) return best;
    std::vector<int> tried = fullest_first;
    for (int i = 0; i < static_cast<int>(node.devices.size()); i++) {
        const Device& device = node.devices[i];
        if (!demand.fits(device) || !demand.allows(device, i)) continue;
        const auto is_like = [&](int other) { return device.is_like(node.devices[other]); };
        if (std::any_of(tried.begin(), tried.end(), is_like)) continue;
        tried.push_back(i);
        const double cost = cost_of(node, demand, {i});
        if (cost < best.cost - kPrecision) best = {cost, {i}};
    }
    return best;
}

double Lookahead::cost_of(const Node& node, const Demand& demand, const std::vector<int>& devices) {
    if (!node.value) node.value = value(node);
    scratch_ = node;
    take(scratch_, demand, devices);
    return cost_of_loss(*node.value - value(scratch_));
}

bool Fgd::revise(const std::vector<Node>&, double) {
    if (!expected_.is_due()) return false;
    typical_.clear();
    double total = 0, covered = 0;
    for (const Expected::Kind& kind : expected_.common()) {
        total += kind.count;
        const auto same = std::find_if(typical_.begin(), typical_.end(), [&](const Expected::Kind& other) {
            return without_memory(other.demand) == without_memory(kind.demand);
        });
        if (same == typical_.end())
            typical_.push_back(kind);
        else
            same->count += kind.count;
    }
    std::stable_sort(typical_.begin(), typical_.end(), [](const auto& a, const auto& b) {
        return a.count != b.count ? a.count > b.count : without_memory(a.demand) > without_memory(b.demand);
    });
    size_t size = 0;
    while (covered < kTypicalPart * total) covered += typical_[size++].count;
    typical_.resize(size);
    for (Expected::Kind& kind : typical_) kind.count /= covered;
    return true;
}

double Fgd::value(const Node& node) const {
    double usable = 0;
    for (const auto& [demand, part] : typical_) {
        if (demand.gpus == 0 || node.cpus < demand.cpus) continue;
        int devices = 0;
        double free = 0;
        for (size_t i = 0; i < node.devices.size(); i++) {
            if (!demand.fits(node.devices[i]) || !demand.allows(node.devices[i], static_cast<int>(i))) continue;
            devices++;
            free += node.devices[i].free_volume();
        }
        if (devices >= demand.gpus) usable += part * free;
    }
    return usable - node.free_volume();
}

double Fgd::cost_of_loss(double lost) const { return -std::floor(100 / (1 + std::exp(lost / kWhole))); }

}  // namespace gridflow::placement
