"""Nodes tell a server where they are, and learn of each other."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import pytest

from gridflow.compat.tensorflowonspark import util
from gridflow.compat.tensorflowonspark.reservation import Client, Reservations, Server, ServerAddress
from gridflow.errors import DeadlineError, RendezvousError, SettingsError, TaskFailedError


def free_ports(count: int) -> list[int]:
    """Return ports one behind the other that nobody has."""
    for first in range(20000, 30000, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("", port)).close()
        except OSError:
            continue
        return list(range(first, first + count))
    raise AssertionError("no port is free")


@contextmanager
def serving(count: int) -> Iterator[tuple[Server, ServerAddress]]:
    server = Server(count)
    try:
        yield server, server.start("127.0.0.1")
    finally:
        server.stop()


def test_reservations_are_done_when_all_are_there() -> None:
    reservations = Reservations(2)
    assert not reservations.done()
    reservations.add({"node": 1})
    assert (reservations.done(), reservations.remaining()) == (False, 1)
    reservations.add({"node": 2})
    assert (reservations.done(), reservations.remaining()) == (True, 0)
    assert reservations.get() == [{"node": 1}, {"node": 2}]


def test_nodes_that_are_started_again_void_what_they_said_before() -> None:
    reservations = Reservations(2)
    for attempt, node in ((None, "stays"), (0, "a"), (1, "b")):
        reservations.add({"attempt": attempt, "node": node})
    assert [each["node"] for each in reservations.get()] == ["stays", "b"]


def test_server_takes_reservations_and_the_wish_to_stop() -> None:
    with serving(1) as (server, address), closing(Client(address)) as client:
        assert client.register({"node": 1}) == "OK"
        assert client.get_reservations() == [{"node": 1}]
        assert client.await_reservations() == [{"node": 1}]
        assert not server.done
        assert client.request_stop() == "OK"
        assert server.done


def test_clients_wait_for_each_other() -> None:
    with serving(4) as (server, sent), ThreadPoolExecutor(4) as pool:
        address = pickle.loads(pickle.dumps(sent))
        assert isinstance(address, ServerAddress)

        def reserve(number: int) -> int:
            with closing(Client(address)) as client:
                client.register({"node": number})
                return len(client.await_reservations())

        assert list(pool.map(reserve, range(4))) == [4, 4, 4, 4]
        assert sorted(each["node"] for each in server.await_reservations(None)) == [0, 1, 2, 3]


def test_server_says_who_is_missing() -> None:
    server = Server(2)
    with pytest.raises(DeadlineError, match="timed out waiting for reservations to complete: 2 of 2 nodes"):
        server.await_reservations(None, timeout=0)
    with pytest.raises(TaskFailedError, match="a node failed before all were there: no disk"):
        server.await_reservations(None, {"error": "no disk"})


def test_host_and_ports_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Server(1).get_server_ip() == util.get_ip_address()
    assert Server(1).get_server_ports() == [0]
    monkeypatch.setenv("TFOS_SERVER_HOST", "driver.example")
    monkeypatch.setenv("TFOS_SERVER_PORT", "9999")
    assert Server(1).get_server_ip() == "driver.example"
    assert Server(1).get_server_ports() == [9999]
    monkeypatch.setenv("TFOS_SERVER_PORT", "9997-9999")
    assert Server(1).get_server_ports() == [9997, 9998, 9999]
    monkeypatch.setenv("TFOS_SERVER_PORT", "many")
    with pytest.raises(SettingsError, match="TFOS_SERVER_PORT='many' is no port"):
        Server(1).get_server_ports()


def test_server_takes_the_first_port_of_a_range_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_ports(2)
    monkeypatch.setenv("TFOS_SERVER_PORT", f"{first}-{second}")
    with Server(1).start_listening_socket() as one, Server(1).start_listening_socket() as two:
        assert (one.getsockname()[1], two.getsockname()[1]) == (first, second)
        with pytest.raises(RendezvousError, match=rf"none of the ports \[{first}, {second}\] can be had"):
            Server(1).start_listening_socket()


def test_strangers_are_not_listened_to() -> None:
    with serving(1) as (server, address):
        host, port = address
        with pytest.raises(RendezvousError, match=r"is not known \(give what Server.start\(\) returned\)"):
            Client((host, port))
        assert "secret" not in repr(address)
        with pytest.raises(RendezvousError):
            Client(ServerAddress(host, port, b"x" * 32))
        message = pickle.dumps({"type": "REG", "data": {"node": 1}})
        # The server may hang up at any point of what the stranger says.
        with socket.create_connection(address, timeout=20) as stranger, suppress(ConnectionError):
            stranger.sendall(struct.pack(">I", len(message)) + message)
            while stranger.recv(1024):
                pass
        assert server.reservations.remaining() == 1
