"""What holds of every policy, whatever it prefers."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridflow.errors import UsageError
from gridflow.gpu.placement import DEFAULT_PLACEMENT, PLACEMENTS, Demand, Gpu, Node, Place, Pool

EVERY_POLICY = pytest.mark.parametrize("policy", PLACEMENTS)
MODELS = ("A100", "T4")

gpus = st.builds(Gpu, st.sampled_from((100, 1000, 16_384)), st.sampled_from(MODELS))
nodes = st.lists(
    st.builds(
        Node,
        st.just("node"),
        st.integers(0, 8_000),
        st.integers(0, 64),
        st.lists(gpus, max_size=4).map(tuple),
    ),
    max_size=4,
)
demands = st.one_of(
    st.builds(Demand, st.just(0), cpus=st.integers(0, 4_000), memory=st.integers(0, 32)),
    st.builds(
        Demand,
        st.integers(1, 3),
        st.none() | st.sampled_from((1, 10, 33, 50, 100, 400, 500, 1000, 9_000)),
        st.integers(0, 3_000),
        st.integers(0, 16),
        st.none() | st.frozensets(st.sampled_from((*MODELS, "H100"))),
        st.none() | st.frozensets(st.integers(0, 5)),
    ),
)


class Cluster:
    """The rules once more, as plainly as can be: who holds what."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.held: list[tuple[Demand, Place]] = []

    def of_node(self, node: int) -> list[Demand]:
        return [demand for demand, place in self.held if place.node == node]

    def of_device(self, node: int, device: int) -> list[Demand]:
        return [demand for demand, place in self.held if place.node == node and device in place.devices]

    def free(self, node: int, device: int) -> int:
        capacity = self.nodes[node].gpus[device].capacity
        return capacity - sum(demand.share or capacity for demand in self.of_device(node, device))

    def fits(self, demand: Demand, place: Place) -> bool:
        node = self.nodes[place.node]
        others = self.of_node(place.node)
        if sum(other.cpus for other in others) + demand.cpus > node.cpus:
            return False
        if sum(other.memory for other in others) + demand.memory > node.memory:
            return False
        return all(self._takes(demand, place.node, device) for device in place.devices)

    def _takes(self, demand: Demand, node: int, device: int) -> bool:
        gpu = self.nodes[node].gpus[device]
        if demand.models is not None and gpu.model not in demand.models:
            return False
        if demand.devices is not None and device not in demand.devices:
            return False
        return self.free(node, device) >= (demand.share or gpu.capacity)

    def places(self, demand: Demand) -> list[Place]:
        return [
            place
            for number, node in enumerate(self.nodes)
            for devices in combinations(range(len(node.gpus)), demand.gpus)
            if self.fits(demand, place := Place(number, devices))
        ]

    def check(self, pool: Pool) -> None:
        for number, node in enumerate(self.nodes):
            here = self.of_node(number)
            cpus, memory = (sum(getattr(demand, name) for demand in here) for name in ("cpus", "memory"))
            assert pool.free_cpus_and_memory[number] == (node.cpus - cpus, node.memory - memory)
            for device in range(len(node.gpus)):
                holders = self.of_device(number, device)
                assert pool.free_shares[number][device] == self.free(number, device) >= 0
                assert len(holders) == 1 or all(holder.share for holder in holders)


@EVERY_POLICY
@settings(max_examples=60, deadline=None)
@given(nodes=nodes, arrivals=st.lists(demands, max_size=12), ends=st.lists(st.integers(0, 11), max_size=12))
def test_a_demand_is_placed_if_and_only_if_it_fits_and_capacity_is_never_exceeded(
    policy: str, nodes: list[Node], arrivals: list[Demand], ends: list[int]
) -> None:
    pool, cluster = Pool(nodes, policy, seed=3), Cluster(nodes)
    for number, demand in enumerate(arrivals):
        pool.learn(demand)
        place = pool.find(demand)
        assert pool.find(demand) == place
        assert (place is not None) == bool(cluster.places(demand))
        if place is not None:
            assert len(set(place.devices)) == demand.gpus
            assert cluster.fits(demand, place)
            pool.take(demand, place)
            cluster.held.append((demand, place))
        cluster.check(pool)
        if number < len(ends) and ends[number] < len(cluster.held):
            pool.give_back(*cluster.held.pop(ends[number]))
            cluster.check(pool)


@EVERY_POLICY
@settings(max_examples=30, deadline=None)
@given(nodes=nodes, arrivals=st.lists(demands, max_size=12))
def test_giving_everything_back_restores_the_pool(policy: str, nodes: list[Node], arrivals: list[Demand]) -> None:
    pool = Pool(nodes, policy)
    before = pool.free_shares, pool.free_cpus_and_memory
    held = []
    for demand in arrivals:
        place = pool.find(demand)
        if place is not None:
            pool.take(demand, place)
            held.append((demand, place))
    for demand, place in held:
        pool.give_back(demand, place)
    assert (pool.free_shares, pool.free_cpus_and_memory) == before


