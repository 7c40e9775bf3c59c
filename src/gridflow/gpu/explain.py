"""What people are told: why a claim waits, what it got, and why not. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gridflow.gpu.claims import Claim
from gridflow.gpu.entries import Request
from gridflow.gpu.inventory import Device
from gridflow.gpu.shares import Shares

_MOST_NAMED = 3


def why_waiting(shares: Shares, id_: str, now: float) -> str:
    """Say what a claim waits for: who holds the devices that it may use, and who comes before it."""
    request = shares.waiting[id_]
    claim = request.claim
    gang = {other for other, each in shares.waiting.items() if claim.gang and each.claim.gang == claim.gang}
    if gang and len(gang) < claim.gang_size:
        return f"{len(gang)} of the {claim.gang_size} claims of {claim.gang!r} have come"
    said = []
    holders = [holding for holding in shares.holdings.values() if set(holding.devices) & set(request.devices)]
    if holders:
        said.append(f"held by {_listed([who(holding.request) for holding in holders])}")
    ranking = shares.ranking(now)
    before = set(ranking[: ranking.index(id_)]) - gang
    if before:
        said.append(f"{len(before)} claim{'s come' if len(before) > 1 else ' comes'} before it")
    asked = [holding for holding in holders if holding.wanted_by == id_]
    if asked:
        said.append(f"{_listed([who(holding.request) for holding in asked])} was asked to give back")
    return "; ".join(said) or "no device is free"


def what_was_granted(claim: Claim, devices: Sequence[Device], memory_mb: Sequence[int]) -> str:
    """Say what a claim got: `GPU 0 (NVIDIA A100), 2048 of 40960 MB`."""
    parts = []
    for device, memory in zip(devices, memory_mb, strict=True):
        how_much = f"{memory} of {device.memory_mb} MB" if claim.is_shared else "alone"
        parts.append(f"GPU {device.index} ({device.name}), {how_much}")
    if len(devices) < claim.count:
        parts.append(f"{len(devices)} of {claim.count} GPUs, since no more were to be had")
    return "; ".join(parts)


def who(request: Request) -> str:
    """Name whoever made a claim: `train-1 worker/0 (ana)`."""
    claim = request.claim
    name = claim.name or f"process {request.processes[0].pid}"
    return f"{name} ({claim.owner})" if claim.owner else name


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
