from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.gpu.hosts import devices_of

from gridflow.gpu.claims import Claim
from gridflow.gpu.entries import Process, Request
from gridflow.gpu.explain import why_waiting
from gridflow.gpu.fit import largest_count, obstacle
from gridflow.gpu.inventory import Device
from gridflow.gpu.order import AGEING_SECONDS, ORDERS
from gridflow.gpu.shares import Shares


class Desk:
    """A host's shares, as those who ask see them."""

    def __init__(self, *memories_mb: int, order: str = "priority") -> None:
        self.devices = devices_of(*memories_mb)
        self.shares = Shares(order)
        self.now = 0.0

    def ask(self, id_: str, **wishes: Any) -> bool:
        """Make a claim, and say whether it was granted at once."""
        claim = Claim(**{"name": id_, **wishes})
        keys = tuple(device.key for device in self.devices)
        count = largest_count(claim, self.devices)
        assert count, obstacle(claim, self.devices)
        self.shares.ask(Request(id_, claim, (Process(ord(id_[0]), "1"),), self.now, keys, count), self.devices)
        return self.turn(id_)

    def turn(self, id_: str = "") -> bool:
        self.now += 1
        self.shares.advance(self.now)
        return id_ in self.shares.holdings

    def release(self, id_: str) -> None:
        self.shares.release(id_)
        self.turn()

    @property
    def held(self) -> dict[str, list[str]]:
        return {id_: list(holding.devices) for id_, holding in sorted(self.shares.holdings.items())}

    @property
    def wanted(self) -> dict[str, str]:
        return {id_: holding.wanted_by for id_, holding in self.shares.holdings.items() if holding.wanted_by}


# Exclusive and shared


def test_exclusive_gpus_go_to_one_claim_each() -> None:
    desk = Desk(8192, 8192)
    assert [desk.ask("a"), desk.ask("b"), desk.ask("c")] == [True, True, False]
    desk.release("a")
    assert desk.held.keys() == {"b", "c"}


def test_shares_fill_a_gpu_and_no_more() -> None:
    desk = Desk(8192)
    wishes = {"memory_per_gpu_mb": 2048, "shared": True}
    assert [desk.ask(id_, **wishes) for id_ in "abcde"] == [True, True, True, True, False]
    assert desk.shares.free_mb("GPU-0") == 0


def test_a_share_does_not_go_where_somebody_is_alone() -> None:
    desk = Desk(8192)
    assert [desk.ask("a", memory_per_gpu_mb=100), desk.ask("b", gpus=0.1)] == [True, False]
    assert desk.shares.holdings["a"].memory_mb == (100,)


def test_fractions_are_of_the_device_that_they_are_on() -> None:
    desk = Desk(8192, 4096)
    assert [desk.ask(id_, gpus=0.5) for id_ in "abcde"] == [True, True, True, True, False]
    assert {(*holding.devices, *holding.memory_mb) for holding in desk.shares.holdings.values()} == {
        ("GPU-0", 4096),
        ("GPU-1", 2048),
    }


def test_preferred_devices_are_taken_where_they_are_free() -> None:
    desk = Desk(8192, 8192, 8192)
    wishes = {"device_ids": (1,), "device_choice": "preferred"}
    assert [desk.ask("a", **wishes), desk.ask("b", **wishes), desk.ask("c", device_ids=("GPU-1",))] == [
        True,
        True,
        False,
    ]
    assert desk.held["a"] == ["GPU-1"]
    assert desk.held["b"] != ["GPU-1"]


# Who is next


def test_who_waits_for_much_is_not_passed_by_those_who_want_little() -> None:
    desk = Desk(8192, 8192)
    assert desk.ask("a")
    assert not desk.ask("large", gpus=2)
    assert not desk.ask("small")
    desk.release("a")
    assert desk.held.keys() == {"large"}


def test_devices_that_the_first_in_line_cannot_use_are_not_left_idle() -> None:
    desk = Desk(8192, 8192)
    assert desk.ask("a", device_ids=(0,))
    assert not desk.ask("b", device_ids=(0,))
    assert desk.ask("c")
    assert desk.held == {"a": ["GPU-0"], "c": ["GPU-1"]}


def test_a_claim_that_needs_some_of_the_devices_leaves_the_others() -> None:
    desk = Desk(8192, 8192, 8192)
    assert desk.ask("a", memory_per_gpu_mb=6000, shared=True, device_ids=(0,))
    assert desk.ask("b", memory_per_gpu_mb=1000, shared=True, device_ids=(1,))
    assert desk.ask("c", memory_per_gpu_mb=2000, shared=True, device_ids=(2,))
    # The emptiest, GPU 1, is kept for it; the others are free for those behind.
    assert not desk.ask("whole")
    assert desk.ask("d", memory_per_gpu_mb=6000, shared=True)
    assert desk.held["d"] == ["GPU-2"]
    assert not desk.ask("e", memory_per_gpu_mb=6000, shared=True)
    desk.release("b")
    assert desk.held["whole"] == ["GPU-1"]


