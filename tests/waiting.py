"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

_POLL_SECONDS = 0.02


def until(look: Callable[[], Found], what: str, *, seconds: float = 60) -> Found:
    """Return what `look` finds as soon as it finds something; fail and say what was waited for if it never does."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        time.sleep(_POLL_SECONDS)
    return found
