"""Who has which part of a host's GPUs, and who waits for one. Pure: no files, no clock, no processes.

    ask, release, bury (what processes left), give_up  ─▶  Shares  ─▶  advance(now): everybody whose turn it is gets

The rules:
- Claims are served in order (`order.py`), each where the placement puts it (`placement.py`). A gang is served as one.
- A claim that cannot be served keeps the devices that it will soonest have from those behind it, and only those: the
  rest is not left idle for it. What is kept is never given away, so the first in line always gets there.
- If lower priorities that may be preempted are in its way, they are marked as wanted; their holders see that.
- A device is held by one claim wholly, or by shares that add up to its memory at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gridflow.gpu.entries import Holding, Process, Request
from gridflow.gpu.fit import Obstacle
from gridflow.gpu.inventory import Device
from gridflow.gpu.order import DEFAULT_ORDER, rank
from gridflow.gpu.placement import DEFAULT_PLACEMENT
from gridflow.gpu.room import Placed, Room


@dataclass(frozen=True)
class _Unit:
    """What is served as one: a claim, or all claims of a gang."""

    requests: tuple[Request, ...]

    @property
    def id(self) -> str:
        return self.requests[0].id

    @property
    def arrived(self) -> float:
        return min(request.arrived for request in self.requests)

    @property
    def priority(self) -> int:
        return min(request.claim.priority for request in self.requests)

    @property
    def weight(self) -> float:
        return self.requests[0].claim.weight

    @property
    def owner(self) -> str:
        return self.requests[0].claim.owner


class Shares:
    """The state of a host's ledger."""

    def __init__(self, order: str = DEFAULT_ORDER, placement: str = "") -> None:
        #: The policies of the host; whoever makes a claim brings what its `gpus.toml` says.
        self.order = order
        self.placement = placement or DEFAULT_PLACEMENT
        self.devices: dict[str, Device] = {}
        self.holdings: dict[str, Holding] = {}
        self.waiting: dict[str, Request] = {}
        #: Why claims that wait will never be served.
        self.obstacles: dict[str, Obstacle] = {}

    # What happens

    def ask(self, request: Request, devices: Iterable[Device]) -> None:
        """Take a claim into the queue; `devices` are those that it may use."""
        for device in devices:
            # As long as somebody uses a device it stays as it was when that began.
            self.devices.setdefault(device.key, device)
        self.waiting[request.id] = request

    def join(self, id_: str, process: Process) -> None:
        """Let another process use what a claim has."""
        holding = self.holdings.get(id_)
        if holding is not None:
            request = replace(holding.request, processes=(*holding.request.processes, process))
            self.holdings[id_] = replace(holding, request=request)

    def release(self, id_: str) -> None:
        """Take a claim out, whether it waits or holds."""
        self.waiting.pop(id_, None)
        self.holdings.pop(id_, None)
        self.obstacles.pop(id_, None)

    def bury(self, is_alive: Callable[[Process], bool]) -> None:
        """Take out the claims whose processes are gone."""
        requests = [*self.waiting.values(), *(holding.request for holding in self.holdings.values())]
        for request in requests:
            if not any(is_alive(process) for process in request.processes):
                self.release(request.id)

    def give_up(self, id_: str, now: float) -> Holding | None:
        """End a claim's wait: with as many GPUs as will do, where they are free, or with nothing."""
        self.advance(now, last_chance=id_)
        self.waiting.pop(id_, None)
        self.obstacles.pop(id_, None)
        return self.holdings.get(id_)

    # What follows

    def advance(self, now: float, last_chance: str = "") -> None:
        """Serve everybody whose turn it is; the claim named by `last_chance` may be served with fewer devices."""
        self._drop_wishes()
        room = Room(self.devices, self.holdings.values(), self.placement)
        queue = self._ranked((unit for unit in self._units() if self._is_possible(unit)), now)
        while queue and room.has_unkept:
            unit = queue.pop(0)
            placed = room.place(unit.requests)
            if placed is None and unit.id == last_chance:
                placed = room.place_fewer(unit.requests[0])
            if placed is None:
                self._make_way(unit, room, now)
                continue
            for request, devices, memory_mb in placed:
                del self.waiting[request.id]
                self.holdings[request.id] = Holding(request, devices, memory_mb, since=now)
            self._drop_wishes()
            queue = self._ranked(queue, now)
        self._drop_devices()

    def ranking(self, now: float) -> list[str]:
        """Return the ids of the claims that wait, the next one first."""
        ready = [request.id for unit in self._ranked(self._units(), now) for request in unit.requests]
        return [*ready, *sorted(self.waiting.keys() - set(ready))]

    def _ranked(self, units: Iterable[_Unit], now: float) -> list[_Unit]:
        held_gpus = self.held_gpus()
        return sorted(units, key=lambda unit: (rank(self.order, unit, held_gpus, now), unit.id))

    def held_gpus(self) -> dict[str, float]:
        """Return how much each owner has, in GPUs."""
        held: dict[str, float] = {}
        for holding in self.holdings.values():
            owner = holding.request.claim.owner
            for key, memory_mb in zip(holding.devices, holding.memory_mb, strict=True):
                part = 1.0 if holding.is_whole else memory_mb / self.devices[key].memory_mb
                held[owner] = held.get(owner, 0.0) + part
        return held

    def free_mb(self, key: str) -> int:
        """Return how much of a device nobody has."""
        free = self.devices[key].memory_mb
        for holding in self.holdings.values():
            if key in holding.devices:
                free -= free if holding.is_whole else holding.memory_mb[holding.devices.index(key)]
        return free

    def _drop_wishes(self) -> None:
        """Forget the wishes of claims that no longer wait."""
        for id_, holding in self.holdings.items():
            if holding.wanted_by and holding.wanted_by not in self.waiting:
                self.holdings[id_] = replace(holding, wanted_by="")

    def _drop_devices(self) -> None:
        """Forget the devices that nobody speaks of."""
        used = {key for holding in self.holdings.values() for key in holding.devices}
        used.update(key for request in self.waiting.values() for key in request.devices)
        self.devices = {key: device for key, device in self.devices.items() if key in used}

    def _units(self) -> list[_Unit]:
        """Return what can be served: claims alone, and gangs that are complete."""
        gangs: dict[str, list[Request]] = {}
        for request in self.waiting.values():
            gangs.setdefault(request.claim.gang or f"alone {request.id}", []).append(request)
        units = []
        for members in gangs.values():
            # The largest first: so they fit where they fit at all, as far as can be told without trying all ways.
            members.sort(key=_largest_first)
            if len(members) >= members[0].claim.gang_size:
                units.append(_Unit(tuple(members)))
        return units

    def _is_possible(self, unit: _Unit) -> bool:
        """Say whether a gang could be served if nobody else were there; a claim alone was looked at when it came."""
        if len(unit.requests) == 1 or Room(self.devices, (), self.placement).place(unit.requests) is not None:
            return True
        total = sum(request.count for request in unit.requests)
        for request in unit.requests:
            self.obstacles[request.id] = Obstacle(
                f"the {len(unit.requests)} claims of {request.claim.gang!r} do not fit on the {len(self.devices)} GPUs "
                f"here together: each asks for {request.claim}, {total} GPUs in all",
                "use fewer tasks, or let them share GPUs: a fraction, or their memory",
            )
        return False

    def _make_way(self, unit: _Unit, room: Room, now: float) -> None:
        """Do what can be done for a claim that has to wait: ask for devices back, and keep some from those behind."""
        victims = self._victims(unit, room.kept, now)
        for victim in victims:
            self.holdings[victim.request.id] = replace(victim, wanted_by=unit.id)
        target = self._place_without(victims, unit, room.kept) if victims else self._place_soonest(unit, room.kept)
        room.kept.update(key for _, devices, _ in target or () for key in devices)

    def _place_soonest(self, unit: _Unit, kept: Collection[str]) -> list[Placed] | None:
        """Return where a claim will probably be served: on the devices that are emptiest already."""
        emptiest_first = sorted(self.devices.values(), key=lambda device: (-self.free_mb(device.key), device.index))
        return Room({device.key: device for device in emptiest_first}, (), "first-fit", kept).place(unit.requests)

    def _place_without(self, gone: Collection[Holding], unit: _Unit, kept: Collection[str]) -> list[Placed] | None:
        """Return where a claim would be served if some holders were gone."""
        names = {holding.request.id for holding in gone}
        stay = [holding for id_, holding in self.holdings.items() if id_ not in names]
        return Room(self.devices, stay, self.placement, kept).place(unit.requests)

    def _victims(self, unit: _Unit, kept: Collection[str], now: float) -> list[Holding]:
        """Return the holders that have to go for a claim, as few and as unimportant as possible; none if none help."""
        asked = [holding for holding in self.holdings.values() if holding.wanted_by == unit.id]
        candidates = [
            holding
            for holding in self.holdings.values()
            if not holding.wanted_by and (_may_preempt(unit, holding) or holding.is_overdue(now))
        ]
        # The lowest priority first; among equals whoever has least to lose.
        candidates.sort(key=lambda holding: (holding.request.claim.priority, -holding.since, holding.request.id))
        # Whoever was asked already is on the way out, so that goes on.
        for chosen in ([*asked, *candidates[:count]] for count in range(len(candidates) + 1)):
            if chosen and self._place_without(chosen, unit, kept):
                break
        else:
            return []
        # Some may not have been in the way; the most important of them are spared first.
        for holding in reversed(chosen[len(asked) :]):
            spared = [each for each in chosen if each is not holding]
            if self._place_without(spared, unit, kept):
                chosen = spared
        return chosen

    # How it is kept

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads."""
        return {
            "order": self.order,
            "placement": self.placement,
            "devices": [device.to_dict() for device in self.devices.values()],
            "holdings": {id_: holding.to_dict() for id_, holding in self.holdings.items()},
            "waiting": {id_: request.to_dict() for id_, request in self.waiting.items()},
            "obstacles": {id_: vars(obstacle) for id_, obstacle in self.obstacles.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Shares:
        """Read what `to_dict` returned."""
        shares = cls(values["order"], values["placement"])
        for each in values["devices"]:
            device = Device(**each)
            shares.devices[device.key] = device
        shares.waiting = {id_: Request.from_dict(each) for id_, each in values["waiting"].items()}
        shares.holdings = {id_: Holding.from_dict(each) for id_, each in values["holdings"].items()}
        shares.obstacles = {id_: Obstacle(**each) for id_, each in values["obstacles"].items()}
        return shares


def _largest_first(request: Request) -> tuple[float, float, str, str]:
    return -request.count, -(request.claim.memory_mb(request.count) or 0), request.claim.name, request.id


def _may_preempt(unit: _Unit, holding: Holding) -> bool:
    claim = holding.request.claim
    return claim.preemptible and claim.priority < unit.priority
