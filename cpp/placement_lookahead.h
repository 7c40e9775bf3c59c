// Policies that compare a node as it is with the node as it would be, in the light of what they expect.
#pragma once

#include "placement_expected.h"

namespace gridflow::placement {

class Lookahead : public Policy {
public:
    double cost(const Node& node, const Demand& demand) override { return best(node, demand).cost; }
    std::vector<int> pick(const Node& node, const Demand& demand, uint64_t) override {
        return best(node, demand).devices;
    }
    void learn(int kind, const Demand& demand) override { expected_.learn(kind, demand); }
    bool is_costly() const override { return true; }

protected:
    // What a node is worth, and what it costs to lose some of that.
    virtual double value(const Node& node) const = 0;
    virtual double cost_of_loss(double lost) const { return lost; }

    Expected expected_;

private:
    struct Option {
        double cost;
        std::vector<int> devices;
    };
    Option best(const Node& node, const Demand& demand);
    double cost_of(const Node& node, const Demand& demand, const std::vector<int>& devices);

    Node scratch_{};
};

// Fragmentation gradient descent (Weng et al., USENIX ATC 2023), as its authors published it.
//
// A node's fragmentation is the free share of GPUs that a typical demand cannot use, on average over demands. The
// place where it grows least is taken, by a score of whole numbers: with exact scores the policy is worse.
class Fgd : public Lookahead {
public:
    bool revise(const std::vector<Node>& nodes, double free) override;

protected:
    double value(const Node& node) const override;
    double cost_of_loss(double lost) const override;

private:
    std::vector<Expected::Kind> typical_;  // counts add up to 1
};

}  // namespace gridflow::placement
