from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from tests.rendezvous.peers import DEADLINE_SECONDS, SECRET, Host, ServerProcess, fake_server

from gridflow.errors import AuthenticationError, DeadlineError, RendezvousError, RunCancelledError
from gridflow.rendezvous.client import Client
from gridflow.rendezvous.messages import Channel
from gridflow.rendezvous.roster import Address, Roster

StartServer = Callable[..., Host]

HERE = Address("10.0.0.1", 1)


def connect(server: Address, task: str = "worker/0", secret: bytes = SECRET) -> Client:
    return Client.connect(server, secret, task, timeout_seconds=DEADLINE_SECONDS)


def join(client: Client, address: Address = HERE) -> Roster:
    return client.join(address, timeout_seconds=DEADLINE_SECONDS)


def receive_one(client: Client) -> dict[str, object]:
    """Wait for a message as an agent does, with a selector."""
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ)
        while not (messages := client.receive()):
            assert selector.select(DEADLINE_SECONDS)
    [message] = messages
    return message


def free_address() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Address(*listener.getsockname())


def test_a_task_joins_reports_and_is_told(start_server: StartServer) -> None:
    host = start_server(["worker/0"], lease_seconds=7)
    with connect(host.address) as client:
        assert client.lease_seconds == 7
        assert join(client).to_dict() == {"worker/0": "10.0.0.1:1"}
        host.wait_for_joins(1)
        assert client.receive() == []
        client.send({"type": "ended", "exit_code": 0})
        assert host.next_event() == ("worker/0", {"type": "ended", "exit_code": 0})
        host.tell("worker/0", {"type": "stop"})
        assert receive_one(client) == {"type": "stop"}
    assert host.next_event() == ("worker/0", {"type": "gone"})


def test_a_heartbeat_after_joining_is_answered_by_nothing(start_server: StartServer) -> None:
    host = start_server(["worker/0"])
    with connect(host.address) as client:
        join(client)
        client.heartbeat()
        host.tell("worker/0", {"type": "stop"})
        assert receive_one(client) == {"type": "stop"}


def test_a_task_waits_for_a_server_that_is_not_up_yet() -> None:
    with socket.socket() as listener, ThreadPoolExecutor(1) as pool:
        # bound but not listening, so that connections are refused and nobody else takes the port
        listener.bind(("127.0.0.1", 0))
        address = Address(*listener.getsockname())
        clock = _CountingClock()
        connecting = pool.submit(
            Client.connect, address, SECRET, "worker/0", timeout_seconds=DEADLINE_SECONDS, clock=clock
        )
        assert clock.was_asked_often.wait(DEADLINE_SECONDS)
        listener.listen()
        connection, _ = listener.accept()
        with connection:
            server = Channel("server", SECRET, os.urandom(32))
            connection.sendall(server.hello)
            while not server.is_authenticated:
                server.feed(connection.recv(4096))
            connection.sendall(server.encode({"type": "welcome", "lease_seconds": 30}))
            connecting.result(DEADLINE_SECONDS).close()


class _CountingClock:
    """A clock that says when a few attempts have been made."""

    def __init__(self) -> None:
        self.was_asked_often = threading.Event()
        self._count = 0

    def __call__(self) -> float:
        self._count += 1
        if self._count > 5:
            self.was_asked_often.set()
        return 0.0


def test_a_server_that_cannot_be_reached_is_named_at_the_deadline() -> None:
    address = free_address()
    with pytest.raises(
        DeadlineError,
        match=rf"worker/0 could not reach the rendezvous server at {address} within 0\.2 s: .*Connection refused",
    ):
        Client.connect(address, SECRET, "worker/0", timeout_seconds=0.2)


def test_a_server_that_accepts_and_says_nothing_is_given_up_at_the_deadline() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(DeadlineError, match=r"worker/0 could not reach the .* within 0\.2 s: timed out"),
    ):
        Client.connect(Address(*listener.getsockname()), SECRET, "worker/0", timeout_seconds=0.2)


def test_a_server_that_hangs_up_is_tried_again_until_the_deadline() -> None:
    attempts = []
    with (
        fake_server(lambda connection: attempts.append(connection)) as address,
        pytest.raises(DeadlineError, match=r"within 0\.3 s: (it closed the connection|.*reset by peer|.*Broken pipe)"),
    ):
        Client.connect(address, SECRET, "worker/0", timeout_seconds=0.3)
    assert len(attempts) > 1


