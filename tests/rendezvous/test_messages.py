from __future__ import annotations

import hashlib
import pickle
import zlib
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridflow.errors import AuthenticationError, RendezvousError
from gridflow.rendezvous.messages import MAX_MESSAGE_BYTES, MAX_STRANGER_BYTES, Channel, Message, Payload, pack, unpack

SECRET = b"the secret of this run"
HELLO_BYTES = 42
HEAD_BYTES = 36

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=5,
)
messages = st.builds(
    lambda kind, rest: {**rest, "type": kind}, st.text(max_size=10), st.dictionaries(st.text(), json_values, max_size=3)
)


def pair(secret: bytes = SECRET, **options: Any) -> tuple[Channel, Channel]:
    """Make a server's and a client's channel whose hellos have been exchanged."""
    server, client = Channel("server", SECRET, b"s" * 32, **options), Channel("client", secret, b"c" * 32, **options)
    assert client.feed(server.hello) == server.feed(client.hello) == []
    return server, client


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(position % (len(stream) + 1) for position in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


@settings(deadline=None)
@given(st.lists(messages, max_size=5), st.lists(st.integers(0), max_size=20))
def test_messages_arrive_whatever_pieces_the_stream_comes_in(sent: list[Message], cuts: list[int]) -> None:
    server, client = Channel("server", SECRET, b"s" * 32), Channel("client", SECRET, b"c" * 32)
    client.feed(server.hello)
    stream = client.hello + b"".join(client.encode(message) for message in sent)
    assert [message for piece in cut(stream, cuts) for message in server.feed(piece)] == sent


@settings(deadline=None, max_examples=200)
@given(st.lists(messages, min_size=1, max_size=3), st.lists(st.integers(0), max_size=8), st.integers(0))
def test_a_flipped_bit_never_passes(sent: list[Message], cuts: list[int], position: int) -> None:
    server, client = Channel("server", SECRET, b"s" * 32), Channel("client", SECRET, b"c" * 32)
    client.feed(server.hello)
    stream = bytearray(client.hello + b"".join(client.encode(message) for message in sent))
    stream[position // 8 % len(stream)] ^= 1 << position % 8
    received: list[Message] = []
    with suppress(RendezvousError):
        for piece in cut(bytes(stream), cuts):
            received += server.feed(piece)
    # a longer length makes the server wait for more, all else is refused: nothing that was altered gets through
    assert received == sent[: len(received)]
    assert len(received) < len(sent)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for_and_never_becomes_a_message(data: bytes) -> None:
    server = Channel("server", SECRET, b"s" * 32)
    try:
        assert server.feed(data) == []
    except RendezvousError:
        assert not server.is_authenticated


def test_both_sides_are_authenticated_by_their_first_frame() -> None:
    server, client = pair()
    assert not server.is_authenticated
    assert server.feed(client.encode({"type": "enter"})) == [{"type": "enter"}]
    assert server.is_authenticated
    assert client.feed(server.encode({"type": "welcome"})) == [{"type": "welcome"}]
    assert client.is_authenticated


def test_nothing_can_be_sent_before_the_hello_of_the_other_side() -> None:
    with pytest.raises(RendezvousError, match="nothing can be sent before the other side's hello has arrived"):
        Channel("client", SECRET, b"c" * 32).encode({"type": "enter"})


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(RendezvousError, match="the run's secret is empty"):
        Channel("client", b"", b"c" * 32)


def test_a_client_with_another_secret_is_refused() -> None:
    server, client = pair(secret=b"something else")
    with pytest.raises(AuthenticationError, match="the other side does not know this run's secret"):
        server.feed(client.encode({"type": "enter"}))
    assert not server.is_authenticated


def test_a_server_with_another_secret_is_refused() -> None:
    server, client = pair(secret=b"something else")
    with pytest.raises(AuthenticationError, match="the other side does not know this run's secret"):
        client.feed(server.encode({"type": "welcome"}))


def test_a_frame_recorded_on_one_connection_is_refused_on_the_next() -> None:
    server, client = pair()
    recorded = client.encode({"type": "enter"})
    server.feed(recorded)
    next_server = Channel("server", SECRET, b"t" * 32)
    next_server.feed(client.hello)
    with pytest.raises(AuthenticationError):
        next_server.feed(recorded)


def test_a_frame_sent_twice_is_refused() -> None:
    server, client = pair()
    frame = client.encode({"type": "report"})
    server.feed(frame)
    with pytest.raises(AuthenticationError, match="frame 1 was altered, repeated or out of order"):
        server.feed(frame)


def test_frames_in_another_order_are_refused() -> None:
    server, client = pair()
    server.feed(client.encode({"type": "enter"}))
    first, second = client.encode({"type": "first"}), client.encode({"type": "second"})
    with pytest.raises(AuthenticationError, match="frame 1 was altered, repeated or out of order"):
        server.feed(second + first)


def test_a_frame_left_out_is_noticed() -> None:
    server, client = pair()
    client.encode({"type": "lost"})
    with pytest.raises(AuthenticationError):
        server.feed(client.encode({"type": "report"}))


def test_a_frame_sent_back_to_its_sender_is_refused() -> None:
    server, client = pair()
    with pytest.raises(AuthenticationError):
        client.feed(client.encode({"type": "enter"}))
    with pytest.raises(AuthenticationError):
        server.feed(server.encode({"type": "welcome"}))


def test_a_broken_channel_stays_broken() -> None:
    server, client = pair()
    frame = client.encode({"type": "enter"})
    with pytest.raises(AuthenticationError):
        server.feed(frame[:-1] + b"?")
    with pytest.raises(AuthenticationError):
        server.feed(frame)


def test_another_version_is_a_clear_error() -> None:
    server = Channel("server", SECRET, b"s" * 32)
    with pytest.raises(
        RendezvousError,
        match=r"speaks version 513 of the rendezvous, this side version 1 \(install the same version of gridflow",
    ):
        server.feed(b"GRIDFLOW\x02\x01")


def test_another_protocol_is_refused_at_its_first_bytes() -> None:
    server = Channel("server", SECRET, b"s" * 32)
    assert server.feed(b"G") == []
    with pytest.raises(RendezvousError, match=r"does not speak Gridflow's rendezvous: it began with b'GET / HTTP/1\.1"):
        server.feed(b"ET / HTTP/1.1\r\n")


def test_a_stranger_cannot_announce_more_than_a_few_kilobytes() -> None:
    server, _ = pair()
    with pytest.raises(RendezvousError, match="a frame of 4,097 bytes is larger than the 4,096 bytes allowed"):
        server.feed((MAX_STRANGER_BYTES + 1).to_bytes(4, "big") + bytes(32))


def test_an_authenticated_frame_is_limited_too() -> None:
    server, client = pair(max_message_bytes=5000)
    server.feed(client.encode({"type": "enter"}))
    with pytest.raises(RendezvousError, match="a frame of 5,001 bytes is larger than the 5,000 bytes allowed"):
        server.feed((5001).to_bytes(4, "big") + bytes(32))


def test_a_message_beyond_the_limit_is_not_even_sent() -> None:
    with pytest.raises(RendezvousError, match=r"a message of 16,777,\d+ bytes is larger than .* \(write it to a file"):
        pack({"type": "report", "text": "x" * MAX_MESSAGE_BYTES})


def test_a_small_frame_cannot_unfold_into_a_large_message() -> None:
    server, client = pair(max_message_bytes=100_000)
    frame = client.encode({"type": "report", "text": "x" * 500_000})
    assert len(frame) < MAX_STRANGER_BYTES
    with pytest.raises(RendezvousError, match="cut off or larger than the 100,000 bytes allowed"):
        server.feed(frame)


def test_a_message_sent_to_many_is_packed_once() -> None:
    payload = pack({"type": "roster", "tasks": {f"worker/{index}": f"10.0.0.1:{index + 1}" for index in range(5000)}})
    assert len(payload.data) < 40_000
    for _ in range(2):
        server, client = pair()
        client.feed(server.encode({"type": "welcome"}))
        [received] = client.feed(server.head(payload) + payload.data)
        assert received["tasks"]["worker/4999"] == "10.0.0.1:5000"


def test_authenticated_payloads_can_be_left_packed() -> None:
    server, client = pair()
    payload = pack({"type": "report"})
    assert server.feed_payloads(client.head(payload) + payload.data) == [payload.data]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "unknown encoding b''"),
        (pickle.dumps({"type": "report"}), r"unknown encoding b'\\x80'"),
        (b"J{", "cannot be read"),
        (b"J\xff", "cannot be read"),
        (b"J" + b"[" * 200_000, "cannot be read"),
        (b"Znot zlib", "cannot be read"),
        (b"Z" + zlib.compress(b'{"type": "report"}')[:-1], "cut off"),
        (b"J[]", r"is not an object with a type: b'\[\]'"),
        (b"J{}", "is not an object with a type"),
        (b'J{"type": 1}', "is not an object with a type"),
    ],
)
def test_a_proven_payload_that_is_no_message_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(RendezvousError, match=reason):
        unpack(data)


def test_a_channel_that_received_no_message_in_a_frame_stays_broken() -> None:
    server, client = pair()
    data = b"J[]"
    payload = Payload(data, hashlib.sha256(data).digest())
    for _ in range(2):
        with pytest.raises(RendezvousError, match="is not an object with a type"):
            server.feed(client.head(payload) + payload.data)


def test_the_layout_is_as_documented() -> None:
    _, client = pair()
    assert len(client.hello) == HELLO_BYTES
    assert client.hello == b"GRIDFLOW\x00\x01" + b"c" * 32
    frame = client.encode({"type": "enter"})
    assert frame[:4] == (len(frame) - HEAD_BYTES).to_bytes(4, "big")
    assert frame[HEAD_BYTES:] == b'J{"type":"enter"}'
    # computed apart from the module, with openssl: the layout may not drift without a new version
    assert frame[4:HEAD_BYTES].hex() == "b741f73a02146d8d695320b5c502489ff4bfd42831b259dcd0c467191ebd4515"