def test_fair_share_goes_to_who_has_less() -> None:
    desk = Desk(8192, 8192, order="fair")
    assert [desk.ask("a1", owner="ana"), desk.ask("a2", owner="ana")] == [True, True]
    assert [desk.ask("a3", owner="ana"), desk.ask("b1", owner="bo")] == [False, False]
    desk.release("a1")
    assert desk.held.keys() == {"a2", "b1"}


# Shortage


def test_a_wait_ends_with_as_many_gpus_as_will_do() -> None:
    desk = Desk(8192, 8192, 8192)
    assert desk.ask("a")
    assert not desk.ask("b", gpus=3, min_gpus=1)
    holding = desk.shares.give_up("b", desk.now)
    assert holding is not None
    assert len(holding.devices) == 2


def test_a_wait_ends_with_nothing_where_too_few_are_free() -> None:
    desk = Desk(8192, 8192)
    assert [desk.ask("a"), desk.ask("b")] == [True, True]
    assert not desk.ask("c", gpus=2, min_gpus=1)
    assert desk.shares.give_up("c", desk.now) is None
    assert desk.shares.waiting == {}


def test_who_gives_up_does_not_take_what_is_kept_for_those_before() -> None:
    desk = Desk(8192, 8192)
    assert desk.ask("a")
    assert not desk.ask("first", gpus=2)
    assert not desk.ask("second", gpus=2, min_gpus=1)
    assert desk.shares.give_up("second", desk.now) is None
    desk.release("a")
    assert desk.held.keys() == {"first"}


# Gangs


def test_a_gang_gets_all_or_nothing() -> None:
    desk = Desk(8192, 8192)
    run = {"gang": "run", "gang_size": 2}
    assert not desk.ask("a", **run)
    assert why_waiting(desk.shares, "a", desk.now) == "1 of the 2 claims of 'run' have come"
    assert desk.ask("x")
    assert not desk.ask("b", **run)
    assert desk.held.keys() == {"x"}
    desk.release("x")
    assert desk.held.keys() == {"a", "b"}


def test_two_gangs_do_not_wait_for_each_other() -> None:
    desk = Desk(8192, 8192)
    for id_, gang in (("a1", "a"), ("b1", "b"), ("b2", "b"), ("a2", "a")):
        desk.ask(id_, gang=gang, gang_size=2)
    assert desk.held.keys() == {"b1", "b2"}
    desk.release("b1")
    assert desk.held.keys() == {"b2"}
    desk.release("b2")
    assert desk.held.keys() == {"a1", "a2"}


def test_a_gang_that_never_fits_says_so_to_each_of_its_claims() -> None:
    desk = Desk(8192, 8192)
    for id_ in "abc":
        assert not desk.ask(id_, gang="run", gang_size=3)
    messages = {problem.message for problem in desk.shares.obstacles.values()}
    assert messages == {
        "the 3 claims of 'run' do not fit on the 2 GPUs here together: each asks for 1 GPU, 3 GPUs in all"
    }
    assert desk.shares.obstacles.keys() == set("abc")
    desk.release("a")
    assert desk.shares.obstacles.keys() == set("bc")
    assert desk.ask("other", gpus=2)


def test_a_gang_of_shares_may_be_on_one_gpu() -> None:
    desk = Desk(8192)
    assert [desk.ask(id_, gpus=0.25, gang="run", gang_size=4) for id_ in "abcd"] == [False, False, False, True]
    assert len(desk.held) == 4


# Preemption


def test_a_higher_priority_wants_the_least_important_holder_back() -> None:
    desk = Desk(8192, 8192, 8192)
    assert desk.ask("a", preemptible=True, priority=1)
    assert desk.ask("b", preemptible=True)
    assert desk.ask("c")
    assert not desk.ask("d", priority=5)
    assert desk.wanted == {"b": "d"}
    assert why_waiting(desk.shares, "d", desk.now) == "held by a, b, c; b was asked to give back"
    desk.turn()
    assert desk.wanted == {"b": "d"}
    desk.release("b")
    assert desk.held.keys() == {"a", "c", "d"}
    assert desk.wanted == {}


def test_only_preemptible_holders_of_lower_priority_are_wanted() -> None:
    desk = Desk(8192, 8192)
    assert [desk.ask("a", preemptible=True, priority=1), desk.ask("b")] == [True, True]
    assert not desk.ask("c", priority=1)
    assert desk.wanted == {}


