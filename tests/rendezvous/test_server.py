from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from tests.rendezvous.peers import DEADLINE_SECONDS, SECRET, Host, ServerProcess, Wire

from gridflow.errors import RendezvousError
from gridflow.rendezvous.client import Client
from gridflow.rendezvous.roster import Address, Roster
from gridflow.rendezvous.server import Limits, Server

StartServer = Callable[..., Host]
OpenWire = Callable[..., Wire]

#: Twenty of these, 10 MB, are more than kernel buffers hold for a peer that does not read.
LARGE = {"type": "large", "text": os.urandom(500_000).hex()}


def ignore(task: str, message: dict[str, Any]) -> None:
    """Take no interest in events."""


def join_all(host: Host) -> None:
    """Show that the server still does its work: every task joins and gets the roster."""

    def join(task: str, port: int) -> dict[str, str]:
        with Client.connect(host.address, SECRET, task, timeout_seconds=DEADLINE_SECONDS) as client:
            return client.join(Address("10.0.0.1", port), timeout_seconds=DEADLINE_SECONDS).to_dict()

    tasks = host.roster.tasks
    expected = {task: f"10.0.0.1:{port}" for port, task in enumerate(tasks, start=1)}
    with ThreadPoolExecutor(len(tasks)) as pool:
        for roster in pool.map(join, tasks, range(1, len(tasks) + 1)):
            assert roster == expected


def test_tasks_join_report_are_told_and_leave(start_server: StartServer, open_wire: OpenWire) -> None:
    host = start_server(["worker/0", "ps/0"])
    worker, ps = open_wire(host.address), open_wire(host.address)
    worker.join("worker/0", "10.0.0.1:1")
    assert host.next_event() == ("worker/0", {"type": "join", "address": "10.0.0.1:1"})
    ps.join("ps/0", "[::1]:2")
    assert host.next_event() == ("ps/0", {"type": "join", "address": "[::1]:2"})
    roster = {"type": "roster", "tasks": {"worker/0": "10.0.0.1:1", "ps/0": "[::1]:2"}}
    assert worker.next() == ps.next() == roster
    worker.send({"type": "ended", "exit_code": 0})
    assert host.next_event() == ("worker/0", {"type": "ended", "exit_code": 0})
    host.tell("ps/0", {"type": "stop"})
    assert ps.next() == {"type": "stop"}
    ps.socket.close()
    assert host.next_event() == ("ps/0", {"type": "gone"})
    host.tell("ps/0", {"type": "stop"})
    host.tell("worker/0", {"type": "still here"})
    assert worker.next() == {"type": "still here"}


def test_two_hundred_tasks_join_at_once(start_server: StartServer) -> None:
    join_all(start_server([f"worker/{index}" for index in range(200)]))


def test_a_crowd_larger_than_the_room_for_strangers_gets_in_by_and_by(start_server: StartServer) -> None:
    join_all(start_server([f"worker/{index}" for index in range(40)], limits=Limits(strangers=2)))


def test_heartbeats_renew_the_lease_and_are_answered_with_who_is_missing(
    start_server: StartServer, open_wire: OpenWire
) -> None:
    now = [0.0]
    tasks = [f"worker/{index}" for index in range(14)]
    host = start_server(tasks, clock=lambda: now[0], lease_seconds=10)
    wire = open_wire(host.address)
    wire.join("worker/0", "10.0.0.1:1")
    host.wait_for_joins(1)
    now[0] = 11
    assert host.roster.lost(now=11) == ["worker/0"]
    wire.send({"type": "heartbeat"})
    assert wire.next() == {"type": "waiting", "missing": tasks[1:11], "count": 13}
    assert host.roster.lost(now=11) == []
    assert host.events.empty()


def test_a_report_before_joining_is_an_event_and_its_sender_does_not_count_as_gone(
    start_server: StartServer, open_wire: OpenWire
) -> None:
    host = start_server(["worker/0"])
    wire = open_wire(host.address)
    wire.enter("worker/0")
    wire.send({"type": "error", "reason": "no port"})
    assert host.next_event() == ("worker/0", {"type": "error", "reason": "no port"})
    wire.socket.close()
    join_all(host)
    assert host.next_event()[1]["type"] == "join"


def test_a_task_that_rejoins_with_its_address_gets_the_roster_at_once(
    start_server: StartServer, open_wire: OpenWire
) -> None:
    host = start_server(["worker/0"])
    for _ in range(2):
        wire = open_wire(host.address)
        wire.join("worker/0", "10.0.0.1:1")
        assert wire.next() == {"type": "roster", "tasks": {"worker/0": "10.0.0.1:1"}}


