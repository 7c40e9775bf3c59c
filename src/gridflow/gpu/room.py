"""What is free of a host's devices while a decision is made. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from gridflow.gpu.entries import Holding, Request
from gridflow.gpu.fit import Option, memory_of, options
from gridflow.gpu.inventory import Device
from gridflow.gpu.placement import Demand, Gpu, Node, Place, Pool

#: A request with the devices that it would have, and the memory on each.
Placed = tuple[Request, tuple[str, ...], tuple[int, ...]]


class Room:
    """The devices of a host, with what their holders have taken off."""

    def __init__(
        self,
        devices: Mapping[str, Device],
        holdings: Iterable[Holding],
        placement: str,
        kept: Collection[str] = (),
    ) -> None:
        self._devices = devices
        self._keys = list(devices)
        self._positions = {key: position for position, key in enumerate(self._keys)}
        #: Devices that are kept for claims ahead.
        self.kept = set(kept)
        gpus = tuple(Gpu(device.memory_mb, device.name) for device in devices.values())
        self._pool = Pool([Node("host", 0, 0, gpus)], placement)
        for holding in holdings:
            share = None if holding.is_whole else holding.memory_mb[0]
            place = Place(0, tuple(self._positions[key] for key in holding.devices))
            self._pool.take(Demand(len(holding.devices), share), place)

    @property
    def has_unkept(self) -> bool:
        """Whether there is a device that is not kept."""
        return len(self.kept) < len(self._devices)

    def place(self, requests: Iterable[Request]) -> list[Placed] | None:
        """Find room for all the requests, and take it; None, with nothing taken, where there is not enough."""
        taken: list[tuple[Demand, Place]] = []
        placed: list[Placed] = []
        for request in requests:
            found = self._find(request, request.count)
            if found is None:
                for demand, place in taken:
                    self._pool.give_back(demand, place)
                return None
            option, demand, place = found
            self._pool.take(demand, place)
            taken.append((demand, place))
            placed.append(self._placed(request, option, place))
        return placed

    def place_fewer(self, request: Request) -> list[Placed] | None:
        """Find room for as many devices as there are, down to the fewest that will do, and take it."""
        for count in range(request.count - 1, request.claim.least_count - 1, -1):
            placed = self.place([replace(request, count=count)])
            if placed is not None:
                return placed
        return None

    def _find(self, request: Request, count: int) -> tuple[Option, Demand, Place] | None:
        devices = [self._devices[key] for key in request.devices if key not in self.kept]
        for option in options(request.claim, devices, count):
            allowed = frozenset(self._positions[device.key] for device in option.devices)
            if len(allowed) < count:
                continue
            demand = Demand(count, option.share_mb, devices=allowed)
            place = self._pool.find(demand)
            if place is not None:
                return option, demand, place
        return None

    def _placed(self, request: Request, option: Option, place: Place) -> Placed:
        devices = [self._devices[self._keys[position]] for position in sorted(place.devices)]
        memory_mb = tuple(memory_of(request.claim, device, option) for device in devices)
        return request, tuple(device.key for device in devices), memory_mb
