from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gridflow.errors import RendezvousError
from gridflow.rendezvous.roster import Address, Roster

HERE = Address("10.0.0.1", 2222)
THERE = Address("10.0.0.2", 2222)

hosts = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.from_regex(r"[a-z]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True),
)
addresses = st.builds(Address, hosts, st.integers(1, 65535))
task_names = st.builds("{}/{}".format, st.sampled_from(["chief", "worker", "ps", "evaluator"]), st.integers(0, 30))
task_lists = st.lists(task_names, min_size=1, unique=True)


@settings(deadline=None)
@given(addresses)
def test_an_address_survives_being_written_and_parsed(address: Address) -> None:
    assert Address.parse(str(address)) == address


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert str(Address("::1", 80)) == "[::1]:80"
    assert Address.parse("[fe80::1%eth0]:80") == Address("fe80::1%eth0", 80)


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(RendezvousError, match=rf"port {port} of host is not between 1 and 65535"):
        Address("host", port)


@pytest.mark.parametrize("host", ["", " ", "a b", "[::1]", "a/b", "a\nb", "\x00"])
def test_what_cannot_be_a_host_is_refused(host: str) -> None:
    with pytest.raises(RendezvousError, match="is not a host"):
        Address(host, 80)


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "::1:80", "[::1]", "h:+8", "h:8_0", "h:٣", "[]:80"])
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(RendezvousError, match=r"is not an address \(write host:port"):
        Address.parse(text)


@pytest.mark.parametrize("text", [":80", "[a:1", "host:0", "host:99999"])
def test_an_address_without_host_or_with_an_impossible_port_is_refused(text: str) -> None:
    with pytest.raises(RendezvousError, match=r"is not a host|is not between"):
        Address.parse(text)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_either_an_address_or_refused(text: str) -> None:
    try:
        address = Address.parse(text)
    except RendezvousError:
        return
    assert Address.parse(str(address)) == address


def test_a_roster_is_complete_when_every_task_has_joined() -> None:
    roster = Roster(["worker/0", "ps/0"])
    assert (roster.is_complete, roster.missing(), roster.missing_count) == (False, ["worker/0", "ps/0"], 2)
    roster.join("ps/0", HERE, now=0)
    assert (roster.is_complete, roster.missing(), roster.missing_count) == (False, ["worker/0"], 1)
    roster.join("worker/0", THERE, now=1)
    assert (roster.is_complete, roster.missing(), roster.missing_count) == (True, [], 0)
    assert roster["ps/0"] == HERE


def test_a_run_without_tasks_is_complete() -> None:
    assert Roster([]).is_complete


def test_missing_tasks_can_be_limited() -> None:
    assert Roster([f"worker/{index}" for index in range(100)]).missing(2) == ["worker/0", "worker/1"]


def test_an_unknown_task_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(RendezvousError, match=r"'worker/7' is not a task of this run \(its tasks are worker/0, ps/0\)"):
        Roster(["worker/0", "ps/0"]).join("worker/7", HERE, now=0)


def test_an_error_names_ten_tasks_at_most() -> None:
    roster = Roster([f"worker/{index}" for index in range(2000)])
    with pytest.raises(RendezvousError, match=r"its tasks are worker/0, .*, worker/9 and 1,990 more\)$"):
        roster.heard("chief/0", now=0)


@pytest.mark.parametrize("name", ["worker", "/0", "worker/", "worker/x", "worker/01", "worker/-1", "a/b/0"])
def test_a_malformed_task_name_is_refused(name: str) -> None:
    with pytest.raises(RendezvousError, match=r"not a task name: .* \(a task is named like worker/0\)"):
        Roster([name])


def test_a_task_listed_twice_is_refused() -> None:
    with pytest.raises(RendezvousError, match="tasks are listed twice: worker/1"):
        Roster(["worker/0", "worker/1", "worker/1"])


def test_a_lease_without_time_is_refused() -> None:
    with pytest.raises(RendezvousError, match="lease_seconds=0 leaves a task no time to be heard"):
        Roster(["worker/0"], lease_seconds=0)


def test_an_address_may_change_until_the_roster_is_complete() -> None:
    roster = Roster(["worker/0", "worker/1"])
    roster.join("worker/0", HERE, now=0)
    roster.join("worker/0", THERE, now=1)
    assert roster["worker/0"] == THERE
    roster.join("worker/1", HERE, now=2)
    roster.join("worker/0", THERE, now=3)
    with pytest.raises(RendezvousError, match=r"worker/0 cannot join from 10.0.0.1:2222: .* has it at 10.0.0.2:2222"):
        roster.join("worker/0", HERE, now=4)
    assert roster["worker/0"] == THERE


