"""What each policy prefers, on clusters small enough to say so beforehand."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from gridflow.gpu.placement import PLACEMENTS, Demand, Gpu, Node, Place, Pool

WHOLE = 1000
LOOKING_AHEAD = pytest.mark.parametrize("policy", ["fgd", "swv"])


def pool_of(policy: str, *free: list[int], cpus: int = 64_000, seed: int = 0, history: Iterable[Demand] = ()) -> Pool:
    """Make a pool whose nodes have these shares free on their devices, and the same CPUs left."""
    nodes = [Node(f"node-{number}", cpus, 1_000, (Gpu(WHOLE),) * len(shares)) for number, shares in enumerate(free)]
    pool = Pool(nodes, policy, seed=seed, history=history)
    for number, shares in enumerate(free):
        for device, share in enumerate(shares):
            if share < WHOLE:
                pool.take(Demand(1, WHOLE - share), Place(number, (device,)))
    return pool


def share(size: int) -> Demand:
    return Demand(1, size)


def test_first_fit_takes_the_first_device_of_the_first_node_with_room() -> None:
    pool = pool_of("first-fit", [100, 100], [400, 1000, 300], [300])
    assert pool.find(share(300)) == Place(1, (0,))
    assert pool.find(Demand(1)) == Place(1, (1,))
    assert pool.find(Demand()) == Place(0, ())


def test_best_fit_takes_the_node_that_is_left_with_least_and_its_fullest_device() -> None:
    pool = pool_of("best-fit", [1000, 1000], [500, 900, 350], [1000, 1000, 1000])
    assert pool.find(share(300)) == Place(1, (2,))
    assert pool.find(Demand(2)) == Place(0, (0, 1))


def test_best_fit_counts_cpus_as_well() -> None:
    gpus = (Gpu(WHOLE),)
    pool = Pool([Node("many", 64_000, 0, gpus), Node("few", 16_000, 0, gpus)], "best-fit")
    assert pool.find(Demand(1, cpus=8_000)) == Place(1, (0,))
    assert pool.find(Demand(1, cpus=32_000)) == Place(0, (0,))


def test_dot_product_takes_the_node_with_least_of_what_is_asked_for() -> None:
    gpus = (Gpu(WHOLE),) * 4
    pool = Pool([Node("gpus", 16_000, 0, gpus), Node("cpus", 64_000, 0, gpus[:1])], "dot-product")
    assert pool.find(Demand(1, cpus=1_000)) == Place(1, (0,))
    assert pool.find(Demand(cpus=16_000)) == Place(0, ())


def test_packing_takes_devices_in_use_then_nodes_in_use_then_the_idle() -> None:
    pool = pool_of("packing", [1000, 1000], [1000, 700], [1000, 400])
    assert pool.find(share(300)) == Place(2, (1,))
    assert pool.find(share(600)) == Place(1, (1,))
    assert pool.find(share(800)) in (Place(1, (0,)), Place(2, (0,)))
    assert pool.find(Demand(2)) == Place(0, (0, 1))


def test_spread_takes_the_emptiest_device_of_the_emptiest_node() -> None:
    pool = pool_of("spread", [1000, 200], [900, 950], [500])
    assert pool.find(share(100)) == Place(1, (1,))
    assert pool.find(Demand(1)) == Place(0, (0,))


def test_random_takes_every_place_sooner_or_later_and_the_same_for_the_same_seed() -> None:
    def places(seed: int) -> Place | None:
        return pool_of("random", [100, 600], [1000], [900, 50], seed=seed).find(share(500))

    assert {places(seed) for seed in range(50)} == {Place(0, (1,)), Place(1, (0,)), Place(2, (0,))}
    assert places(7) == places(7)


def test_random_moves_on_from_one_decision_to_the_next() -> None:
    pool = pool_of("random", *[[1000]] * 20)
    found = set()
    for _ in range(10):
        place = pool.find(share(10))
        assert place is not None
        pool.take(share(10), place)
        found.add(place.node)
    assert len(found) > 3


@pytest.mark.parametrize("policy", ["best-fit", "packing", "fgd", "swv"])
def test_equal_nodes_are_taken_in_an_order_that_follows_from_the_seed(policy: str) -> None:
    assert len({pool_of(policy, *[[1000]] * 8, seed=seed).find(share(500)) for seed in range(30)}) > 3


@LOOKING_AHEAD
def test_looking_ahead_keeps_together_what_others_will_need_together(policy: str) -> None:
    history = [Demand(2)] * 5 + [Demand(1)] * 5
    pool = pool_of(policy, [1000, 1000], [1000, 0], [0, 1000], history=history)
    assert pool.find(Demand(1)) in (Place(1, (0,)), Place(2, (1,)))


@LOOKING_AHEAD
def test_looking_ahead_leaves_remainders_that_others_can_use(policy: str) -> None:
    history = [share(700), share(300), Demand(1)] * 5
    pool = pool_of(policy, [600, 1000, 300], history=history)
    assert pool.find(share(300)) == Place(0, (2,))


@LOOKING_AHEAD
def test_looking_ahead_puts_tasks_without_gpus_where_no_gpu_is_left(policy: str) -> None:
    pool = pool_of(policy, [1000, 1000], [0, 0], [1000, 0], cpus=16_000, history=[Demand(1, cpus=8_000)] * 10)
    assert pool.find(Demand(cpus=10_000)) == Place(1, ())


def test_swv_pairs_shares_that_fill_a_device() -> None:
    # Two of 400 beside each other would waste 200 for good: 600 is what goes with them.
    history = [share(600), share(400)] * 10
    pool = pool_of("swv", [400, 600], history=history)
    assert pool.find(share(400)) == Place(0, (0,))
    pool.take(share(400), Place(0, (0,)))
    assert pool.find(share(600)) == Place(0, (1,))


def test_swv_keeps_the_models_that_some_cannot_do_without() -> None:
    choosy = Demand(1, models=frozenset({"A100"}))
    nodes = [Node("new", 0, 0, (Gpu(WHOLE, "A100"),) * 2), Node("old", 0, 0, (Gpu(WHOLE, "T4"),) * 2)]
    for seed in range(5):
        pool = Pool(nodes, "swv", seed=seed, history=[choosy, Demand(1)] * 10)
        place = pool.find(Demand(1))
        assert place is not None
        assert place.node == 1


def test_swv_learns_from_arrivals_as_from_a_history() -> None:
    def find(history: Iterable[Demand], arrivals: Iterable[Demand]) -> Place | None:
        pool = pool_of("swv", [1000, 1000], [1000, 0], history=history)
        for demand in arrivals:
            pool.learn(demand)
        return pool.find(Demand(1))

    many = [Demand(2)] * 10 + [Demand(1)] * 10
    assert find(many, ()) == find((), many) == Place(1, (0,))


def test_swv_that_knows_nothing_fills_the_fullest_device() -> None:
    pool = pool_of("swv", [1000, 450, 700])
    assert pool.find(share(400)) == Place(0, (1,))
    assert pool.find(share(500)) == Place(0, (2,))


def test_swv_decides_with_more_sizes_and_kinds_than_it_will_consider() -> None:
    history = [Demand(1, size, cpus=size) for size in range(1, WHOLE)]
    pool = pool_of("swv", *[[1000] * 4] * 4, history=history)
    for demand in random.Random(1).sample(history, 111):
        place = pool.find(demand)
        if place is not None:
            pool.take(demand, place)
    assert sum(map(sum, pool.free_shares)) < WHOLE


def test_swv_remembers_what_came_last_however_many_kinds_there_were_before() -> None:
    many = [Demand(1, size, cpus=size) for size in range(1, WHOLE)] + [Demand(2, cpus=number) for number in range(300)]
    for seed in range(5):
        pool = pool_of("swv", [1000, 1000], [1000, 0], seed=seed, cpus=16_000, history=many)
        assert pool.find(Demand(1)) == Place(1, (0,))


def test_shares_count_by_what_they_are_of_their_device() -> None:
    nodes = [Node("host", 0, 0, (Gpu(8_192), Gpu(40_960)))]
    pool = Pool(nodes, "swv", history=[share(8_000), share(32_768), share(8_000)])
    assert pool.find(share(32_768)) == Place(0, (1,))
    assert pool.find(share(8_000)) == Place(0, (0,))


def test_every_policy_describes_itself_in_a_line() -> None:
    assert all(text and "\n" not in text and len(text) < 110 for text in PLACEMENTS.values())
