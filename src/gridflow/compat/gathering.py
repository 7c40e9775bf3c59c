"""Messages that every task of a run tells all others, as Spark's barrier tasks do: `BarrierTaskContext.allGather`.

    task: Member.gather("a") ══ link ══▶ driver: Gathering ══ ["a", "b"] ══▶ every task

A function that was written for a barrier stage finds what it asks Spark for, though it runs in a process of its own.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gridflow.errors import DeadlineError, RendezvousError, TaskError
from gridflow.rendezvous.links import Link, LinkServer
from gridflow.rendezvous.roster import Address

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECRET_BYTES = 32
_POLL_SECONDS = 60.0
_GATHER_SECONDS = 3600.0


class Gathering:
    """The driver's side; open inside a `with` block."""

    def __init__(self, members: int, host: str, bind_host: str) -> None:
        self._count = members
        self._secret = os.urandom(_SECRET_BYTES)
        self._rounds: dict[int, dict[int, str]] = defaultdict(dict)
        self._has_changed = threading.Condition()
        self._is_over = False
        self._server = LinkServer(self._secret, self._serve)
        self._place = Address(host, self._server.listen(bind_host).port)

    def __enter__(self) -> Gathering:
        return self

    def __exit__(self, *_: object) -> None:
        with self._has_changed:
            self._is_over = True
            self._has_changed.notify_all()
        self._server.stop()

    @property
    def invitation(self) -> Invitation:
        """What a task needs to take part."""
        return Invitation(str(self._place), self._secret)

    def _serve(self, link: Link) -> None:
        while not self._is_over:
            message = link.receive(_POLL_SECONDS)
            if message is None:
                continue
            texts = self._wait_for_all(message["round"], message["member"], message["text"])
            if texts is None:
                return
            link.send({"type": "gathered", "texts": texts})

    def _wait_for_all(self, number: int, member: int, text: str) -> list[str] | None:
        """Take one member's text and wait for the others'; None where they will not come any more."""
        with self._has_changed:
            texts = self._rounds[number]
            texts[member] = text
            self._has_changed.notify_all()
            self._has_changed.wait_for(lambda: self._is_over or len(texts) == self._count)
            return [texts[each] for each in range(self._count)] if len(texts) == self._count else None


@dataclass(frozen=True)
class Invitation:
    """Where the driver gathers, and the proof that one belongs to it."""

    place: str
    secret: bytes


class Member:
    """A task's side; the link is made when it is needed first, and lasts until `close` or the end of the process."""

    def __init__(self, invitation: Invitation, member: int) -> None:
        self._invitation = invitation
        self._member = member
        self._round = 0
        self._link: Link | None = None

    def gather(self, text: str, timeout_seconds: float = _GATHER_SECONDS) -> list[str]:
        """Tell all members something, and return what each of them told in this round."""
        try:
            if self._link is None:
                self._link = Link.connect(Address.parse(self._invitation.place), self._invitation.secret)
            self._link.send({"type": "gather", "round": self._round, "member": self._member, "text": text})
            answer = self._link.receive(timeout_seconds)
        except RendezvousError as error:
            raise TaskError(f"task {self._member} cannot meet the others: {error.message}") from error
        if answer is None:
            raise DeadlineError(
                f"not all tasks came to round {self._round} within {timeout_seconds:g} s",
                hint="every task must call barrier and allGather equally often",
            )
        self._round += 1
        return list(answer["texts"])

    def close(self) -> None:
        """Take part no longer."""
        if self._link is not None:
            self._link.close()


def stand_in_for_barrier(member: Member, partition: int, hosts: Sequence[str], resources: dict[str, Any]) -> None:
    """Have `BarrierTaskContext.get()` of this process answer as it would in a barrier stage."""
    from pyspark import BarrierTaskContext, BarrierTaskInfo

    class Context(BarrierTaskContext):
        def barrier(self) -> None:
            member.gather("")

        def allGather(self, message: str = "") -> list[str]:  # noqa: N802 - Spark's name
            if not isinstance(message, str):
                raise TypeError("Argument `message` must be of type `str`")
            return member.gather(message)

        def getTaskInfos(self) -> list[BarrierTaskInfo]:  # noqa: N802 - Spark's name
            return [BarrierTaskInfo(host) for host in hosts]

    context = object.__new__(Context)
    vars(context).update(
        _partitionId=partition,
        _attemptNumber=0,
        _stageId=0,
        _taskAttemptId=partition,
        _localProperties={},
        _cpus=1,
        _resources=resources,
    )
    BarrierTaskContext._setTaskContext(context)
