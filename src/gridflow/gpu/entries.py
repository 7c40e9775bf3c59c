"""What stands in the ledger: a request for each claim, and a holding for each that was granted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gridflow.gpu.claims import Claim


@dataclass(frozen=True)
class Process:
    """A process of this host, told from a later one with the same pid by when it started."""

    pid: int
    started: str
    #: Pids of another namespace, as containers have them, mean nothing here.
    namespace: str = ""


@dataclass(frozen=True)
class Request:
    """A claim in the ledger."""

    id: str
    claim: Claim
    #: Who asks, and who else uses what it gets; while one of them lives the claim is held.
    processes: tuple[Process, ...]
    arrived: float
    #: The devices that it may use, as whoever asks sees the host.
    devices: tuple[str, ...]
    #: How many of them it waits for.
    count: int

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Request:
        """Read what `to_dict` returned."""
        processes = tuple(Process(**process) for process in values["processes"])
        claim = Claim.from_dict(values["claim"])
        return cls(values["id"], claim, processes, values["arrived"], tuple(values["devices"]), values["count"])

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads."""
        processes = [vars(process) for process in self.processes]
        return {**vars(self), "claim": self.claim.to_dict(), "processes": processes}


@dataclass(frozen=True)
class Holding:
    """A claim that was granted."""

    request: Request
    devices: tuple[str, ...]
    memory_mb: tuple[int, ...]
    since: float
    #: The claim for which its holder is to give it back.
    wanted_by: str = ""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Holding:
        """Read what `to_dict` returned."""
        request, devices = Request.from_dict(values["request"]), tuple(values["devices"])
        return cls(request, devices, tuple(values["memory_mb"]), values["since"], values["wanted_by"])

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads."""
        return {**vars(self), "request": self.request.to_dict()}

    @property
    def is_whole(self) -> bool:
        """Whether nobody else may be on its devices."""
        return not self.request.claim.is_shared

    def is_overdue(self, now: float) -> bool:
        """Say whether its lease is over."""
        lease_seconds = self.request.claim.lease_seconds
        return lease_seconds is not None and now - self.since >= lease_seconds
