from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from gridflow.errors import TaskError
from gridflow.task.ports import ReservedPort

#: Linux 6.3 and newer; Python does not name it yet.
_IP_LOCAL_PORT_RANGE = 51


class Listen(Protocol):
    def __call__(
        self, port: int, host: str = ..., family: int = ..., *, reuse: bool = ..., share: bool = ...
    ) -> socket.socket: ...


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Bind ports and listen there as a program would, until the test is over."""
    with ExitStack() as stack:

        def listen(
            port: int, host: str = "", family: int = socket.AF_INET, *, reuse: bool = True, share: bool = False
        ) -> socket.socket:
            server = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            if reuse:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if share:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            server.bind((host, port))
            server.listen()
            return server

        yield listen


@pytest.fixture
def port() -> Iterator[ReservedPort]:
    with ReservedPort() as port:
        yield port


def test_a_program_can_listen_on_its_reserved_port_and_be_reached(port: ReservedPort, listen: Listen) -> None:
    server = listen(port.number)
    with socket.create_connection(("127.0.0.1", port.number), timeout=10) as client:
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"hello")
            assert accepted.recv(5) == b"hello"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_program_can_listen_on_its_reserved_port_as_grpc_does(port: ReservedPort, listen: Listen) -> None:
    listen(port.number, "::", socket.AF_INET6, share=True)
    with socket.create_connection(("127.0.0.1", port.number), timeout=10):
        pass


def test_a_program_can_listen_again_after_a_restart(port: ReservedPort, listen: Listen) -> None:
    for _ in range(3):
        server = listen(port.number)
        with socket.create_connection(("127.0.0.1", port.number), timeout=10):
            server.accept()[0].close()
        server.close()


def test_nobody_who_asks_for_any_free_port_is_given_a_reserved_one(port: ReservedPort) -> None:
    def ask(host: str, among: int) -> int:
        """Ask for any free port among one."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asking:
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                asking.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, struct.pack("HH", among, among))
            except OSError:
                pytest.skip("this kernel cannot narrow down which ports are given")
            asking.bind((host, 0))
            given: int = asking.getsockname()[1]
            return given

    with ReservedPort() as other:
        free = other.number
    for host in ("", "127.0.0.1"):
        assert ask(host, free) == free
        with pytest.raises(OSError, match="Address already in use"):
            ask(host, port.number)


def test_two_reservations_are_never_the_same() -> None:
    with ExitStack() as stack:
        numbers = [stack.enter_context(ReservedPort()).number for _ in range(200)]
    assert len(set(numbers)) == 200


def test_a_task_that_comes_back_can_have_its_port_again(port: ReservedPort) -> None:
    with ReservedPort(port.number) as again:
        assert again.number == port.number


def test_a_reservation_ends_with_its_block(listen: Listen) -> None:
    with ReservedPort() as port, pytest.raises(OSError, match="Address already in use"):
        listen(port.number, reuse=False)
    listen(port.number, reuse=False)


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_a_port_that_somebody_listens_on_cannot_be_reserved(listen: Listen, host: str) -> None:
    taken = listen(0, host).getsockname()[1]
    with pytest.raises(TaskError) as caught:
        ReservedPort(taken)
    assert str(caught.value) == (
        f"port {taken} cannot be had: [Errno 98] Address already in use (the run tries again with others)"
    )


# Whether a stranger took the port


def test_a_port_that_nobody_took_was_not_taken(port: ReservedPort) -> None:
    assert not port.was_taken("ValueError: no data")


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_a_stranger_who_listens_took_the_port(port: ReservedPort, listen: Listen, host: str) -> None:
    listen(port.number, host)
    assert port.was_taken("")


def test_the_programs_own_connections_are_no_stranger(port: ReservedPort, listen: Listen) -> None:
    server = listen(port.number)
    with socket.create_connection(("127.0.0.1", port.number), timeout=10) as client:
        accepted, _ = server.accept()
        # The side that closes first leaves the connection in TIME_WAIT.
        accepted.close()
        assert client.recv(1) == b""
    server.close()
    assert not port.was_taken("ValueError: no data")


def test_tensorflow_says_itself_that_its_port_was_taken(port: ReservedPort) -> None:
    assert port.was_taken("tensorflow.python.framework.errors_impl.UnknownError: Could not start gRPC server")


def test_a_reservation_that_fails_leaves_no_descriptor(listen: Listen) -> None:
    taken = listen(0).getsockname()[1]
    before = os.listdir("/proc/self/fd")
    with pytest.raises(TaskError):
        ReservedPort(taken)
    assert os.listdir("/proc/self/fd") == before