def test_a_restarted_agent_replaces_its_stale_connection_without_being_gone(
    start_server: StartServer, open_wire: OpenWire
) -> None:
    host = start_server(["worker/0", "worker/1"])
    stale, fresh = open_wire(host.address), open_wire(host.address)
    stale.join("worker/0", "10.0.0.1:1")
    host.wait_for_joins(1)
    fresh.join("worker/0", "10.0.0.1:2")
    host.wait_for_joins(1)
    assert stale.next() == {"type": "refused", "reason": "worker/0 joined again on another connection"}
    assert stale.read_to_end() == b""
    fresh.send({"type": "report"})
    assert host.next_event() == ("worker/0", {"type": "report"})
    assert host.roster["worker/0"] == Address("10.0.0.1", 2)


def test_a_second_task_that_claims_a_name_in_a_complete_roster_is_refused_and_the_first_stays(
    start_server: StartServer, open_wire: OpenWire, caplog: pytest.LogCaptureFixture
) -> None:
    host = start_server(["worker/0"])
    first, second = open_wire(host.address), open_wire(host.address)
    first.join("worker/0", "10.0.0.1:1")
    assert first.next()["type"] == "roster"
    second.enter("worker/0")
    claim = second.channel.encode({"type": "join", "address": "10.0.0.66:1"})
    second.send_bytes(claim + second.channel.encode({"type": "report"}))
    refusal = second.next()
    assert refusal["type"] == "refused"
    assert refusal["reason"].startswith(
        "worker/0 cannot join from 10.0.0.66:1: the roster is complete and has it at 10"
    )
    assert second.read_to_end() == b""
    host.tell("worker/0", {"type": "stop"})
    assert first.next() == {"type": "stop"}
    host.wait_for_joins(1)
    assert host.events.empty()
    assert "refused worker/0 at 127.0.0.1" in caplog.text


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"type": "enter", "task": "worker/9"}, "'worker/9' is not a task of this run (its tasks are worker/0)"),
        ({"type": "enter", "task": ["worker/0"]}, "a connection began with 'enter' instead of naming its task"),
        ({"type": "join"}, "a connection began with 'join' instead of naming its task"),
    ],
)
def test_who_knows_the_secret_but_is_no_task_is_refused(
    start_server: StartServer, open_wire: OpenWire, message: dict[str, Any], reason: str
) -> None:
    host = start_server(["worker/0"])
    wire = open_wire(host.address)
    wire.open()
    wire.send(message)
    assert wire.next() == {"type": "refused", "reason": reason}
    assert wire.read_to_end() == b""
    join_all(host)


@pytest.mark.parametrize("address", [None, 7, "", "nowhere", "host:0", {"host": "a"}])
def test_joining_without_a_valid_address_is_refused(
    start_server: StartServer, open_wire: OpenWire, address: Any
) -> None:
    host = start_server(["worker/0"])
    wire = open_wire(host.address)
    wire.join("worker/0", address)
    assert wire.next()["type"] == "refused"
    join_all(host)


def test_a_stranger_with_a_wrong_secret_is_refused_and_the_secret_is_not_logged(
    start_server: StartServer, open_wire: OpenWire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    host = start_server(["worker/0"])
    for _ in range(2):
        wire = open_wire(host.address, b"a guess")
        wire.open()
        wire.send({"type": "enter", "task": "worker/0"})
        wire.read_to_end()
    join_all(host)
    refusals = [record for record in caplog.records if record.name == "gridflow.rendezvous.server"]
    assert [record.levelname for record in refusals] == ["WARNING", "DEBUG"]
    assert "refused a stranger at 127.0.0.1" in caplog.text
    assert "does not know this run's secret" in caplog.text
    assert SECRET.decode() not in caplog.text


def test_a_recorded_connection_cannot_be_replayed(start_server: StartServer, open_wire: OpenWire) -> None:
    host = start_server(["worker/0", "worker/1"])
    recorded, replay = open_wire(host.address), open_wire(host.address)
    recorded.join("worker/0", "10.0.0.1:1")
    host.wait_for_joins(1)
    replay.send_bytes(recorded.sent)
    replay.read_to_end()
    recorded.send({"type": "report"})
    assert host.next_event() == ("worker/0", {"type": "report"})


def test_a_frame_repeated_on_its_own_connection_ends_it(start_server: StartServer, open_wire: OpenWire) -> None:
    host = start_server(["worker/0", "worker/1"])
    wire = open_wire(host.address)
    wire.join("worker/0", "10.0.0.1:1")
    frame = wire.channel.encode({"type": "report"})
    wire.send_bytes(frame + frame)
    assert wire.next() == {"type": "refused", "reason": "frame 3 was altered, repeated or out of order"}
    assert wire.read_to_end() == b""
    host.wait_for_joins(1)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100_000, b"\x80\x04\x95cposix\nsystem", b"GRIDFLOW\xff\xff", b"GRIDFLOX"],
)
def test_garbage_is_cut_off(start_server: StartServer, open_wire: OpenWire, garbage: bytes) -> None:
    host = start_server(["worker/0"])
    wire = open_wire(host.address)
    wire.send_bytes(garbage)
    wire.read_to_end()
    join_all(host)