def test_a_task_with_a_wrong_secret_learns_so_at_once(start_server: StartServer) -> None:
    host = start_server(["worker/0"])
    with pytest.raises(
        AuthenticationError,
        match=rf"worker/0 cannot trust {host.address}: the other side does not know this run's secret",
    ):
        connect(host.address, secret=b"a guess")


def test_a_fake_server_cannot_welcome_a_task() -> None:
    def pretend(connection: socket.socket) -> None:
        connection.sendall(Channel("server", b"a guess", os.urandom(32)).hello)
        connection.recv(4096)
        connection.sendall((20).to_bytes(4, "big") + os.urandom(32) + b'J{"type":"welcome"} ')

    with fake_server(pretend) as address, pytest.raises(AuthenticationError, match="does not know this run's secret"):
        connect(address)


def test_a_fake_server_cannot_reflect_what_it_is_sent() -> None:
    def reflect(connection: socket.socket) -> None:
        while data := connection.recv(4096):
            connection.sendall(data)

    with fake_server(reflect) as address, pytest.raises(AuthenticationError, match="does not know this run's secret"):
        connect(address)


def test_a_server_of_another_kind_is_refused() -> None:
    with (
        fake_server(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as address,
        pytest.raises(RendezvousError, match=r"worker/0 cannot trust .* does not speak Gridflow's rendezvous: .*SSH-2"),
    ):
        connect(address)


def test_a_server_of_another_version_is_a_clear_error() -> None:
    with (
        fake_server(lambda connection: connection.sendall(b"GRIDFLOW\x00\x09" + bytes(32))) as address,
        pytest.raises(RendezvousError, match=r"the other side speaks version 9 .* \(install the same version"),
    ):
        connect(address)


def test_an_unknown_task_is_told_the_valid_ones(start_server: StartServer) -> None:
    host = start_server(["worker/0", "ps/0"])
    with pytest.raises(RendezvousError, match=r"refused worker/5: 'worker/5' is not a task .*worker/0, ps/0"):
        connect(host.address, task="worker/5")


def test_the_missing_tasks_are_named_at_the_deadline(start_server: StartServer) -> None:
    host = start_server(["worker/0", "worker/1", "ps/0"])
    with (
        connect(host.address) as client,
        pytest.raises(
            DeadlineError,
            match=rf"worker/0 waited 0\.4 s for all tasks to join at {host.address}; missing: worker/1, ps/0 \(see",
        ),
    ):
        client.join(HERE, timeout_seconds=0.4)


def test_of_many_missing_tasks_the_first_are_named_and_the_rest_counted(start_server: StartServer) -> None:
    host = start_server([f"worker/{index}" for index in range(1500)])
    with connect(host.address) as client, pytest.raises(DeadlineError, match=r"worker/10 and 1,489 more \(see"):
        client.join(HERE, timeout_seconds=0.4)


def test_a_server_that_falls_silent_is_said_to_be_so_at_the_deadline() -> None:
    done = threading.Event()

    def welcome_only(connection: socket.socket) -> None:
        server = Channel("server", SECRET, os.urandom(32))
        connection.sendall(server.hello)
        while not server.is_authenticated:
            server.feed(connection.recv(4096))
        connection.sendall(server.encode({"type": "welcome", "lease_seconds": 30}))
        assert done.wait(DEADLINE_SECONDS)

    with fake_server(welcome_only) as address:
        try:
            with (
                connect(address) as client,
                pytest.raises(DeadlineError, match=r"worker/0 waited 0\.1 s .* and heard nothing from the server"),
            ):
                client.join(HERE, timeout_seconds=0.1)
        finally:
            done.set()


def test_heartbeats_keep_the_lease_while_a_task_waits(start_server: StartServer) -> None:
    host = start_server(["worker/0", "worker/1"], lease_seconds=0.2)
    heard = threading.Event()
    times: list[float] = []

    def note(task: str, now: float) -> None:
        times.append(now)
        if len(times) > 5:
            heard.set()

    host.roster.heard = note  # type: ignore[method-assign]
    with (
        connect(host.address) as client,
        connect(host.address, task="worker/1") as other,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(join, client)
        assert heard.wait(DEADLINE_SECONDS)
        assert join(other, Address("10.0.0.1", 2)).to_dict() == waiting.result(DEADLINE_SECONDS).to_dict()


def test_a_task_told_to_stop_while_it_waits_stops_waiting(start_server: StartServer) -> None:
    host = start_server(["worker/0", "worker/1"])
    with connect(host.address) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(join, client)
        host.wait_for_joins(1)
        host.tell("worker/0", {"type": "stop"})
        with pytest.raises(RunCancelledError, match="worker/0 was told to stop while it waited for the other tasks"):
            waiting.result(DEADLINE_SECONDS)
        assert client.receive() == [{"type": "stop"}]


def test_other_messages_are_kept_while_a_task_waits(start_server: StartServer) -> None:
    host = start_server(["worker/0", "worker/1"])
    with (
        connect(host.address) as client,
        connect(host.address, task="worker/1") as other,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(join, client)
        host.wait_for_joins(1)
        host.tell("worker/0", {"type": "note"})
        join(other)
        waiting.result(DEADLINE_SECONDS)
        assert client.receive() == [{"type": "note"}]


def test_a_server_that_stops_while_a_task_waits_is_gone(start_server: StartServer) -> None:
    host = start_server(["worker/0", "worker/1"])
    with connect(host.address) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(join, client)
        host.wait_for_joins(1)
        host.stop()
        with pytest.raises(RendezvousError, match=rf"worker/0 lost the rendezvous server at {host.address}: it closed"):
            waiting.result(DEADLINE_SECONDS)


def test_a_server_that_is_killed_while_a_task_waits_is_gone() -> None:
    with (
        ServerProcess(["worker/0", "worker/1"]) as server,
        connect(server.address) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(join, client)
        assert server.output.readline() == "worker/0 join\n"
        server.kill()
        with pytest.raises(RendezvousError, match=rf"worker/0 lost the rendezvous server at {server.address}"):
            waiting.result(DEADLINE_SECONDS)


def test_what_was_told_before_the_server_was_gone_is_received_first(start_server: StartServer) -> None:
    host = start_server(["worker/0"])
    with connect(host.address) as client:
        join(client)
        host.tell("worker/0", {"type": "stop"})
        host.stop()
        assert client.receive() == [{"type": "stop"}]
        for _ in range(2):
            with pytest.raises(RendezvousError, match=r"worker/0 lost the .* it closed the connection \(the run has"):
                client.receive()


def test_sending_to_a_server_that_is_gone_is_an_error(start_server: StartServer) -> None:
    host = start_server(["worker/0"])
    with connect(host.address) as client:
        join(client)
        host.stop()
        # the first one may still leave, to be answered with a reset
        with suppress(RendezvousError):
            client.heartbeat()
        with pytest.raises(RendezvousError, match="worker/0 lost the rendezvous server"):
            client.heartbeat()


def test_a_report_arrives_although_the_task_closes_at_once_and_left_something_unread(start_server: StartServer) -> None:
    host = start_server(["worker/0"])
    report = {"type": "ended", "log": os.urandom(4_000_000).hex()}
    with connect(host.address) as client:
        join(client)
        host.wait_for_joins(1)
        host.tell("worker/0", {"type": "never read"})
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            assert selector.select(DEADLINE_SECONDS)
        client.send(report)
    assert host.next_event() == ("worker/0", report)
    assert host.next_event() == ("worker/0", {"type": "gone"})


def test_a_client_can_be_closed_twice_and_without_its_server(start_server: StartServer) -> None:
    host = start_server(["worker/0"])
    client = connect(host.address)
    host.stop()
    client.close()
    client.close()
    assert client.fileno() == -1


def test_a_task_whose_name_was_taken_over_learns_so(start_server: StartServer) -> None:
    host = start_server(["worker/0"])
    with connect(host.address) as stale, connect(host.address) as fresh:
        join(stale)
        join(fresh)
        with pytest.raises(RendezvousError, match="refused worker/0: worker/0 joined again on another connection"):
            receive_one(stale)


def test_the_server_learns_of_a_task_that_is_killed(start_server: StartServer) -> None:
    host = start_server(["worker/0"])
    script = (
        "import sys, time\n"
        "from gridflow.rendezvous.client import Client\n"
        "from gridflow.rendezvous.roster import Address\n"
        "secret = sys.stdin.readline().encode()\n"
        "client = Client.connect(Address.parse(sys.argv[1]), secret, 'worker/0', timeout_seconds=30)\n"
        "client.join(Address('10.0.0.1', 1), timeout_seconds=30)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(host.address)], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(SECRET)
        process.stdin.close()
        try:
            host.wait_for_joins(1)
        finally:
            process.kill()
        assert host.next_event() == ("worker/0", {"type": "gone"})


def test_the_client_loads_quickly_without_asyncio_or_logging() -> None:
    script = "import sys, gridflow.rendezvous.client; print([n for n in ('asyncio', 'logging') if n in sys.modules])"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output == "[]\n"
