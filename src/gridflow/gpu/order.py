"""Whose turn it is. Pure.

fifo      who came first
priority  the higher priority; each AGEING_SECONDS of waiting count like one level more
fair      whose owner has least of the GPUs, by weight; each AGEING_SECONDS of waiting count like one GPU less

Ageing is what keeps everybody from starving: whoever waits long enough comes before all that ask later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gridflow.errors import SettingsError

ORDERS = {
    "fifo": "who came first",
    "priority": "the higher priority, which grows while a claim waits",
    "fair": "whose owner has least of the GPUs, by weight",
}
DEFAULT_ORDER = "priority"
AGEING_SECONDS = 600.0


class Queued(Protocol):
    """What the order goes by."""

    @property
    def arrived(self) -> float:
        """When it was asked for, in seconds."""

    @property
    def priority(self) -> int:
        """The higher the sooner."""

    @property
    def weight(self) -> float:
        """How much its owner deserves."""

    @property
    def owner(self) -> str:
        """Whose it is."""


def rank(order: str, queued: Queued, held_gpus: Mapping[str, float], now: float) -> tuple[float, float]:
    """Return what to sort by, the smallest first; `held_gpus` is how much each owner has, in GPUs."""
    waited = (now - queued.arrived) / AGEING_SECONDS
    match order:
        case "fifo":
            return queued.arrived, 0.0
        case "priority":
            return -queued.priority - waited, queued.arrived
        case "fair":
            return held_gpus.get(queued.owner, 0.0) / queued.weight - waited, queued.arrived
    raise SettingsError(f"there is no order {order!r}", hint=f"one of: {', '.join(ORDERS)}")