@EVERY_POLICY
@settings(max_examples=30, deadline=None)
@given(nodes=nodes, arrivals=st.lists(demands, max_size=12), seed=st.integers())
def test_equal_pools_decide_alike(policy: str, nodes: list[Node], arrivals: list[Demand], seed: int) -> None:
    def decide() -> list[Place | None]:
        pool = Pool(nodes, policy, seed=seed, history=arrivals[:4])
        places = []
        for demand in arrivals:
            pool.learn(demand)
            places.append(pool.find(demand))
            if places[-1] is not None:
                pool.take(demand, places[-1])
        return places

    assert decide() == decide()


@EVERY_POLICY
@settings(max_examples=60, deadline=None)
@given(
    nodes=nodes,
    held=st.lists(demands, max_size=6),
    demand=demands,
    place=st.builds(Place, st.integers(-1, 4), st.lists(st.integers(-1, 4), max_size=3).map(tuple)),
)
def test_a_place_is_taken_only_where_it_is_free(
    policy: str, nodes: list[Node], held: list[Demand], demand: Demand, place: Place
) -> None:
    pool, cluster = Pool(nodes, policy), Cluster(nodes)
    for each in held:
        found = pool.find(each)
        if found is not None:
            pool.take(each, found)
            cluster.held.append((each, found))
    if Place(place.node, tuple(sorted(place.devices))) in cluster.places(demand):
        pool.take(demand, place)
        cluster.held.append((demand, place))
    else:
        with pytest.raises(UsageError, match=r"does not fit at Place.*take what find\(\) gives"):
            pool.take(demand, place)
    cluster.check(pool)


def test_nobody_gives_back_what_is_free() -> None:
    pool = Pool([Node("host", 4_000, 64, (Gpu(1000), Gpu(1000)))])
    demand = Demand(1, 600, cpus=1_000)
    pool.take(demand, Place(0, (0,)))
    for other, place in ((demand, Place(0, (1,))), (demand, Place(1, (0,))), (Demand(1), Place(0, (0,)))):
        with pytest.raises(UsageError, match=r"Demand.* does not hold Place.*just what was taken, once"):
            pool.give_back(other, place)
    pool.give_back(demand, Place(0, (0,)))
    with pytest.raises(UsageError, match="does not hold"):
        pool.give_back(demand, Place(0, (0,)))
    assert pool.free_shares == [[1000, 1000]]


def test_a_whole_device_is_its_holders_alone_and_a_shared_one_is_nobodys_whole() -> None:
    pool = Pool([Node("host", 0, 0, (Gpu(16_384), Gpu(16_384)))])
    pool.take(Demand(1), Place(0, (0,)))
    pool.take(Demand(1, 1), Place(0, (1,)))
    assert pool.find(Demand(1)) is None
    assert pool.find(Demand(1, 1)) == Place(0, (1,))
    assert pool.find(Demand(1, 16_384)) is None


def test_a_demand_may_name_the_models_and_the_devices_that_will_do() -> None:
    pool = Pool([Node("old", 0, 0, (Gpu(1000, "T4"),) * 2), Node("new", 0, 0, (Gpu(1000, "A100"), Gpu(1000, "T4")))])
    assert pool.find(Demand(1, models=frozenset({"A100"}))) == Place(1, (0,))
    assert pool.find(Demand(2, models=frozenset({"A100", "H100"}))) is None
    assert pool.find(Demand(2, models=frozenset({"T4"}))) == Place(0, (0, 1))
    assert pool.find(Demand(1, models=frozenset())) is None
    assert pool.find(Demand(1, 10, models=frozenset({"T4"}), devices=frozenset({1}))) in (
        Place(0, (1,)),
        Place(1, (1,)),
    )
    assert pool.find(Demand(1, devices=frozenset({7}))) is None
    assert pool.find(Demand(1, devices=frozenset())) is None


def test_a_pool_without_nodes_has_room_for_nothing() -> None:
    assert all(Pool([], policy).find(Demand()) is None for policy in PLACEMENTS)


def test_the_default_is_one_of_the_policies_and_others_are_refused() -> None:
    assert Pool([]).policy == DEFAULT_PLACEMENT
    with pytest.raises(UsageError, match=r"placement 'worst' is not known \(one of: first-fit, best-fit, .*swv\)"):
        Pool([], "worst")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gpu(0), r"a GPU has capacity=0 \(at least 1\)"),
        (lambda: Node("n", -1, 0, ()), r"node 'n' has cpus=-1 \(at least 0\)"),
        (lambda: Demand(-1), r"a demand has gpus=-1 \(at least 0\)"),
        (lambda: Demand(1, 0), r"a demand has share=0 \(at least 1\)"),
        (lambda: Demand(0, 5), r"a demand has share=5 of no GPU \(set gpus, or leave share out\)"),
        (lambda: Demand(memory=-4), r"a demand has memory=-4 \(at least 0\)"),
    ],
)
def test_what_cannot_be_is_refused(make: type[Demand], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_importing_placement_is_light() -> None:
    program = "import sys, gridflow.gpu.placement; print({'numpy', 'tensorflow', 'pyarrow'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "set()\n"
