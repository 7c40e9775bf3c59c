// gridflow.gpu._placement: the pool as Python sees it; src/gridflow/gpu/placement.py checks what comes in.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "placement.h"

namespace nb = nanobind;
using namespace gridflow::placement;
using namespace nb::literals;

namespace {

// capacity and model, by number
using PythonDevice = std::tuple<int64_t, int>;
// cpus, memory, devices
using PythonNode = std::tuple<int64_t, int64_t, std::vector<PythonDevice>>;
using PythonPlace = std::tuple<int, std::vector<int>>;

std::vector<Node> nodes_of(const std::vector<PythonNode>& rows) {
    std::map<int64_t, int> classes;
    for (const auto& [cpus, memory, devices] : rows)
        for (const auto& [capacity, model] : devices) classes.emplace(capacity, static_cast<int>(classes.size()));
    std::vector<Node> nodes;
    for (const auto& [cpus, memory, devices] : rows) {
        nodes.push_back({cpus, memory, {}});
        for (const auto& [capacity, model] : devices) {
            const double size = static_cast<double>(capacity) / classes.rbegin()->first;
            nodes.back().devices.push_back({capacity, capacity, model, classes.at(capacity), size});
        }
    }
    return nodes;
}

std::optional<std::vector<bool>> flags_of(const std::optional<std::vector<int>>& numbers, size_t size) {
    if (!numbers) return std::nullopt;
    std::vector<bool> flags(size, false);
    for (int number : *numbers)
        if (number >= 0 && static_cast<size_t>(number) < size) flags[number] = true;
    return flags;
}

std::vector<std::vector<int64_t>> free_of(const Pool& pool) {
    std::vector<std::vector<int64_t>> rows;
    for (const Node& node : pool.nodes()) {
        rows.emplace_back();
        for (const Device& device : node.devices) rows.back().push_back(device.free);
    }
    return rows;
}

}  // namespace

NB_MODULE(_placement, module) {
    nb::class_<Pool>(module, "Pool")
        .def(
            "__init__",
            [](Pool* self, const std::vector<PythonNode>& nodes, const std::string& policy, uint64_t seed) {
                new (self) Pool(nodes_of(nodes), policy, seed);
            },
            "nodes"_a, "policy"_a, "seed"_a)
        .def(
            "add_kind",
            [](Pool& self, int gpus, std::optional<int64_t> share, int64_t cpus, int64_t memory,
               const std::optional<std::vector<int>>& models, int model_count,
               const std::optional<std::vector<int>>& indices, int index_count) {
                return self.add_kind(
                    {gpus, share, cpus, memory, flags_of(models, model_count), flags_of(indices, index_count)});
            },
            "gpus"_a, "share"_a.none(), "cpus"_a, "memory"_a, "models"_a.none(), "model_count"_a, "indices"_a.none(),
            "index_count"_a)
        .def("learn", &Pool::learn, "kind"_a)
        .def(
            "find",
            [](Pool& self, int kind) -> std::optional<PythonPlace> {
                const std::optional<Place> place = self.find(kind);
                if (!place) return std::nullopt;
                return PythonPlace{place->node, place->devices};
            },
            "kind"_a)
        .def(
            "take",
            [](Pool& self, int kind, int node, std::vector<int> devices) {
                return self.take(kind, {node, std::move(devices)});
            },
            "kind"_a, "node"_a, "devices"_a)
        .def(
            "give_back",
            [](Pool& self, int kind, int node, std::vector<int> devices) {
                return self.give_back(kind, {node, std::move(devices)});
            },
            "kind"_a, "node"_a, "devices"_a)
        .def("free", &free_of)
        .def("free_cpus_and_memory", [](const Pool& self) {
            std::vector<std::tuple<int64_t, int64_t>> rows;
            for (const Node& node : self.nodes()) rows.emplace_back(node.cpus, node.memory);
            return rows;
        });
}
