"""A claim's way through the ledger: asked for, waited for, held, released.

Ticket.ask ─▶ poll … poll ─▶ Grant ─▶ release
              (or wait, which polls whenever something has happened)
"""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from gridflow.errors import DeadlineError, PlatformError
from gridflow.gpu.claims import Claim
from gridflow.gpu.entries import Holding, Process, Request
from gridflow.gpu.explain import what_was_granted, why_waiting
from gridflow.gpu.fit import Obstacle, largest_count, obstacle
from gridflow.gpu.grants import Grant
from gridflow.gpu.inventory import Inventory, take_inventory
from gridflow.gpu.ledger import Ledger, ledger_folder
from gridflow.gpu.liveness import identify
from gridflow.gpu.placement import DEFAULT_PLACEMENT
from gridflow.gpu.shares import Shares
from gridflow.gpu.watch import LOOK_SECONDS, Watch

_PAUSE_SECONDS = 0.05


class Ticket:
    """A claim in the host's ledger, until it is released."""

    def __init__(self, claim: Claim, inventory: Inventory, ledger: Ledger, id_: str) -> None:
        self.claim = claim
        self.id = id_
        #: What was granted; None while the claim waits.
        self.grant: Grant | None = None
        self._inventory = inventory
        self._ledger = ledger
        self._owner_pid = os.getpid()
        self._watch: Watch | None = None
        self._asked = ledger.clock()

    @classmethod
    def ask(cls, claim: Claim, environ: Mapping[str, str] = os.environ) -> Ticket:
        """Make a claim in the ledger of this host; one that can never be met is refused at once."""
        claim = replace(claim, owner=claim.owner or _user(), name=claim.name or _program())
        inventory = take_inventory(environ)
        ticket = cls(claim, inventory, Ledger(ledger_folder(environ)), os.urandom(6).hex())
        problem = obstacle(claim, inventory.usable)
        if problem is None:
            ticket._enter()
        else:
            ticket._do_without(problem)
        return ticket

    def _enter(self) -> None:
        """Queue up; what is free is granted there and then."""
        devices = self._inventory.usable
        request = Request(
            id=self.id,
            claim=self.claim,
            processes=(identify(self._owner_pid),),
            arrived=self._asked,
            devices=tuple(device.key for device in devices),
            count=largest_count(self.claim, devices),
        )
        with self._ledger.changing() as shares:
            shares.order, shares.placement = self._inventory.order, self._inventory.placement or DEFAULT_PLACEMENT
            shares.ask(request, devices)
        self._take(shares.holdings.get(self.id), shares)

    def poll(self) -> Grant | None:
        """Look whether the claim was granted, without waiting; its deadline may end it, well or with an error."""
        if self.grant is None and (self._is_due() or self._has_news()):
            self._look()
        return self.grant

    def _is_due(self) -> bool:
        return self._ledger.clock() >= self.deadline

    def _has_news(self) -> bool:
        """Look, without the lock, whether something has happened that may concern this claim."""
        has_ended = self._watched().wait(0)
        table = self._ledger.read_table()
        requests = [*table["waiting"].values(), *(holding["request"] for holding in table["holdings"].values())]
        processes = {Process(**process) for request in requests for process in request["processes"]}
        has_ended |= self._watched().follow(processes)
        has_lapsed = any(_has_lapsed(holding, self._ledger.clock()) for holding in table["holdings"].values())
        return has_ended or has_lapsed or self.id not in table["waiting"] or self.id in table["obstacles"]

    def wait(self) -> Grant:
        """Wait until the claim is granted, or until its deadline."""
        while (grant := self.poll()) is None:
            left = self.deadline - self._ledger.clock()
            self._watched().wait(min(LOOK_SECONDS, left))
            # Where many wait and much happens, all of it within a moment is one reason to look.
            time.sleep(max(0.0, min(_PAUSE_SECONDS, left)))
        return grant

    @property
    def folder(self) -> Path:
        """The folder of the ledger, which changes with it."""
        return self._ledger.folder

    @property
    def deadline(self) -> float:
        """When the wait is over, by the ledger's clock."""
        return self._asked + self.claim.wait_seconds

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is a reason to `poll`."""
        return self._watched().fileno()

    def why_waiting(self) -> str:
        """Say what the claim waits for."""
        shares = self._ledger.read()
        return why_waiting(shares, self.id, self._ledger.clock()) if self.id in shares.waiting else ""

    def include(self, pid: int) -> None:
        """Have another process use what was granted: it is held until that one is gone as well."""
        if self.grant is not None and not self.grant.is_cpu:
            with suppress(ProcessLookupError), self._ledger.changing() as shares:
                shares.join(self.id, identify(pid))

    def is_wanted(self) -> bool:
        """Say whether a claim of higher priority waits for what was granted."""
        return bool(self._ledger.read_table()["holdings"].get(self.id, {}).get("wanted_by"))

    def release(self) -> None:
        """Give everything back; in a child process that inherited the ticket nothing happens."""
        if os.getpid() != self._owner_pid:
            return
        self._stop_watching()
        if self.grant is None or not self.grant.is_cpu:
            release(self.id, self._ledger)

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _watched(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(self._ledger.folder)
        return self._watch

    def _look(self) -> None:
        """Look at the ledger with its lock, so that the dead are buried and the living served."""
        is_due, why = self._is_due(), ""
        with self._ledger.changing() as shares:
            problem = shares.obstacles.get(self.id)
            if self.id in shares.waiting:
                why = why_waiting(shares, self.id, self._ledger.clock())
            elif self.id not in shares.holdings:
                problem = Obstacle("the claim is no longer in the ledger", "somebody has removed the ledger's file")
            if problem is not None or is_due:
                shares.give_up(self.id, self._ledger.clock())
        self._take(shares.holdings.get(self.id), shares)
        if self.grant is None and problem is not None:
            self._do_without(problem)
        elif self.grant is None and is_due:
            self._do_without(self._shortage(why))

    def _shortage(self, why: str) -> Obstacle:
        waited = self.claim.wait_seconds
        return Obstacle(
            f"{self.claim} was not free within {waited:g} s: {why}" if waited else f"{self.claim} is not free: {why}",
            "wait longer, ask for less, or allow cpu_fallback",
        )

    def _do_without(self, problem: Obstacle) -> None:
        self._stop_watching()
        if self.claim.cpu_fallback:
            self.grant = replace(Grant.cpu(f"CPU: {problem.message}"), threads=self.claim.threads)
            return
        waited = self._ledger.clock() >= self.deadline > self._asked
        raise (DeadlineError if waited else PlatformError)(problem.message, hint=problem.hint)

    def _take(self, holding: Holding | None, shares: Shares) -> None:
        if holding is None:
            return
        self._stop_watching()
        devices = [shares.devices[key] for key in holding.devices]
        self.grant = Grant.of(
            self.claim,
            devices,
            holding.memory_mb,
            id=self.id,
            reason=what_was_granted(self.claim, devices, holding.memory_mb),
            is_declared=self._inventory.is_declared,
        )


def release(id_: str, ledger: Ledger) -> None:
    """Take a claim out of a ledger, so that whoever waits for its devices gets them."""
    with ledger.changing() as shares:
        shares.release(id_)


def _has_lapsed(holding: Mapping[str, Any], now: float) -> bool:
    """Say whether a lease is over and nobody has asked for the devices yet."""
    lease_seconds = holding["request"]["claim"].get("lease_seconds")
    return lease_seconds is not None and not holding["wanted_by"] and now - holding["since"] >= lease_seconds


def _user() -> str:
    with suppress(KeyError):  # a user that the system has no name for
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())


def _program() -> str:
    # Not its arguments: everybody can read the ledger.
    return Path(sys.argv[0]).name or "python"
