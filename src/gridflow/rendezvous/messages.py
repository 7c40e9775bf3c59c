"""The bytes between server and client, and how each side proves that it knows the run's secret.

    hello      8  magic, b"GRIDFLOW"
               2  version, big endian
              32  nonce, fresh for each connection

    frame      4  length of the payload, big endian
              32  proof, HMAC-SHA256
               n  payload

    payload    1  b"J": JSON, b"Z": zlib of JSON
               …  an object with a "type"

Each side sends its hello, then frames. With H(key, text) for HMAC-SHA256, big-endian numbers and versions that agree:

    key   = H(secret, b"gridflow rendezvous" + version + server's nonce + client's nonce)
    proof = H(key, b"S" or b"C" for the sender + number of the frame (8 bytes, from 0) + SHA-256 of the payload)

Both nonces in the key make a recorded connection worthless; the sender and the number refuse frames that are
reflected, repeated, left out or reordered. A payload enters the proof by its digest, so one that goes to all
tasks is encoded, compressed and hashed once. Nothing is parsed before its proof is right, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
import zlib
from typing import Any, Literal, NamedTuple, TypeAlias

from gridflow.errors import AuthenticationError, RendezvousError

Message: TypeAlias = dict[str, Any]
Side: TypeAlias = Literal["server", "client"]

MAGIC = b"GRIDFLOW"
VERSION = 1
NONCE_BYTES = 32
MAX_STRANGER_BYTES = 4 * 1024
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_HELLO = struct.Struct(f">{len(MAGIC)}sH{NONCE_BYTES}s")
_VERSION_END = len(MAGIC) + 2
_FRAME = struct.Struct(">I32s")
_PLAIN = b"J"
_COMPRESSED = b"Z"
_COMPRESS_FROM_BYTES = 1024
# level 6 saves another eighth of a roster at three times the time, during which the server does nothing else
_COMPRESSION_LEVEL = 1
_LABELS: dict[Side, bytes] = {"server": b"S", "client": b"C"}


def check_secret(secret: bytes) -> None:
    """Refuse a secret that everybody knows."""
    if not secret:
        raise RendezvousError("the run's secret is empty", hint="give both sides the same random bytes")


class Payload(NamedTuple):
    """A message ready to be sent on any number of channels."""

    data: bytes
    digest: bytes


def pack(message: Message) -> Payload:
    """Encode a message once, for one channel or many."""
    text = json.dumps(message, separators=(",", ":")).encode()
    if len(text) > MAX_MESSAGE_BYTES:
        raise RendezvousError(
            f"a message of {len(text):,} bytes is larger than the {MAX_MESSAGE_BYTES:,} bytes allowed",
            hint="write it to a file and send the file's path",
        )
    data = _PLAIN + text if len(text) < _COMPRESS_FROM_BYTES else _COMPRESSED + zlib.compress(text, _COMPRESSION_LEVEL)
    return Payload(data, hashlib.sha256(data).digest())


def unpack(data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> Message:
    """Decode a payload whose proof was right, to at most `max_bytes` of JSON."""
    encoding, body = data[:1], data[1:]
    try:
        if encoding == _COMPRESSED:
            inflater = zlib.decompressobj()
            body = inflater.decompress(body, max_bytes)
            if not inflater.eof:
                raise RendezvousError(f"a compressed message is cut off or larger than the {max_bytes:,} bytes allowed")
        elif encoding != _PLAIN:
            raise RendezvousError(f"a message has the unknown encoding {encoding!r}")
        message = json.loads(body)
    except (ValueError, RecursionError, zlib.error) as error:
        raise RendezvousError(f"a message cannot be read: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise RendezvousError(f"a message is not an object with a type: {body[:80]!r}")
    return message


class Channel:
    """One side of one connection, without I/O: messages in, bytes out, and back.

    After the first error the channel stays broken: a connection that went wrong cannot be trusted again.
    """

    def __init__(self, side: Side, secret: bytes, nonce: bytes, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        check_secret(secret)
        self.hello = _HELLO.pack(MAGIC, VERSION, nonce)
        self._side = side
        self._secret = secret
        self._nonce = nonce
        self._max_message_bytes = max_message_bytes
        self._outgoing = _LABELS[side]
        self._incoming = _LABELS["client" if side == "server" else "server"]
        self._key = b""
        self._sent = 0
        self._received = 0
        self._buffer = bytearray()
        self._error: RendezvousError | None = None

    @property
    def is_open(self) -> bool:
        """Whether the other side's hello has arrived, so that messages can be sent."""
        return bool(self._key)

    @property
    def is_authenticated(self) -> bool:
        """Whether the other side has proved that it knows the secret."""
        return self._received > 0

    @property
    def wanted_bytes(self) -> int:
        """How many bytes complete what has begun to arrive: the hello, the head of a frame, or its payload."""
        if not self._key:
            return _HELLO.size - len(self._buffer)
        if len(self._buffer) < _FRAME.size:
            return _FRAME.size - len(self._buffer)
        length, _ = _FRAME.unpack_from(self._buffer)
        return _FRAME.size + int(length) - len(self._buffer)

    def encode(self, message: Message) -> bytes:
        """Turn a message into this channel's next frame."""
        payload = pack(message)
        return self.head(payload) + payload.data

    def head(self, payload: Payload) -> bytes:
        """Make what goes before `payload.data` in this channel's next frame."""
        if not self._key:
            raise RendezvousError("nothing can be sent before the other side's hello has arrived")
        proof = self._prove(self._outgoing, self._sent, payload.digest)
        self._sent += 1
        return _FRAME.pack(len(payload.data), proof)

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes as they arrive, in any pieces, and give the messages which they complete."""
        payloads = self.feed_payloads(data)
        try:
            return [unpack(payload, self._max_message_bytes) for payload in payloads]
        except RendezvousError as error:
            self._error = error
            raise

    def feed_payloads(self, data: bytes) -> list[bytes]:
        """Do what `feed` does, but leave the payloads, proved to be right, as they are."""
        if self._error is not None:
            raise self._error
        self._buffer += data
        payloads = []
        try:
            if self._key or self._take_hello():
                while (payload := self._take_frame()) is not None:
                    payloads.append(payload)
        except RendezvousError as error:
            self._error = error
            self._buffer.clear()
            raise
        return payloads

    def _take_hello(self) -> bool:
        start = bytes(self._buffer[: _HELLO.size])
        if not MAGIC.startswith(start[: len(MAGIC)]):
            raise RendezvousError(f"the other side does not speak Gridflow's rendezvous: it began with {start[:16]!r}")
        version = int.from_bytes(start[len(MAGIC) : _VERSION_END], "big")
        if len(start) >= _VERSION_END and version != VERSION:
            raise RendezvousError(
                f"the other side speaks version {version} of the rendezvous, this side version {VERSION}",
                hint="install the same version of gridflow on both sides",
            )
        if len(start) < _HELLO.size:
            return False
        nonces = (self._nonce, start[_VERSION_END:])
        server_nonce, client_nonce = nonces if self._side == "server" else reversed(nonces)
        context = b"gridflow rendezvous" + VERSION.to_bytes(2, "big") + server_nonce + client_nonce
        self._key = hmac.digest(self._secret, context, "sha256")
        del self._buffer[: _HELLO.size]
        return True

    def _take_frame(self) -> bytes | None:
        if len(self._buffer) < _FRAME.size:
            return None
        length, proof = _FRAME.unpack_from(self._buffer)
        limit = self._max_message_bytes if self.is_authenticated else MAX_STRANGER_BYTES
        if length > limit:
            raise RendezvousError(f"a frame of {length:,} bytes is larger than the {limit:,} bytes allowed")
        end = _FRAME.size + length
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            payload = bytes(view[_FRAME.size : end])
        digest = hashlib.sha256(payload).digest()
        if not hmac.compare_digest(proof, self._prove(self._incoming, self._received, digest)):
            raise AuthenticationError(
                f"frame {self._received} was altered, repeated or out of order"
                if self.is_authenticated
                else "the other side does not know this run's secret"
            )
        self._received += 1
        del self._buffer[:end]
        return payload

    def _prove(self, label: bytes, number: int, digest: bytes) -> bytes:
        return hmac.digest(self._key, label + number.to_bytes(8, "big") + digest, "sha256")