def test_a_task_that_has_not_joined_has_no_address() -> None:
    with pytest.raises(RendezvousError, match="ps/0 has not joined yet, so its address is not known"):
        Roster(["ps/0"]).group("ps")


def test_a_group_is_listed_by_index_not_by_name() -> None:
    tasks = [f"ps/{index}" for index in (10, 9, 1, 0)] + ["worker/0"]
    roster = Roster.from_dict({task: f"host-{task.replace('/', '-')}:1" for task in tasks})
    assert [address.host for address in roster.group("ps")] == ["host-ps-0", "host-ps-1", "host-ps-9", "host-ps-10"]
    assert roster.group("evaluator") == []


def test_a_silent_task_is_lost_after_its_lease() -> None:
    roster = Roster(["worker/0", "worker/1", "worker/2"], lease_seconds=10)
    roster.join("worker/0", HERE, now=0)
    roster.heard("worker/1", now=5)
    assert roster.lost(now=10) == []
    assert roster.lost(now=11) == ["worker/0"]
    assert roster.lost(now=16) == ["worker/0", "worker/1"]
    roster.heard("worker/0", now=16)
    assert roster.lost(now=17) == ["worker/1"]


def test_a_task_that_left_is_not_lost_and_a_late_heartbeat_does_not_bring_it_back() -> None:
    roster = Roster(["worker/0"], lease_seconds=10)
    roster.join("worker/0", HERE, now=0)
    roster.leave("worker/0")
    roster.heard("worker/0", now=1)
    assert roster.lost(now=100) == []
    assert roster["worker/0"] == HERE
    roster.join("worker/0", HERE, now=200)
    assert roster.lost(now=300) == ["worker/0"]


def test_nobody_is_lost_in_a_roster_that_was_received() -> None:
    roster = Roster.from_dict({"worker/0": "host:1"})
    assert roster.is_complete
    assert roster.lost(now=1e9) == []


@settings(deadline=None)
@given(st.dictionaries(task_names, addresses))
def test_a_complete_roster_survives_being_sent(members: dict[str, Address]) -> None:
    roster = Roster(members)
    for task, address in members.items():
        roster.join(task, address, now=0)
    received = Roster.from_dict(roster.to_dict())
    assert received.tasks == tuple(members)
    assert received.is_complete
    assert {task: received[task] for task in received.tasks} == members


class RosterMachine(RuleBasedStateMachine):
    """Compares a roster with the plainest model of it, under any order of calls."""

    @initialize(tasks=task_lists, lease=st.integers(1, 20))
    def start(self, tasks: list[str], lease: int) -> None:
        self.tasks, self.lease, self.now = tasks, lease, 0
        self.roster = Roster(tasks, lease_seconds=lease)
        self.addresses: dict[str, Address] = {}
        self.heard: dict[str, int] = {}
        self.left: set[str] = set()

    @rule(seconds=st.integers(0, 15))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(data=st.data(), address=st.sampled_from([HERE, THERE]))
    def join(self, data: st.DataObject, address: Address) -> None:
        task = data.draw(st.sampled_from(self.tasks))
        if len(self.addresses) == len(self.tasks) and self.addresses[task] != address:
            with pytest.raises(RendezvousError):
                self.roster.join(task, address, self.now)
            return
        self.roster.join(task, address, self.now)
        self.addresses[task] = address
        self.heard[task] = self.now
        self.left.discard(task)

    @precondition(lambda self: len(self.addresses) < len(self.tasks))
    @rule()
    def all_join(self) -> None:
        for task in self.roster.missing():
            self.roster.join(task, HERE, self.now)
            self.addresses[task], self.heard[task] = HERE, self.now
            self.left.discard(task)

    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.tasks))
        self.roster.heard(task, self.now)
        if task not in self.left:
            self.heard[task] = self.now

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.tasks))
        self.roster.leave(task)
        self.left.add(task)
        self.heard.pop(task, None)

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.roster.missing() == [task for task in self.tasks if task not in self.addresses]
        assert self.roster.is_complete == (len(self.addresses) == len(self.tasks))
        assert self.roster.to_dict() == {task: str(address) for task, address in self.addresses.items()}
        silent = [task for task in self.tasks if task in self.heard and self.now - self.heard[task] > self.lease]
        assert self.roster.lost(self.now) == silent


TestRosterMachine = RosterMachine.TestCase
TestRosterMachine.settings = settings(deadline=None, max_examples=50)