def test_nobody_is_wanted_where_that_would_not_help() -> None:
    desk = Desk(8192, 8192)
    assert [desk.ask("a", preemptible=True), desk.ask("b")] == [True, True]
    assert not desk.ask("c", gpus=2, priority=1)
    assert desk.wanted == {}


def test_those_who_are_not_in_the_way_are_spared() -> None:
    desk = Desk(8192, 8192)
    assert desk.ask("small", gpus=0.25, preemptible=True, priority=-1)
    assert desk.ask("whole", preemptible=True)
    assert not desk.ask("c", device_ids=tuple(desk.held["whole"]), priority=1)
    assert desk.wanted == {"whole": "c"}


def test_a_wish_ends_with_the_claim_that_had_it() -> None:
    desk = Desk(8192)
    assert desk.ask("a", preemptible=True)
    assert not desk.ask("b", priority=1)
    desk.release("b")
    assert desk.wanted == {}


def test_a_lease_that_is_over_may_be_ended_by_anybody() -> None:
    desk = Desk(8192)
    assert desk.ask("a", priority=9, lease_seconds=100)
    assert not desk.ask("b")
    assert desk.wanted == {}
    desk.now += 100
    desk.turn()
    assert desk.wanted == {"a": "b"}


# The dead


def test_what_a_dead_process_held_or_waited_for_is_free() -> None:
    desk = Desk(8192)
    assert [desk.ask("a"), desk.ask("b"), desk.ask("c")] == [True, False, False]
    desk.shares.bury(lambda process: process.pid == ord("c"))
    assert desk.turn("c")
    assert [*desk.held, *desk.shares.waiting] == ["c"]


def test_what_several_processes_use_is_held_until_the_last_is_gone() -> None:
    desk = Desk(8192)
    assert desk.ask("a")
    desk.shares.join("a", Process(77, "2"))
    desk.shares.bury(lambda process: process.pid == 77)
    assert desk.held.keys() == {"a"}
    desk.shares.bury(lambda _: False)
    assert desk.held == {}


# All that holds at all times

CLAIMS = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(0, 3),
        "preemptible": st.booleans(),
        "owner": st.sampled_from("xyz"),
        "weight": st.sampled_from([0.5, 1.0, 2.0]),
        "min_capability": st.sampled_from([7.0, 8.0]),
        "lease_seconds": st.sampled_from([1.0, 50.0]),
    },
)
AMOUNTS = st.one_of(
    st.fixed_dictionaries({"gpus": st.integers(1, 3)}),
    st.builds(lambda gpus: {"gpus": gpus, "min_gpus": 1}, st.integers(2, 4)),
    st.builds(lambda share: {"gpus": share}, st.sampled_from([0.1, 0.25, 0.5, 0.9])),
    st.builds(
        lambda gpus, memory: {"gpus": gpus, "memory_per_gpu_mb": memory, "shared": True},
        st.integers(1, 2),
        st.integers(1, 9000),
    ),
    st.builds(lambda which: {"device_ids": sorted(which)}, st.sets(st.integers(0, 2), min_size=1)),
)


