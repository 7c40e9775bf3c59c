// Scarcity-weighted value: the place is taken that loses least of what the cluster can still do.
//
//     V(node) = Σ w(j) · (usable(j) + copies(j) · volume(j))  +  kRemainder · Σ worth(free share)
//             over expected kinds j that fit                    over its GPUs
//
// usable(j) is the free share on GPUs that are large enough for j, copies(j) how often the node can really feed j: by
// GPUs, CPUs and memory. w(j) is how common j is, times how scarce its room has become (see `weigh`). worth() is in
// placement_worth.h. Kinds without GPUs count a little, so that they are not left without CPUs.
#pragma once

#include "placement_lookahead.h"

namespace gridflow::placement {

class Value : public Lookahead {
public:
    explicit Value(const std::vector<Node>& nodes);
    bool revise(const std::vector<Node>& nodes, double free) override;

protected:
    double value(const Node& node) const override;

private:
    // Kinds that differ in CPUs and memory alone.
    struct Shape {
        Demand demand;
        double volume, per_share;
        size_t begin, end;
    };
    // Devices of a node that are alike, by the first of them.
    struct Alike {
        const Device* device;
        int index, count;
    };
    // What a node has for a shape.
    struct Room {
        double copies, usable;
    };

    void expect();
    void weigh(const std::vector<Node>& nodes, double free);
    std::vector<double> supply(const std::vector<Node>& nodes) const;
    std::vector<double> rivals() const;
    std::vector<Alike> alike(const Node& node) const;
    static Room room(const std::vector<Alike>& devices, const Shape& shape);
    bool fits(const Node& node, size_t kind) const { return node.cpus >= cpus_[kind] && node.memory >= memory_[kind]; }

    std::vector<int64_t> capacities_;  // by size class
    int64_t largest_ = 1;              // of them
    double volume_per_cpu_ = 0;
    std::vector<std::vector<double>> worth_;  // by size class and thousandths free
    std::vector<Shape> shapes_;
    bool has_indices_ = false;  // some shape does
    // Of the kinds, shape by shape.
    std::vector<double> cpus_, memory_, per_cpu_, per_memory_, counts_, weights_;
    double free_when_weighed_ = -1;
};

}  // namespace gridflow::placement
