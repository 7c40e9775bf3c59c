#include "placement_value.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "placement_worth.h"

namespace gridflow::placement {

namespace {

// None of these is tuned finely: half or double of each changes what is allocated of the trace in bench/gpu_policies.py
// by less than 0.1 points.
constexpr double kRemainder = 20;  // weight of what remainders are worth
constexpr double kScarcity = 6;    // how strongly scarce kinds are protected
constexpr double kDeviations = 2;  // how much more of a kind than expected is prepared for, in standard deviations
constexpr double kSmoothing = 0.05;
constexpr double kWithoutGpus = 0.05;  // weight of kinds without GPUs
constexpr double kTightness = 1e-3;    // for equals: fill what is fullest
constexpr double kFreeChange = 0.9;    // weigh anew when this part is left, or one over it

auto shape_of(const Demand& demand) { return std::tie(demand.gpus, demand.share, demand.models, demand.indices); }

bool is_subset(const std::optional<std::vector<bool>>& inner, const std::optional<std::vector<bool>>& outer) {
    if (!outer) return true;
    if (!inner) return false;
    for (size_t i = 0; i < inner->size(); i++)
        if ((*inner)[i] && !(i < outer->size() && (*outer)[i])) return false;
    return true;
}

// Whether the room of one shape is room for the other as well, GPUs considered alone.
bool needs_as_much(const Demand& large, const Demand& small) {
    if (large.gpus < small.gpus || (large.share && (!small.share || *large.share < *small.share))) return false;
    return is_subset(large.models, small.models) && is_subset(large.indices, small.indices);
}

}  // namespace

Value::Value(const std::vector<Node>& nodes) {
    double cpus = 0, volume = 0;
    for (const Node& node : nodes) {
        cpus += node.cpus;
        volume += node.free_volume();
        for (const Device& device : node.devices) {
            if (capacities_.size() <= static_cast<size_t>(device.size_class)) capacities_.resize(device.size_class + 1);
            capacities_[device.size_class] = device.capacity;
            largest_ = std::max(largest_, device.capacity);
        }
    }
    if (cpus > 0) volume_per_cpu_ = volume / cpus;
    expect();
}

bool Value::revise(const std::vector<Node>& nodes, double free) {
    const bool is_due = expected_.is_due();
    if (is_due) expect();
    if (!is_due && free >= kFreeChange * free_when_weighed_ && free * kFreeChange <= free_when_weighed_) return false;
    weigh(nodes, free);
    return true;
}

// Takes up what has been learnt: kinds by their shapes, and what remainders are worth.
void Value::expect() {
    std::vector<Expected::Kind> kinds = expected_.common();
    std::stable_sort(kinds.begin(), kinds.end(),
                     [](const auto& a, const auto& b) { return shape_of(a.demand) < shape_of(b.demand); });
    shapes_.clear();
    has_indices_ = false;
    for (std::vector<double>* column : {&cpus_, &memory_, &per_cpu_, &per_memory_, &counts_}) column->clear();
    for (const auto& [demand, count] : kinds) {
        if (shapes_.empty() || shape_of(shapes_.back().demand) != shape_of(demand)) {
            const size_t first = cpus_.size();
            shapes_.push_back({demand, demand.volume(largest_), 1.0 / demand.share.value_or(1), first, first});
        }
        shapes_.back().end++;
        has_indices_ |= demand.indices.has_value();
        cpus_.push_back(demand.cpus);
        memory_.push_back(demand.memory);
        per_cpu_.push_back(1.0 / std::max<int64_t>(1, demand.cpus));
        per_memory_.push_back(1.0 / std::max<int64_t>(1, demand.memory));
        counts_.push_back(count);
    }
    worth_.clear();
    for (int64_t capacity : capacities_) {
        std::map<int, double> counts;
        for (const auto& [demand, count] : kinds)
            if (demand.is_on_one_device() && *demand.share < capacity)
                counts[static_cast<int>((*demand.share * kWhole + capacity - 1) / capacity)] += count;
        worth_.push_back(worth(counts));
        for (int room = 0; room <= kWhole; room++) {
            worth_.back()[room] += kTightness * room * room / kWhole;
            worth_.back()[room] *= kRemainder * capacity / largest_;
        }
    }
}

// Weighs each kind by how common it is, and by how scarce its room is: what is free for it, over what is needed there.
// That is by demand which has no other room, being at least as large and as choosy in every respect, if as much arrives
// in all as is free.
void Value::weigh(const std::vector<Node>& nodes, double free) {
    free_when_weighed_ = free;
    weights_.assign(counts_.size(), 0);
    const std::vector<double> room = supply(nodes), rival = rivals();
    double demand = 0, total = 0, sum = 0;
    for (const Shape& shape : shapes_)
        for (size_t kind = shape.begin; kind < shape.end && shape.demand.gpus > 0; kind++) {
            demand += counts_[kind] * shape.volume;
            total += counts_[kind];
        }
    for (const Shape& shape : shapes_)
        for (size_t kind = shape.begin; kind < shape.end; kind++) {
            if (shape.demand.gpus == 0 || room[kind] == 0) continue;
            const double expected = rival[kind] / demand * free;
            const double needed = expected + kDeviations * std::sqrt(expected * shape.volume) + shape.volume;
            const double plenty = (room[kind] + kSmoothing * free) / (needed + kSmoothing * free);
            weights_[kind] = counts_[kind] * std::pow(plenty, -kScarcity);
            sum += weights_[kind];
        }
    for (const Shape& shape : shapes_)
        for (size_t kind = shape.begin; kind < shape.end; kind++)
            if (shape.demand.gpus > 0)
                weights_[kind] = sum > 0 ? weights_[kind] / sum : 0;
            else
                weights_[kind] = kWithoutGpus * counts_[kind] / std::max(total, 1.0) * cpus_[kind] * volume_per_cpu_;
}

// The free volume that each kind can use where its CPUs and memory fit at least once.
std::vector<double> Value::supply(const std::vector<Node>& nodes) const {
    std::vector<double> supply(counts_.size(), 0);
    for (const Node& node : nodes) {
        const std::vector<Alike> devices = alike(node);
        for (const Shape& shape : shapes_) {
            const double volume = shape.demand.gpus ? room(devices, shape).copies * shape.volume : 0;
            for (size_t kind = shape.begin; kind < shape.end && volume > 0; kind++)
                if (fits(node, kind)) supply[kind] += volume;
        }
    }
    return supply;
}

// The volume of demand that competes for each kind's room and can use no other.
std::vector<double> Value::rivals() const {
    std::vector<double> volume(counts_.size(), 0);
    for (const Shape& small : shapes_)
        for (const Shape& large : shapes_) {
            if (!needs_as_much(large.demand, small.demand)) continue;
            for (size_t kind = small.begin; kind < small.end; kind++)
                for (size_t other = large.begin; other < large.end; other++)
                    if (cpus_[other] >= cpus_[kind] && memory_[other] >= memory_[kind])
                        volume[kind] += counts_[other] * large.volume;
        }
    return volume;
}

std::vector<Value::Alike> Value::alike(const Node& node) const {
    std::vector<Alike> groups;
    groups.reserve(node.devices.size());
    for (size_t i = 0; i < node.devices.size(); i++) {
        const Device& device = node.devices[i];
        if (device.free == 0) continue;
        const auto is_like = [&](const Alike& group) { return !has_indices_ && group.device->is_like(device); };
        const auto same = std::find_if(groups.begin(), groups.end(), is_like);
        if (same == groups.end())
            groups.push_back({&device, static_cast<int>(i), 1});
        else
            same->count++;
    }
    return groups;
}

Value::Room Value::room(const std::vector<Alike>& groups, const Shape& shape) {
    const Demand& demand = shape.demand;
    if (demand.gpus == 0) return {std::numeric_limits<double>::infinity(), 0};
    int64_t copies = 0;
    int devices = 0;
    double usable = 0;
    for (const auto& [device, index, count] : groups) {
        if (!demand.fits(*device) || !demand.allows(*device, index)) continue;
        devices += count;
        // A division, but quicker.
        copies += count * (demand.share ? static_cast<int64_t>(device->free * shape.per_share + 1e-9) : 1);
        usable += count * device->free_volume();
    }
    if (devices < demand.gpus) return {0, 0};
    return {static_cast<double>(demand.gpus == 1 ? copies : copies / demand.gpus), usable};
}

double Value::value(const Node& node) const {
    double sum = 0;
    for (const Device& device : node.devices) sum += worth_[device.size_class][device.free_thousandths];
    const double cpus = static_cast<double>(node.cpus), memory = static_cast<double>(node.memory);
    const std::vector<Alike> devices = alike(node);
    for (const Shape& shape : shapes_) {
        const Room room = this->room(devices, shape);
        if (room.copies == 0) continue;
        // Kinds without GPUs have their volume in their weight.
        const double volume = shape.demand.gpus ? shape.volume : 1;
        for (size_t kind = shape.begin; kind < shape.end; kind++) {
            const double copies = std::min(room.copies, std::min(cpus * per_cpu_[kind], memory * per_memory_[kind]));
            const double gain = weights_[kind] * (room.usable + copies * volume);
            sum += cpus >= cpus_[kind] && memory >= memory_[kind] ? gain : 0;
        }
    }
    return sum;
}

}  // namespace gridflow::placement