class AllTimes(RuleBasedStateMachine):
    """Asks, releases, dies and waits at random; what must hold is looked at after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = Shares()
        self.devices: list[Device] = []
        self.now = 0.0
        self.numbers = itertools.count()
        self.dead: set[int] = set()

    @initialize(
        order=st.sampled_from(sorted(ORDERS)),
        kinds=st.lists(st.sampled_from([(4096, 7.5), (8192, 7.5), (8192, 8.0)]), min_size=3, max_size=4),
    )
    def begin(self, order: str, kinds: list[tuple[int, float]]) -> None:
        self.shares = Shares(order)
        self.devices = [
            Device(index, memory_mb, f"GPU-{index}", "T4", capability)
            for index, (memory_mb, capability) in enumerate(kinds)
        ]

    def act(self, last_chance: str = "") -> None:
        """Go on as the ledger does, and check what has changed."""
        text = json.dumps(self.shares.to_dict())
        before = set(self.shares.holdings)
        twin = Shares.from_dict(json.loads(text))
        for shares in (self.shares, twin):
            if last_chance:
                shares.give_up(last_chance, self.now)
            shares.advance(self.now)
        assert json.dumps(twin.to_dict()) == json.dumps(self.shares.to_dict()), "the same state, another decision"
        self.check_gangs(set(self.shares.holdings) - before)
        settled = json.dumps(self.shares.to_dict())
        self.shares.advance(self.now)
        assert json.dumps(self.shares.to_dict()) == settled, "something was left to be done"

    def check_gangs(self, granted: Iterable[str]) -> None:
        gangs = [self.shares.holdings[id_].request.claim for id_ in granted]
        for claim in gangs:
            if claim.gang:
                assert len([each for each in gangs if each.gang == claim.gang]) == claim.gang_size

    def enter(self, claim: Claim) -> None:
        if obstacle(claim, self.devices) is None:
            number = next(self.numbers)
            keys = tuple(device.key for device in self.devices)
            count = largest_count(claim, self.devices)
            process = (Process(number, "1"),)
            self.shares.ask(Request(f"{number:04}", claim, process, self.now, keys, count), self.devices)

    @rule(wishes=CLAIMS, amount=AMOUNTS)
    def ask(self, wishes: dict[str, Any], amount: dict[str, Any]) -> None:
        self.enter(Claim(**wishes, **amount))
        self.act()

    @rule(wishes=CLAIMS, gpus=st.sampled_from([1, 2, 0.5]), size=st.integers(2, 3))
    def ask_as_a_gang(self, wishes: dict[str, Any], gpus: float, size: int) -> None:
        name = f"gang {next(self.numbers)}"
        for _ in range(size):
            self.enter(Claim(**wishes, gpus=gpus, gang=name, gang_size=size))
            self.act()

    @precondition(lambda self: self.shares.holdings or self.shares.waiting)
    @rule(data=st.data(), dies=st.booleans())
    def leave(self, data: st.DataObject, dies: bool) -> None:
        ids = sorted([*self.shares.holdings, *self.shares.waiting])
        id_ = data.draw(st.sampled_from(ids))
        if dies:
            self.dead.add(int(id_))
            self.shares.bury(lambda process: process.pid not in self.dead)
        else:
            self.shares.release(id_)
        self.act()
        assert id_ not in {**self.shares.holdings, **self.shares.waiting}

    @precondition(lambda self: self.shares.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.act(last_chance=data.draw(st.sampled_from(sorted(self.shares.waiting))))

    @rule(seconds=st.sampled_from([1.0, 60.0, AGEING_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.act()

    @invariant()
    def capacity_is_never_exceeded_and_exclusive_means_alone(self) -> None:
        for device in self.devices:
            users = [holding for holding in self.shares.holdings.values() if device.key in holding.devices]
            if any(holding.is_whole for holding in users):
                assert len(users) == 1
            taken = sum(holding.memory_mb[holding.devices.index(device.key)] for holding in users)
            assert taken <= device.memory_mb

    @invariant()
    def everybody_has_what_was_asked_for(self) -> None:
        devices = {device.key: device for device in self.devices}
        for holding in self.shares.holdings.values():
            claim, count = holding.request.claim, len(holding.devices)
            assert claim.least_count <= count <= claim.count
            assert len(set(holding.devices)) == count
            for key, memory_mb in zip(holding.devices, holding.memory_mb, strict=True):
                device = devices[key]
                assert (device.capability or 0) >= (claim.min_capability or 0)
                assert not claim.device_ids or device.index in claim.device_ids
                assert memory_mb >= (claim.memory_mb(count) or 0)
                assert memory_mb >= device.memory_mb * min(claim.gpus or 1, 1) or claim.memory_mb(count) is not None
            if holding.wanted_by:
                assert holding.wanted_by in self.shares.waiting


AllTimes.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAllTimes = AllTimes.TestCase


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=15, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from([1, 2, 0.25, 0.5]), st.integers(1, 5), st.integers(0, 2), st.sampled_from("xy")),
        min_size=5,
        max_size=40,
    )
)
def test_nobody_starves(order: str, arrivals: list[tuple[float, int, int, str]]) -> None:
    """Whoever wants the whole host gets it, though smaller and more important claims never stop coming."""
    step = 120.0
    desk = Desk(8192, 8192, order=order)
    ends: dict[str, float] = {}
    assert desk.ask("other", owner="x")
    ends["other"] = 5 * step
    assert not desk.ask("whole", gpus=2, owner="x")
    # By then it comes before all newcomers, and those that came before it have had their turns, one after the other.
    came_before = 2 * AGEING_SECONDS / step
    latest = desk.now + 2 * AGEING_SECONDS + (came_before + 2) * 5 * step
    for number, (gpus, steps, priority, owner) in enumerate(itertools.cycle(arrivals)):
        if "whole" in desk.shares.holdings:
            break
        assert desk.now < latest, "it starves"
        for id_ in [id_ for id_, end in ends.items() if end <= desk.now]:
            desk.shares.release(id_)
            del ends[id_]
        desk.ask(f"{number:05}", gpus=gpus, priority=priority, owner=owner)
        desk.now += step
        for id_ in desk.shares.holdings:
            ends.setdefault(id_, desk.now + steps * step)
