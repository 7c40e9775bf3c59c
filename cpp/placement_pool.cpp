#include <algorithm>
#include <limits>
#include <numeric>

#include "placement.h"

namespace gridflow::placement {

namespace {

constexpr double kNowhere = std::numeric_limits<double>::infinity();
// Costs that are kept at most: 64 MB.
constexpr size_t kMaxCosts = 8u << 20;

// The SplitMix64 step: the same numbers on every machine.
uint64_t mix(uint64_t value) {
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

// Equal for nodes that are equal to every policy.
uint64_t state_of(const Node& node) {
    uint64_t state = mix(mix(node.cpus) + node.memory);
    for (const Device& device : node.devices)
        state = mix(mix(mix(state + device.free) + device.capacity) + device.model);
    return state;
}

}  // namespace

double Node::free_volume() const {
    double sum = 0;
    for (const Device& device : devices) sum += device.free_volume();
    return sum;
}

bool Demand::allows(const Device& device, int index) const {
    if (models && !(*models)[device.model]) return false;
    return !indices || (static_cast<size_t>(index) < indices->size() && (*indices)[index]);
}

bool Demand::fits(const Node& node) const {
    if (node.cpus < cpus || node.memory < memory) return false;
    int missing = gpus;
    for (size_t i = 0; i < node.devices.size() && missing > 0; i++)
        missing -= fits(node.devices[i]) && allows(node.devices[i], static_cast<int>(i));
    return missing <= 0;
}

void take(Node& node, const Demand& demand, const std::vector<int>& devices) {
    node.cpus -= demand.cpus;
    node.memory -= demand.memory;
    node.value.reset();
    for (int device : devices) node.devices[device].add(-demand.part_of(node.devices[device]));
}

void give_back(Node& node, const Demand& demand, const std::vector<int>& devices) {
    node.cpus += demand.cpus;
    node.memory += demand.memory;
    node.value.reset();
    for (int device : devices) node.devices[device].add(demand.part_of(node.devices[device]));
}

std::vector<int> pick_devices(const Node& node, const Demand& demand, Prefer prefer) {
    std::vector<int> picked;
    for (int i = 0; i < static_cast<int>(node.devices.size()); i++)
        if (demand.fits(node.devices[i]) && demand.allows(node.devices[i], i)) picked.push_back(i);
    if (prefer != Prefer::kFirst)
        std::stable_sort(picked.begin(), picked.end(), [&](int a, int b) {
            const int64_t left = node.devices[a].free, right = node.devices[b].free;
            return prefer == Prefer::kFullest ? left < right : left > right;
        });
    picked.resize(demand.gpus);
    return picked;
}

Pool::Pool(std::vector<Node> nodes, const std::string& policy, uint64_t seed)
    : nodes_(std::move(nodes)), capacity_(nodes_), policy_(make_policy(policy, nodes_)), seed_(mix(seed)) {
    order_.resize(nodes_.size());
    rank_.resize(nodes_.size());
    std::iota(order_.begin(), order_.end(), 0);
    if (policy_->is_shuffled())
        for (size_t i = order_.size(); i > 1; i--) std::swap(order_[i - 1], order_[mix(seed_ + i) % i]);
    for (size_t i = 0; i < order_.size(); i++) rank_[order_[i]] = static_cast<int>(i);
    for (const Node& node : nodes_) {
        free_ += node.free_volume();
        state_.push_back(state_of(node));
    }
}

int Pool::add_kind(Demand demand) {
    kinds_.push_back(std::move(demand));
    return static_cast<int>(kinds_.size()) - 1;
}

std::optional<Place> Pool::find(int kind) {
    const std::vector<double>& costs = costs_of(kind);
    const auto best = std::min_element(costs.begin(), costs.end());
    if (best == costs.end() || *best == kNowhere) return std::nullopt;
    const int node = order_[policy_->is_random() ? random_fit(costs) : best - costs.begin()];
    return Place{node, policy_->pick(nodes_[node], kinds_[kind], mix(~(seed_ + version_)))};
}

size_t Pool::random_fit(const std::vector<double>& costs) const {
    const auto fits = [](double cost) { return cost != kNowhere; };
    uint64_t skip = mix(seed_ + version_) % std::count_if(costs.begin(), costs.end(), fits);
    size_t rank = 0;
    while (!fits(costs[rank]) || skip-- > 0) rank++;
    return rank;
}

bool Pool::take(int kind, const Place& place) {
    if (!is_possible(kind, place)) return false;
    Node& node = nodes_[place.node];
    const Demand& demand = kinds_[kind];
    if (node.cpus < demand.cpus || node.memory < demand.memory) return false;
    for (int device : place.devices)
        if (!demand.fits(node.devices[device])) return false;
    const double before = node.free_volume();
    placement::take(node, demand, place.devices);
    change(place.node, node.free_volume() - before);
    return true;
}

bool Pool::give_back(int kind, const Place& place) {
    if (!is_possible(kind, place)) return false;
    Node& node = nodes_[place.node];
    const Node& capacity = capacity_[place.node];
    const Demand& demand = kinds_[kind];
    if (node.cpus + demand.cpus > capacity.cpus || node.memory + demand.memory > capacity.memory) return false;
    for (int index : place.devices) {
        const Device& device = node.devices[index];
        if (device.free + demand.part_of(device) > device.capacity) return false;
    }
    const double before = node.free_volume();
    placement::give_back(node, demand, place.devices);
    change(place.node, node.free_volume() - before);
    return true;
}

// Whether the place is one that the demand may have at all.
bool Pool::is_possible(int kind, const Place& place) const {
    if (place.node < 0 || place.node >= static_cast<int>(nodes_.size())) return false;
    const Node& node = nodes_[place.node];
    std::vector<int> devices = place.devices;
    std::sort(devices.begin(), devices.end());
    if (static_cast<int>(devices.size()) != kinds_[kind].gpus) return false;
    if (std::adjacent_find(devices.begin(), devices.end()) != devices.end()) return false;
    return std::all_of(devices.begin(), devices.end(), [&](int device) {
        return device >= 0 && device < static_cast<int>(node.devices.size()) &&
               kinds_[kind].allows(node.devices[device], device);
    });
}

void Pool::change(int node, double free) {
    free_ += free;
    version_++;
    changes_.push_back(node);
    state_[node] = state_of(nodes_[node]);
}

const std::vector<double>& Pool::costs_of(int kind) {
    const size_t kept = costs_.size() * nodes_.size() + costs_of_states_.size() + changes_.size();
    if (policy_->revise(nodes_, free_) || kept > kMaxCosts) {
        costs_.clear();
        costs_of_states_.clear();
        changes_.clear();
        for (Node& node : nodes_) node.value.reset();
    }
    const bool is_new = costs_.find(kind) == costs_.end();
    Costs& costs = costs_[kind];
    if (is_new || changes_.size() - costs.seen > nodes_.size()) {
        costs.of.resize(nodes_.size());
        for (size_t rank = 0; rank < order_.size(); rank++) costs.of[rank] = cost(order_[rank], kind);
    } else {
        for (size_t i = costs.seen; i < changes_.size(); i++) costs.of[rank_[changes_[i]]] = cost(changes_[i], kind);
    }
    costs.seen = changes_.size();
    return costs.of;
}

double Pool::cost(int number, int kind) {
    const Demand& demand = kinds_[kind];
    Node& node = nodes_[number];
    if (!demand.fits(node)) return kNowhere;
    if (!policy_->is_costly()) return policy_->cost(node, demand);
    const auto [found, is_new] = costs_of_states_.try_emplace(mix(state_[number] + mix(kind)), 0);
    if (is_new) found->second = policy_->cost(node, demand);
    return found->second;
}

}  // namespace gridflow::placement
