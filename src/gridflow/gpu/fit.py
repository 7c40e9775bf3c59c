"""Which devices suit a claim, how much of each it takes, and what is in its way for ever. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gridflow.gpu.claims import Claim
from gridflow.gpu.inventory import Device


@dataclass(frozen=True)
class Option:
    """One way to serve a claim: any `count` of these devices, each wholly or with `share_mb` of it."""

    devices: tuple[Device, ...]
    count: int
    #: None: the whole device, alone.
    share_mb: int | None


@dataclass(frozen=True)
class Obstacle:
    """Why a claim can never be met here, and what would help."""

    message: str
    hint: str


def options(claim: Claim, devices: Sequence[Device], count: int) -> Iterator[Option]:
    """Yield the ways to give `count` of the devices to a claim, the best first."""
    suitable = [device for device in devices if _Reason.against(claim, device, count) is None]
    if claim.is_fraction:
        # The smallest devices first: the same fraction of a larger one is more than was thought of.
        for memory_mb in sorted({device.memory_mb for device in suitable}):
            alike = tuple(device for device in suitable if device.memory_mb == memory_mb)
            yield Option(alike, count, math.ceil(memory_mb * (claim.gpus or 1)))
        return
    share_mb = claim.memory_mb(count) if claim.shared else None
    if claim.device_ids:
        chosen = tuple(device for device in suitable if _is_chosen(claim, device))
        yield Option(chosen, count, share_mb)
        if claim.device_choice == "required":
            return
    yield Option(tuple(suitable), count, share_mb)


def memory_of(claim: Claim, device: Device, option: Option) -> int:
    """Return the memory that a claim has on a device which it was given by an option."""
    return option.share_mb or claim.memory_mb(option.count) or device.memory_mb


def largest_count(claim: Claim, devices: Sequence[Device]) -> int:
    """Return how many devices a claim could have if nobody else had any; 0 where that is too few."""
    for count in range(claim.count, claim.least_count - 1, -1):
        if any(len(option.devices) >= count for option in options(claim, devices, count)):
            return count
    return 0


def obstacle(claim: Claim, devices: Sequence[Device]) -> Obstacle | None:
    """Say why a claim can never be met with these devices; None where it can."""
    if largest_count(claim, devices):
        return None
    never = f"{claim} can never be had here"
    if not devices:
        return Obstacle(f"{never}: no GPU can be claimed", "`gridflow gpus` shows those that there are, and why not")
    if missing := [name for name in claim.device_ids if not any(device.is_called(name) for device in devices)]:
        return Obstacle(f"{never}: there is no GPU {missing[0]}", f"there are {', '.join(map(_name, devices))}")
    reasons = [_Reason.against(claim, device, claim.least_count) for device in devices]
    # The device that comes nearest says most about what would help.
    worst = max((reason for reason in reasons if reason), key=lambda reason: reason.passed, default=None)
    suitable = reasons.count(None)
    if worst is not None and not suitable:
        return Obstacle(f"{never}: {worst.obstacle.message}", worst.obstacle.hint)
    rest = f", since {worst.obstacle.message}" if worst is not None else ""
    return Obstacle(f"{never}: {suitable} of {len(devices)} GPUs will do{rest}", f"ask for {suitable} at most")


@dataclass(frozen=True)
class _Reason:
    """Why one device does not suit, after how many other requirements were met."""

    obstacle: Obstacle
    passed: int

    @classmethod
    def against(cls, claim: Claim, device: Device, count: int) -> _Reason | None:
        """Find what speaks against a device as one of `count`; None where nothing does."""
        for passed, check in enumerate(_CHECKS):
            found = check(claim, device, count)
            if found is not None:
                return cls(found, passed)
        return None


def _check_choice(claim: Claim, device: Device, _count: int) -> Obstacle | None:
    if not claim.device_ids or claim.device_choice == "preferred" or _is_chosen(claim, device):
        return None
    return Obstacle(f"GPU {device.index} is not among device_ids", "name others, or say device_choice='preferred'")


def _check_capability(claim: Claim, device: Device, _count: int) -> Obstacle | None:
    if claim.min_capability is None or (device.capability or 0) >= claim.min_capability:
        return None
    has = "an unknown compute capability" if device.capability is None else f"compute capability {device.capability:g}"
    return Obstacle(f"{_name(device)} has {has}, not {claim.min_capability:g}", "lower min_capability")


def _check_size(claim: Claim, device: Device, _count: int) -> Obstacle | None:
    if claim.min_device_mb is None or device.memory_mb >= claim.min_device_mb:
        return None
    return Obstacle(f"{_name(device)} has {device.memory_mb} MB, not {claim.min_device_mb:g}", "lower min_device_mb")


def _check_memory(claim: Claim, device: Device, count: int) -> Obstacle | None:
    memory_mb = claim.memory_mb(count)
    if memory_mb is None:
        memory_mb = math.ceil(device.memory_mb * (claim.gpus or 1)) if claim.is_fraction else device.memory_mb
    if memory_mb > device.memory_mb:
        return Obstacle(f"{_name(device)} has {device.memory_mb} MB, not {memory_mb}", "ask for less memory")
    least_mb = claim.fixed_mb + (claim.mb_per_sample or 0)
    if memory_mb - device.overhead_mb < max(least_mb, 1):
        wanted = f", and {least_mb:g} MB are needed" if least_mb else ""
        return Obstacle(
            f"{memory_mb} MB on {_name(device)} are too few: CUDA itself takes {device.overhead_mb} MB{wanted}",
            "ask for more memory",
        )
    return None


_CHECKS: tuple[Callable[[Claim, Device, int], Obstacle | None], ...] = (
    _check_choice,
    _check_capability,
    _check_size,
    _check_memory,
)


def _is_chosen(claim: Claim, device: Device) -> bool:
    return any(device.is_called(name) for name in claim.device_ids)


def _name(device: Device) -> str:
    return f"GPU {device.index} ({device.name})"