def test_a_stranger_that_announces_a_huge_frame_is_cut_off(start_server: StartServer, open_wire: OpenWire) -> None:
    host = start_server(["worker/0"])
    wire = open_wire(host.address)
    wire.open()
    wire.send_bytes(b"\xff" * 36)
    wire.read_to_end()
    join_all(host)


def test_a_task_that_sends_a_huge_message_is_cut_off(start_server: StartServer, open_wire: OpenWire) -> None:
    host = start_server(["worker/0", "worker/1"], limits=Limits(message_bytes=10_000))
    wire = open_wire(host.address)
    wire.join("worker/0", "10.0.0.1:1")
    host.wait_for_joins(1)
    wire.send({"type": "report", "text": os.urandom(20_000).hex()})
    assert "is larger than the 10,000 bytes allowed" in wire.next()["reason"]
    assert host.next_event() == ("worker/0", {"type": "gone"})


def test_a_half_open_connection_is_closed_at_its_deadline(start_server: StartServer, open_wire: OpenWire) -> None:
    host = start_server(["worker/0"], limits=Limits(hello_seconds=0.1))
    silent, halfway = open_wire(host.address), open_wire(host.address)
    halfway.open()
    assert len(silent.read_to_end()) == len(silent.channel.hello)
    assert halfway.read_to_end() == b""
    join_all(host)


def test_a_stranger_that_trickles_its_bytes_is_closed_at_its_deadline(
    start_server: StartServer, open_wire: OpenWire
) -> None:
    host = start_server(["worker/0"], limits=Limits(hello_seconds=0.3))
    wire = open_wire(host.address)
    wire.open()
    wire.socket.settimeout(0.05)
    frame = wire.channel.encode({"type": "enter", "task": "worker/0", "padding": "x" * 900})
    is_closed = False
    for position in range(len(frame)):
        try:
            wire.socket.sendall(frame[position : position + 1])
            is_closed = wire.socket.recv(1) == b""
        except TimeoutError:
            continue
        except ConnectionError:
            is_closed = True
        if is_closed:
            break
    assert is_closed
    join_all(host)


def test_who_has_joined_may_be_silent_for_longer_than_a_stranger(
    start_server: StartServer, open_wire: OpenWire
) -> None:
    host = start_server(["worker/0", "worker/1"], limits=Limits(hello_seconds=0.1))
    member, stranger = open_wire(host.address), open_wire(host.address)
    member.join("worker/0", "10.0.0.1:1")
    stranger.read_to_end()
    member.send({"type": "report"})
    host.wait_for_joins(1)
    assert host.next_event() == ("worker/0", {"type": "report"})


def test_a_connection_beyond_the_room_for_strangers_is_closed_at_once(
    start_server: StartServer, open_wire: OpenWire
) -> None:
    host = start_server(["worker/0"], limits=Limits(strangers=3, grace_seconds=1000))
    strangers = [open_wire(host.address) for _ in range(3)]
    for wire in strangers:
        wire.open()
    assert open_wire(host.address).read_to_end() == b""
    strangers[0].send({"type": "enter", "task": "worker/0"})
    assert strangers[0].next()["type"] == "welcome"


def test_a_flood_of_idle_connections_does_not_keep_tasks_out(start_server: StartServer, open_wire: OpenWire) -> None:
    host = start_server(["worker/0", "worker/1"], limits=Limits(strangers=3, grace_seconds=0.001))
    flood = [open_wire(host.address) for _ in range(50)]
    join_all(host)
    assert sum(wire.is_closed() for wire in flood) >= 47


