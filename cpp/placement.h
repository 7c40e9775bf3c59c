// Where a demand for GPUs goes in a cluster.
//
//     Pool ── nodes, what is free of them, and for each kind of demand what it would cost on each node
//      └─ Policy ── says that cost (placement_policies, placement_fgd, placement_value)
//
// A kind is one demand, seen any number of times. Costs are kept until their node changes or the policy revises what it
// expects, so that a decision looks anew only at nodes that have changed since the kind was last asked about.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace gridflow::placement {

// Policies see a share as thousandths of its device, and volumes as thousandths of the largest device of the pool.
constexpr int kWhole = 1000;

struct Device {
    int64_t capacity, free;
    int model, size_class;  // devices of one size class have the same capacity
    double size;            // beside the largest of the pool, which is 1
    int free_thousandths = kWhole;

    bool is_idle() const { return free == capacity; }
    bool is_like(const Device& other) const {
        return free == other.free && capacity == other.capacity && model == other.model;
    }
    double free_volume() const { return free_thousandths * size; }
    void add(int64_t share) {
        free += share;
        free_thousandths = static_cast<int>(free * kWhole / capacity);
    }
};

struct Node {
    int64_t cpus, memory;
    std::vector<Device> devices;
    // What the policy last found it to be worth; void once it changes.
    mutable std::optional<double> value = std::nullopt;

    double free_volume() const;
};

struct Demand {
    int gpus;
    std::optional<int64_t> share;  // of each device; none: whole devices
    int64_t cpus, memory;
    // By number: is it allowed? None: all are.
    std::optional<std::vector<bool>> models, indices;

    bool allows(const Device& device, int index) const;
    // Whether one device can take its part; models and indices are another matter.
    bool fits(const Device& device) const { return share ? device.free >= *share : device.is_idle(); }
    bool fits(const Node& node) const;
    // Of whole devices, as if they were the largest.
    double volume(int64_t largest) const {
        return gpus * (share ? static_cast<double>(*share) * kWhole / largest : kWhole);
    }
    int64_t part_of(const Device& device) const { return share ? *share : device.capacity; }
    bool is_on_one_device() const { return gpus == 1 && share; }
};

struct Place {
    int node;
    std::vector<int> devices;
};

void take(Node& node, const Demand& demand, const std::vector<int>& devices);
void give_back(Node& node, const Demand& demand, const std::vector<int>& devices);

enum class Prefer { kFirst, kFullest, kEmptiest };
// The devices to take, of a node where the demand fits.
std::vector<int> pick_devices(const Node& node, const Demand& demand, Prefer prefer);

class Policy {
public:
    virtual ~Policy() = default;
    // What the demand costs on a node where it fits; the lowest is taken.
    virtual double cost(const Node& node, const Demand& demand) = 0;
    virtual std::vector<int> pick(const Node& node, const Demand& demand, uint64_t /*chance*/) {
        return pick_devices(node, demand, Prefer::kFullest);
    }
    // The kind has arrived once more.
    virtual void learn(int /*kind*/, const Demand& /*demand*/) {}
    // Brings what is expected up to date; true if all costs said before are void. `free` is the volume.
    virtual bool revise(const std::vector<Node>& /*nodes*/, double /*free*/) { return false; }
    // Nodes of equal cost are taken in a random order rather than in their own.
    virtual bool is_shuffled() const { return true; }
    // Costs are worth remembering for other nodes in the same state.
    virtual bool is_costly() const { return false; }
    // Any node will do, by chance.
    virtual bool is_random() const { return false; }
};

// Throws std::invalid_argument for a name that is not there.
std::unique_ptr<Policy> make_policy(const std::string& name, const std::vector<Node>& nodes);

class Pool {
public:
    Pool(std::vector<Node> nodes, const std::string& policy, uint64_t seed);

    int add_kind(Demand demand);
    void learn(int kind) { policy_->learn(kind, kinds_[kind]); }
    std::optional<Place> find(int kind);
    // These two give false, with nothing changed, for what cannot be.
    bool take(int kind, const Place& place);
    bool give_back(int kind, const Place& place);
    const std::vector<Node>& nodes() const { return nodes_; }

private:
    // By place in `order_`.
    struct Costs {
        std::vector<double> of;
        size_t seen;  // changes
    };

    bool is_possible(int kind, const Place& place) const;
    void change(int node, double free);
    const std::vector<double>& costs_of(int kind);
    double cost(int number, int kind);
    size_t random_fit(const std::vector<double>& costs) const;

    std::vector<Node> nodes_, capacity_;
    std::vector<Demand> kinds_;
    std::unique_ptr<Policy> policy_;
    std::vector<int> order_, rank_;  // nodes in the order in which equals are taken, and the other way round
    std::unordered_map<int, Costs> costs_;
    std::vector<uint64_t> state_;  // of each node, as a number
    std::unordered_map<uint64_t, double> costs_of_states_;
    std::vector<int> changes_;  // nodes
    double free_ = 0;           // the volume
    uint64_t seed_, version_ = 0;
};

}  // namespace gridflow::placement
