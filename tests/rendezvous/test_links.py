"""Links carry messages and bytes between processes that know the secret."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterator

import pytest

from gridflow.errors import RendezvousError
from gridflow.rendezvous.links import Bytes, Link, LinkServer, Place
from gridflow.rendezvous.messages import MAGIC

SECRET = b"s" * 32


def echo(link: Link) -> None:
    while (message := link.receive(10)) is not None:
        content = bytearray(message["bytes"])
        link.receive_bulk(content)
        link.send({**message, "type": "echo"}, content)


def unused_name() -> str:
    return f"gridflow-tests-{secrets.token_hex(8)}"


@pytest.fixture(params=["tcp", "unix"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with LinkServer(SECRET, echo) as server:
        if request.param == "tcp":
            yield server.listen("127.0.0.1")
        else:
            name = unused_name()
            server.listen_on(name)
            yield name


def test_link_carries_messages_with_bytes_behind_them_both_ways(place: Place) -> None:
    large = os.urandom(3_000_000)
    parts: list[Bytes] = [large, b"", memoryview(b"abc")]
    with Link.connect(place, SECRET) as link:
        for _ in range(3):
            link.send({"type": "block", "bytes": 3_000_003}, *parts)
            assert link.receive(10) == {"type": "echo", "bytes": 3_000_003}
            content = bytearray(3_000_003)
            link.receive_bulk(content)
            assert content == large + b"abc"


def test_link_reads_nothing_before_it_is_asked_for(place: Place) -> None:
    with Link.connect(place, SECRET) as link:
        assert link.receive(0.01) is None
        link.send({"type": "block", "bytes": 0})
        link.send({"type": "block", "bytes": 1}, b"x")
        assert link.receive(10) == {"type": "echo", "bytes": 0}
        assert link.receive(10) == {"type": "echo", "bytes": 1}


def test_wrong_secret_is_refused_on_both_sides(place: Place) -> None:
    with pytest.raises(RendezvousError, match=f"cannot connect to {place}: "):
        Link.connect(place, b"another secret")


def test_stranger_gets_nothing_and_costs_the_others_nothing(place: Place) -> None:
    with Link.connect(place, SECRET) as link:
        with socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET) as stranger:
            stranger.connect(f"\0{place}" if isinstance(place, str) else (place.host, place.port))
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            received = b""
            while data := stranger.recv(1000):
                received += data
            assert received[: len(MAGIC)] == MAGIC
            assert len(received) < 100
        link.send({"type": "block", "bytes": 0})
        assert link.receive(10) == {"type": "echo", "bytes": 0}


def test_server_that_stops_ends_its_links_and_threads() -> None:
    before = set(threading.enumerate())
    server = LinkServer(SECRET, echo)
    name = unused_name()
    server.listen_on(name)
    with Link.connect(name, SECRET) as link:
        server.stop()
        with pytest.raises(RendezvousError, match="the connection was lost: the other side closed it"):
            link.receive(10)
    assert set(threading.enumerate()) <= before


def test_name_that_is_taken_is_refused() -> None:
    with LinkServer(SECRET, echo) as server:
        name = unused_name()
        server.listen_on(name)
        with pytest.raises(RendezvousError, match=f"cannot listen on the Unix socket '{name}': .*in use"):
            server.listen_on(name)


def test_place_where_nobody_listens_is_named() -> None:
    name = unused_name()
    with pytest.raises(RendezvousError, match=f"cannot connect to {name}: .*refused"):
        Link.connect(name, SECRET)


def test_cut_in_the_middle_of_bytes_is_a_lost_connection() -> None:
    def cut(link: Link) -> None:
        link.send({"type": "block", "bytes": 10}, b"12345")

    with LinkServer(SECRET, cut) as server:
        address = server.listen("127.0.0.1")
        with Link.connect(address, SECRET) as link:
            assert link.receive(10) == {"type": "block", "bytes": 10}
            with pytest.raises(RendezvousError, match="the other side closed it"):
                link.receive_bulk(bytearray(10))