def test_a_task_that_does_not_read_is_dropped_and_the_others_are_not_disturbed(
    start_server: StartServer, open_wire: OpenWire, caplog: pytest.LogCaptureFixture
) -> None:
    host = start_server(["worker/0", "worker/1"], limits=Limits(unsent_messages=5))
    slow, quick = open_wire(host.address, receive_buffer_bytes=4096), open_wire(host.address)
    slow.join("worker/0", "10.0.0.1:1")
    quick.join("worker/1", "10.0.0.1:2")
    host.wait_for_joins(2)
    assert quick.next()["type"] == "roster"
    for _ in range(20):
        host.tell("worker/0", LARGE)
    assert host.next_event() == ("worker/0", {"type": "gone"})
    host.tell("worker/1", {"type": "stop"})
    assert quick.next() == {"type": "stop"}
    assert "it left 5 messages unread" in caplog.text


def test_a_task_that_reads_too_slowly_is_dropped_at_the_deadline(
    start_server: StartServer, open_wire: OpenWire, caplog: pytest.LogCaptureFixture
) -> None:
    host = start_server(["worker/0"], limits=Limits(send_seconds=0.2))
    slow = open_wire(host.address, receive_buffer_bytes=4096)
    slow.join("worker/0", "10.0.0.1:1")
    host.wait_for_joins(1)
    for _ in range(20):
        host.tell("worker/0", LARGE)
    assert host.next_event() == ("worker/0", {"type": "gone"})
    assert "closed the connection of worker/0 at 127.0.0.1" in caplog.text
    assert "it did not read what it was sent within 0.2 s" in caplog.text


def test_the_last_words_of_a_task_are_heard_although_it_cannot_be_told_anything_more(
    start_server: StartServer, open_wire: OpenWire
) -> None:
    host = start_server(["worker/0"])
    wire = open_wire(host.address)
    wire.join("worker/0", "10.0.0.1:1")
    host.wait_for_joins(1)
    has_begun, has_left = threading.Event(), threading.Event()

    def talk_to_who_has_left() -> None:
        has_begun.set()
        assert has_left.wait(DEADLINE_SECONDS)
        for _ in range(3):
            host.server.tell("worker/0", {"type": "stop"})

    host.call(talk_to_who_has_left)
    assert has_begun.wait(DEADLINE_SECONDS)
    wire.send({"type": "ended", "exit_code": 1})
    wire.socket.close()
    has_left.set()
    assert host.next_event() == ("worker/0", {"type": "ended", "exit_code": 1})
    assert host.next_event() == ("worker/0", {"type": "gone"})


def test_what_is_sent_in_pieces_arrives_whole_and_in_order(start_server: StartServer, open_wire: OpenWire) -> None:
    host = start_server(["worker/0"])
    wire = open_wire(host.address)
    wire.join("worker/0", "10.0.0.1:1")
    host.wait_for_joins(1)
    texts = [os.urandom(500_000).hex() for _ in range(20)]
    for text in texts:
        host.tell("worker/0", {"type": "large", "text": text})
    assert wire.next()["type"] == "roster"
    assert [wire.next()["text"] for _ in texts] == texts
    wire.send({"type": "report"})
    assert host.next_event() == ("worker/0", {"type": "report"})


def test_a_roster_that_nobody_reads_is_held_once_not_once_per_task(
    start_server: StartServer, open_wire: OpenWire
) -> None:
    tasks = [f"worker/{index}" for index in range(20)]
    host = start_server(tasks)
    wires = [open_wire(host.address, receive_buffer_bytes=4096) for _ in tasks]
    for task, wire in zip(tasks[:-1], wires[:-1], strict=True):
        wire.join(task, f"{os.urandom(350_000).hex()}:1")
        host.wait_for_joins(1)
    wires[-1].enter(tasks[-1])
    tracemalloc.start()
    try:
        wires[-1].send({"type": "join", "address": "10.0.0.1:1"})
        host.wait_for_joins(1)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # the compressed roster has 6.7 MB; kernel buffers take up to 4 MB of each copy
    assert 6_000_000 < held_bytes < 12_000_000


def test_a_server_that_stops_delivers_what_it_was_told_and_reports_nothing_more(
    start_server: StartServer, open_wire: OpenWire
) -> None:
    host = start_server(["worker/0"])
    wire, stranger = open_wire(host.address), open_wire(host.address)
    wire.join("worker/0", "10.0.0.1:1")
    host.wait_for_joins(1)
    stranger.open()
    host.tell("worker/0", {"type": "stop"})
    host.stop()
    assert [wire.next()["type"], wire.next()["type"]] == ["roster", "stop"]
    assert wire.read_to_end() == stranger.read_to_end() == b""
    assert host.events.empty()
    with pytest.raises(ConnectionRefusedError):
        open_wire(host.address)


