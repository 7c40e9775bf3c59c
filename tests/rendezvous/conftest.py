from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from tests.rendezvous.peers import SECRET, Host, Wire

from gridflow.rendezvous.roster import Address, Roster


@pytest.fixture
def start_server() -> Iterator[Callable[..., Host]]:
    """Start servers that are stopped after the test."""
    with ExitStack() as stack:

        def start(tasks: Sequence[str], *, lease_seconds: float = 30.0, **options: Any) -> Host:
            return stack.enter_context(Host(Roster(tasks, lease_seconds), **options))

        yield start


@pytest.fixture
def open_wire() -> Iterator[Callable[..., Wire]]:
    """Open connections that are closed after the test."""
    with ExitStack() as stack:

        def connect(server: Address, secret: bytes = SECRET, receive_buffer_bytes: int | None = None) -> Wire:
            return stack.enter_context(Wire(server, secret, receive_buffer_bytes))

        yield connect
