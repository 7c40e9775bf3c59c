// The fewest GPUs that hold all shares are a cutting-stock linear programme. Its dual prices say what a share of each
// size is worth, and a knapsack at those prices what a remainder is worth. It is solved by column generation.
#include "placement_worth.h"

#include <algorithm>
#include <numeric>

#include "placement.h"

namespace gridflow::placement {

namespace {

// More sizes than this are rounded up to multiples of kStep first.
constexpr size_t kMaxSizes = 64;
constexpr int kStep = 20;
// Far more than are needed; a stop for degenerate programmes.
constexpr int kMaxPivots = 1000;
constexpr double kPrecision = 1e-9;

using Sizes = std::vector<int>;
using Values = std::vector<double>;

struct Knapsack {
    Values best;            // by room, in units of `unit`
    std::vector<int> last;  // which size fills it best; -1: none
    int unit;

    Knapsack(const Sizes& sizes, const Values& prices) : unit(kWhole) {
        for (int size : sizes) unit = std::gcd(unit, size);
        best.assign(kWhole / unit + 1, 0);
        last.assign(best.size(), -1);
        for (size_t room = 1; room < best.size(); room++) {
            best[room] = best[room - 1];
            for (size_t i = 0; i < sizes.size(); i++) {
                const size_t size = sizes[i] / unit;
                if (size > room || best[room - size] + prices[i] <= best[room] + kPrecision) continue;
                best[room] = best[room - size] + prices[i];
                last[room] = static_cast<int>(i);
            }
        }
    }

    // How many of each size fill one GPU best.
    Values pattern(const Sizes& sizes) const {
        Values copies(sizes.size(), 0);
        for (size_t room = best.size() - 1; room > 0;) {
            if (last[room] < 0) {
                room--;
            } else {
                copies[last[room]]++;
                room -= sizes[last[room]] / unit;
            }
        }
        return copies;
    }
};

// A basis of patterns: the inverse of its matrix (by pattern, then size), how often each is used, and what it costs.
class Basis {
public:
    Basis(const Sizes& sizes, const Values& counts)
        : size_(sizes.size()), inverse_(size_, Values(size_, 0)), cost_(size_, 1) {
        for (size_t i = 0; i < size_; i++) {
            inverse_[i][i] = 1.0 / (kWhole / sizes[i]);
            uses_.push_back(counts[i] * inverse_[i][i]);
        }
    }

    Values prices() const {
        Values prices(size_, 0);
        for (size_t i = 0; i < size_; i++)
            for (size_t j = 0; j < size_; j++) prices[j] += cost_[i] * inverse_[i][j];
        return prices;
    }

    // Brings a pattern in, for the one that is used up first; false if there is none.
    bool enter(const Values& pattern, double cost) {
        Values replaced(size_, 0);
        for (size_t i = 0; i < size_; i++)
            replaced[i] = std::inner_product(pattern.begin(), pattern.end(), inverse_[i].begin(), 0.0);
        size_t out = size_;
        for (size_t i = 0; i < size_; i++) {
            if (replaced[i] <= kPrecision) continue;
            if (out == size_ || uses_[i] / replaced[i] < uses_[out] / replaced[out]) out = i;
        }
        if (out == size_) return false;
        for (double& value : inverse_[out]) value /= replaced[out];
        uses_[out] /= replaced[out];
        cost_[out] = cost;
        for (size_t i = 0; i < size_; i++) {
            if (i == out || replaced[i] == 0) continue;
            for (size_t j = 0; j < size_; j++) inverse_[i][j] -= replaced[i] * inverse_[out][j];
            uses_[i] -= replaced[i] * uses_[out];
        }
        return true;
    }

private:
    size_t size_;
    std::vector<Values> inverse_;
    Values uses_, cost_;
};

// What a share of each size is worth, a whole GPU being worth 1.
Values prices_of(const Sizes& sizes, const Values& counts) {
    Basis basis(sizes, counts);
    Values prices = basis.prices();
    for (int pivot = 0; pivot < kMaxPivots; pivot++) {
        const auto lowest = std::min_element(prices.begin(), prices.end());
        Values pattern(sizes.size(), 0);
        if (*lowest < -kPrecision) {
            // More shares than are asked for may be cut.
            pattern[lowest - prices.begin()] = -1;
            if (!basis.enter(pattern, 0)) break;
        } else {
            const Knapsack knapsack(sizes, prices);
            if (knapsack.best.back() <= 1 + 1e-7 || !basis.enter(knapsack.pattern(sizes), 1)) break;
        }
        prices = basis.prices();
    }
    for (double& price : prices) price = std::max(price, 0.0);
    return prices;
}

}  // namespace

std::vector<double> worth(const std::map<int, double>& counts) {
    std::map<int, double> rounded;
    const int step = counts.size() > kMaxSizes ? kStep : 1;
    for (const auto& [size, count] : counts) rounded[std::min((size + step - 1) / step * step, kWhole)] += count;
    Sizes sizes;
    Values demand, table(kWhole + 1);
    for (const auto& [size, count] : rounded) {
        sizes.push_back(size);
        demand.push_back(count);
    }
    if (sizes.empty()) {
        std::iota(table.begin(), table.end(), 0);
        return table;
    }
    const Knapsack knapsack(sizes, prices_of(sizes, demand));
    for (int room = 0; room <= kWhole; room++)
        table[room] = knapsack.best[room / knapsack.unit] / knapsack.best.back() * kWhole;
    return table;
}

}  // namespace gridflow::placement