def wait_until_closed(address: Address) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    with suppress(ConnectionRefusedError):
        while time.monotonic() < deadline:
            socket.create_connection((address.host, address.port), timeout=DEADLINE_SECONDS).close()
        pytest.fail(f"{address} is still open")


def test_stopping_waits_for_a_task_that_reads(start_server: StartServer, open_wire: OpenWire) -> None:
    host = start_server(["worker/0"], limits=Limits(stop_seconds=DEADLINE_SECONDS))
    visitor = open_wire(host.address)
    visitor.send_bytes(b"garbage")
    visitor.read_to_end()
    wire = open_wire(host.address, receive_buffer_bytes=4096)
    wire.join("worker/0", "10.0.0.1:1")
    host.wait_for_joins(1)
    for _ in range(20):
        host.tell("worker/0", LARGE)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(host.stop)
        wait_until_closed(host.address)
        assert wire.next()["type"] == "roster"
        assert [wire.next() for _ in range(20)] == [LARGE] * 20
        stopping.result(DEADLINE_SECONDS)


def test_stopping_does_not_wait_for_a_task_that_does_not_read(start_server: StartServer, open_wire: OpenWire) -> None:
    host = start_server(["worker/0"], limits=Limits(stop_seconds=0.1))
    wire = open_wire(host.address, receive_buffer_bytes=4096)
    wire.join("worker/0", "10.0.0.1:1")
    host.wait_for_joins(1)
    for _ in range(20):
        host.tell("worker/0", LARGE)
    host.stop()
    wire.read_to_end()


def test_a_server_without_free_descriptors_takes_tasks_again_when_there_are_some(open_wire: OpenWire) -> None:
    with ServerProcess(["worker/0"], descriptors=20) as server:
        flood = [open_wire(server.address) for _ in range(40)]
        assert server.output.readline() == "log cannot accept connections: [Errno 24] Too many open files; pausing\n"
        for wire in flood:
            wire.socket.close()
        with Client.connect(server.address, SECRET, "worker/0", timeout_seconds=DEADLINE_SECONDS) as client:
            roster = client.join(Address("10.0.0.1", 1), timeout_seconds=DEADLINE_SECONDS)
        assert roster.to_dict() == {"worker/0": "10.0.0.1:1"}


def test_a_supervisor_that_fails_on_an_event_still_gets_the_next_one(
    open_wire: OpenWire, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(task: str, message: dict[str, Any]) -> None:
        if message["type"] == "poison":
            raise RendezvousError("the supervisor's own mistake")
        host.events.put((task, message))

    host = Host(Roster(["worker/0"]), on_event=fail)
    with host:
        wire = open_wire(host.address)
        wire.join("worker/0", "10.0.0.1:1")
        host.wait_for_joins(1)
        wire.send_bytes(wire.channel.encode({"type": "poison"}) + wire.channel.encode({"type": "report"}))
        assert host.next_event() == ("worker/0", {"type": "report"})
    assert "the event 'poison' of worker/0 was not handled" in caplog.text
    assert "the supervisor's own mistake" in caplog.text


def test_a_server_that_never_started_can_be_stopped() -> None:
    asyncio.run(Server(Roster(["worker/0"]), SECRET, ignore).stop())


def test_a_port_that_is_taken_is_an_error_which_names_it() -> None:
    async def start(port: int) -> None:
        await Server(Roster(["worker/0"]), SECRET, ignore).start("127.0.0.1", port)

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RendezvousError, match=f"cannot listen on '127.0.0.1', port {port}: Address already in use"):
            asyncio.run(start(port))


def test_a_host_that_is_not_ours_is_an_error_which_names_it() -> None:
    async def start() -> None:
        await Server(Roster(["worker/0"]), SECRET, ignore).start("203.0.113.1")

    with pytest.raises(RendezvousError, match=r"cannot listen on '203\.0\.113\.1', port 0: Cannot assign requested"):
        asyncio.run(start())


def test_a_server_without_a_secret_is_refused() -> None:
    with pytest.raises(RendezvousError, match="the run's secret is empty"):
        Server(Roster(["worker/0"]), b"", ignore)


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(RendezvousError, match="limit strangers=0 is not above 0"):
        Limits(strangers=0)
