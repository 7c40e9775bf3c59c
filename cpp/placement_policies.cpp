// Policies that look at a node as it is, and the table of all policies.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "placement_lookahead.h"
#include "placement_value.h"

namespace gridflow::placement {

namespace {

// The largest node, in each respect.
struct Largest {
    double cpus = 1, volume = 1;
    int64_t capacity = 1;  // of one device

    explicit Largest(const std::vector<Node>& nodes) {
        for (const Node& node : nodes) {
            cpus = std::max(cpus, static_cast<double>(node.cpus));
            volume = std::max(volume, node.free_volume());
            for (const Device& device : node.devices) capacity = std::max(capacity, device.capacity);
        }
    }
};

class FirstFit : public Policy {
public:
    double cost(const Node&, const Demand&) override { return 0; }
    std::vector<int> pick(const Node& node, const Demand& demand, uint64_t) override {
        return pick_devices(node, demand, Prefer::kFirst);
    }
    bool is_shuffled() const override { return false; }
};

class Random : public Policy {
public:
    double cost(const Node&, const Demand&) override { return 0; }
    std::vector<int> pick(const Node& node, const Demand& demand, uint64_t chance) override {
        if (!demand.is_on_one_device()) return pick_devices(node, demand, Prefer::kFirst);
        Demand all = demand;
        all.gpus = 0;
        for (size_t i = 0; i < node.devices.size(); i++)
            all.gpus += demand.fits(node.devices[i]) && demand.allows(node.devices[i], static_cast<int>(i));
        return {pick_devices(node, all, Prefer::kFirst)[chance % all.gpus]};
    }
    bool is_random() const override { return true; }
};

class Spread : public Policy {
public:
    double cost(const Node& node, const Demand&) override { return -node.free_volume(); }
    std::vector<int> pick(const Node& node, const Demand& demand, uint64_t) override {
        return pick_devices(node, demand, Prefer::kEmptiest);
    }
    bool is_shuffled() const override { return false; }
};

// The following score nodes in whole numbers from 0 to 100, as the published scheduler does; many nodes are equal then.
class BestFit : public Policy {
public:
    explicit BestFit(const std::vector<Node>& nodes) : largest_(nodes) {}
    double cost(const Node& node, const Demand& demand) override {
        const double cpus = (node.cpus - demand.cpus) / largest_.cpus;
        const double gpus = (node.free_volume() - demand.volume(largest_.capacity)) / largest_.volume;
        return -std::floor((1 - (cpus + gpus) / 2) * 100);
    }

private:
    Largest largest_;
};

class DotProduct : public Policy {
public:
    explicit DotProduct(const std::vector<Node>& nodes) : largest_(nodes) {}
    double cost(const Node& node, const Demand& demand) override {
        const double cpus = node.cpus / largest_.cpus * (demand.cpus / largest_.cpus);
        const double gpus = node.free_volume() / largest_.volume * (demand.volume(largest_.capacity) / largest_.volume);
        return -std::floor((1 - (cpus + gpus) / 2) * 100);
    }

private:
    Largest largest_;
};

// Devices that are in use first, the fullest of them; then idle devices of nodes in use; then idle nodes.
class Packing : public Policy {
public:
    double cost(const Node& node, const Demand& demand) override {
        if (demand.gpus == 0) return 0;
        int idle = 0;
        for (const Device& device : node.devices) idle += device.is_idle();
        if (idle == static_cast<int>(node.devices.size())) return -std::max(33 - idle, idle);
        int idle_used = 0, left = 0;
        for (int index : pick_devices(node, demand, Prefer::kFullest)) {
            idle_used += node.devices[index].is_idle();
            left += node.devices[index].free_thousandths * 100 / kWhole;
        }
        return idle_used ? -std::max(50 - idle_used, 33) : -std::max(100 - left / 10, 50);
    }
};

}  // namespace

std::unique_ptr<Policy> make_policy(const std::string& name, const std::vector<Node>& nodes) {
    if (name == "first-fit") return std::make_unique<FirstFit>();
    if (name == "best-fit") return std::make_unique<BestFit>(nodes);
    if (name == "packing") return std::make_unique<Packing>();
    if (name == "spread") return std::make_unique<Spread>();
    if (name == "random") return std::make_unique<Random>();
    if (name == "dot-product") return std::make_unique<DotProduct>(nodes);
    if (name == "fgd") return std::make_unique<Fgd>();
    if (name == "swv") return std::make_unique<Value>(nodes);
    throw std::invalid_argument("no such policy");
}

}  // namespace gridflow::placement
