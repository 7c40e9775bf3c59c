"""The driver's side of all feeds of a run: who may send which rows where, and who has read how far.

Each party keeps a link open, and each link has a thread here: senders ask and are answered when there is room;
consumers report what they got and read, and on a second link wait for news. All of them share one lock; what they
decide with is `state` and `pacing`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa

from gridflow.errors import DeadlineError, RendezvousError, TaskFailedError, UsageError
from gridflow.feed.schema import FeedSchema
from gridflow.feed.state import Epoch, FeedState, Interruption, Kind, Report, Settings
from gridflow.rendezvous.links import Link, LinkServer
from gridflow.rendezvous.messages import Message
from gridflow.rendezvous.roster import Address

Found = TypeVar("Found")

#: How long a link may be silent at its start.
_HELLO_SECONDS = 30.0
#: News are sent at least so often, for the consumer to know that the driver lives.
NEWS_SECONDS = 20.0
#: No sender or consumer waits longer than this between two messages of its own without being taken for lost.
_SILENCE_SECONDS = 7 * 24 * 3600.0
_RECHECK_SECONDS = 1.0
#: After so long without any progress, rows that were lost on their way may be what all wait for.
_STALL_SECONDS = 10.0
#: How long the last report of a task may come after its end.
_LAST_WORD_SECONDS = 5.0


class _EndedError(Exception):
    """A sender need not go on; the message tells it so."""

    def __init__(self, message: Message) -> None:
        super().__init__(message["type"])
        self.message = message


class Coordinator:
    """Knows the feeds of a run. Its methods are for the driver; it serves senders and consumers in threads."""

    def __init__(self, secret: bytes, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._feeds: dict[str, FeedState] = {}
        self._attempt = 0
        self._failure: str | None = None
        self._is_complete = False
        self._is_over = False
        self._is_closing = False
        self._senders = itertools.count()
        self._server = LinkServer(secret, self._serve)

    def start(self, host: str) -> Address:
        """Listen on an address of this host that senders and consumers can reach."""
        return self._server.listen(host)

    def stop(self) -> None:
        """End all links; whoever still uses one loses it."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._server.stop()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def open(
        self,
        feed: str,
        consumers: Sequence[str],
        *,
        kind: Kind = "training",
        equal: bool = True,
        schema: pa.Schema | None = None,
        epochs: int | None = None,
        window_bytes: int = Settings.window_bytes,
        timeout_seconds: float = Settings.timeout_seconds,
    ) -> None:
        """Open a feed for some tasks.

        `schema` is what the columns are if no row ever comes. Without `epochs`, there are more until `finish`.
        """
        settings = Settings(tuple(consumers), kind, equal, schema, epochs, window_bytes, timeout_seconds)
        with self._changed:
            if feed in self._feeds:
                raise UsageError(f"feed {feed!r} is open already", hint="give each feed of a run a name of its own")
            self._feeds[feed] = FeedState(feed, settings, self._attempt, self._clock(), self._failure)
            self._changed.notify_all()

    def open_no_more(self) -> None:
        """Refuse consumers of feeds that are not open: none will be opened any more."""
        with self._changed:
            self._is_complete = True
            self._changed.notify_all()

    def begin_epoch(self, feed: str) -> Epoch | None:
        """Begin the feed's next epoch; until that has ended, the same is returned again. None after the last."""
        with self._changed:
            state = self._get(feed)
            epoch = state.begin_epoch()
            if self._is_over and not state.is_stopped:
                state.fail(f"feed {feed!r}: the run has ended, and nobody can read it")
            state.progress_at = self._clock()
            self._changed.notify_all()
            return epoch

    def end_epoch(self, epoch: Epoch, partitions: Collection[int]) -> bool:
        """Tell the consumers that an epoch has no more rows; False where it was stopped or must be sent again.

        Raise if the feed has failed, or if one of the partitions was not wholly sent.
        """
        with self._changed:
            state = self._get(epoch.feed)
            interruption = state.interruption(epoch)
            if state.failure is not None:
                raise TaskFailedError(state.failure)
            if interruption is None:
                state.end_epoch(partitions)
            self._changed.notify_all()
            return interruption is None

    def expect(self, feed: str, epochs: int) -> None:
        """Tell the consumers how many epochs there will have been in all."""
        with self._changed:
            self._get(feed).expect(epochs)
            self._changed.notify_all()

    def finish(self, feed: str) -> None:
        """Tell the consumers that there is no epoch after the one that is being sent, or that was sent last."""
        with self._changed:
            self._get(feed).finish()
            self._changed.notify_all()

    def wait_read(self, feed: str, timeout_seconds: float) -> bool:
        """Wait until all consumers have read all epochs; False where they have not in time, or never will."""
        with self._changed:
            state = self._get(feed)
            now = Epoch(feed, state.number, state.attempt)
        self._wait(lambda: state.is_read() or state.interruption(now), timeout_seconds)
        with self._changed:
            return state.is_read()

    def interruption(self, epoch: Epoch) -> Interruption | None:
        """Say why an epoch need not be sent any further, if so."""
        return self.wait_interruption(epoch, 0)

    def wait_interruption(self, epoch: Epoch, timeout_seconds: float) -> Interruption | None:
        """Wait for a reason not to send an epoch any further."""
        return self._wait(lambda: self._get(epoch.feed).interruption(epoch), timeout_seconds)

    def is_stopped(self, feed: str) -> bool:
        """Tell whether a consumer has ended the feed early."""
        with self._changed:
            return self._get(feed).is_stopped

    def restart(self, attempt: int) -> None:
        """Forget all consumers: the tasks are started again, and each feed's current epoch begins anew."""
        with self._changed:
            if attempt <= self._attempt:
                raise UsageError(f"attempt {attempt} does not come after attempt {self._attempt}")
            self._attempt = attempt
            for state in self._feeds.values():
                state.restart(attempt)
                state.progress_at = self._clock()
            self._changed.notify_all()

    def end(self) -> None:
        """End all feeds that were not read to their end: the tasks have ended well, and none will read on."""

        def have_left() -> bool:
            return not any(state.has_consumers() for state in self._feeds.values())

        self._wait(have_left, _LAST_WORD_SECONDS)
        with self._changed:
            self._is_over = True
            for state in self._feeds.values():
                state.end()
            self._changed.notify_all()

    def fail(self, message: str) -> None:
        """End all feeds with an error, which every sender and consumer is told."""
        with self._changed:
            self._failure = self._failure or message
            for state in self._feeds.values():
                state.fail(message)
            self._changed.notify_all()

    def failure(self, feed: str) -> str | None:
        """Return why a feed has failed, if it has."""
        with self._changed:
            return self._get(feed).failure

    def report(self, feed: str) -> Report:
        """Sum up what became of a feed's rows."""
        with self._changed:
            return self._get(feed).report()

    def absent(self, feed: str) -> list[str]:
        """Return the consumers that have never opened a feed."""
        with self._changed:
            return self._get(feed).absent()

    def timeout_seconds(self, feed: str) -> float:
        """Return how long nothing may move in a feed."""
        with self._changed:
            return self._get(feed).settings.timeout_seconds

    def stalled_seconds(self, feed: str) -> float:
        """Return how long nothing has moved in a feed."""
        with self._changed:
            return self._clock() - self._get(feed).progress_at

    def unread_bytes(self, feed: str) -> dict[str, int]:
        """Return how many bytes each consumer was granted and has not read."""
        with self._changed:
            return self._get(feed).pacing.unread_bytes()

    def _get(self, feed: str) -> FeedState:
        if feed not in self._feeds:
            raise UsageError(f"there is no feed {feed!r}", hint=f"open are {sorted(self._feeds)}")
        return self._feeds[feed]

    def _wait(self, look: Callable[[], Found], timeout_seconds: float) -> Found:
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while not (found := look()) and not self._is_closing and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return found

    def _serve(self, link: Link) -> None:
        hello = link.receive(_HELLO_SECONDS)
        parties = {"consumer": self._serve_consumer, "news": self._serve_news, "sender": self._serve_sender}
        if hello is None or hello["type"] not in parties:
            raise RendezvousError(f"a link began with {hello and hello['type']!r}")
        parties[hello["type"]](link, hello)

    def _serve_consumer(self, link: Link, hello: Message) -> None:
        """Take a consumer in, and its reports until it leaves."""
        task = hello["task"]
        try:
            state = self._admit(hello)
        except (UsageError, DeadlineError, TaskFailedError) as error:
            about = {"message": error.message, "hint": error.hint}
            link.send({"type": "refused", "error": type(error).__name__, **about})
            return
        has_left = False
        try:
            has_equals = state.settings.is_equal and len(state.settings.consumers) > 1
            accepted = {"kind": state.settings.kind, "is_equal": has_equals, "first": state.first_number}
            link.send({"type": "accepted", **accepted})
            while not has_left:
                message = link.receive(_SILENCE_SECONDS)
                if message is None:
                    break
                has_left = message["leave"]
                with self._changed:
                    if state.attempt == hello["attempt"]:
                        state.note_report(task, message, self._clock())
                    self._changed.notify_all()
        finally:
            with self._changed:
                if state.attempt == hello["attempt"]:
                    state.leave(task)
                self._changed.notify_all()

    def _admit(self, hello: Message) -> FeedState:
        """Wait until the feed is open and the consumer's attempt has begun, and take the consumer in."""
        feed, attempt = hello["feed"], hello["attempt"]

        def look() -> bool:
            return self._attempt >= attempt and (feed in self._feeds or self._is_complete or self._failure is not None)

        self._wait(look, hello["timeout_seconds"])
        with self._changed:
            if self._failure is not None:
                raise TaskFailedError(self._failure)
            if feed not in self._feeds and self._is_complete:
                hint = f"the driver opened {sorted(self._feeds)} before it shut the cluster down"
                raise UsageError(f"there is no feed {feed!r}", hint=hint)
            if feed not in self._feeds or self._attempt < attempt:
                raise DeadlineError(
                    f"feed {feed!r} was not opened in {hello['timeout_seconds']:g} s",
                    hint=f"open are {sorted(self._feeds)}",
                )
            state = self._feeds[feed]
            if self._attempt > attempt:
                raise UsageError(f"{hello['task']} belongs to attempt {attempt}, and attempt {self._attempt} has begun")
            state.arrive(hello["task"], hello["places"])
            state.progress_at = self._clock()
            self._changed.notify_all()
            return state

    def _serve_news(self, link: Link, hello: Message) -> None:
        """Answer a consumer whenever there is something that it must know."""
        with self._changed:
            state = self._get(hello["feed"])
        while (message := link.receive(_SILENCE_SECONDS)) is not None:
            version, known = message["version"], message["epochs"]
            self._wait(partial(self._has_news, state, hello, version), NEWS_SECONDS)
            with self._changed:
                if self._is_closing:
                    return
                if state.attempt != hello["attempt"]:
                    answer = {**state.state_for(hello["task"], 0), "failure": "the tasks were started again"}
                else:
                    answer = state.state_for(hello["task"], known)
            link.send(answer)

    def _has_news(self, state: FeedState, hello: Message, version: int) -> bool:
        return state.version > version or state.attempt != hello["attempt"]

    def _serve_sender(self, link: Link, hello: Message) -> None:
        """Answer a sender's questions, one after another."""
        sender, told = next(self._senders), dict[str, Sequence[str]]()
        epoch = Epoch(hello["feed"], hello["number"], hello["attempt"])
        try:
            with self._changed:
                state = self._get(epoch.feed)
        except UsageError as error:
            link.send({"type": "failed", "message": str(error)})
            return
        answers: dict[str, Callable[[Message], Message | None]] = {
            "schema": lambda message: self._agree(state, message),
            "block": lambda message: self._grant(state, sender, hello["partition"], message),
            "lend": lambda message: self._lend(state, sender, message),
            "lost": lambda message: {"type": "present"} if state.pacing.is_present(message["consumer"]) else None,
            "done": lambda message: self._finish(state, hello["partition"], message),
        }
        try:
            link.send(self._begin_sender(state, epoch, hello["partition"]))
            while (message := link.receive(_SILENCE_SECONDS)) is not None:
                answer = self._await(state, epoch, partial(answers[message["type"]], message))
                with self._changed:
                    named = {slice_[0] for slice_ in answer.get("slices", ())} & state.consumers.keys()
                    places = {name: state.consumers[name].places for name in named}
                    # A consumer that was started again is somewhere else.
                    places = {name: place for name, place in places.items() if told.get(name) != place}
                told.update(places)
                link.send({**answer, "places": places})
        except _EndedError as ended:
            link.send(ended.message)
            # What it asked before it hears of this must be read, or closing the link would discard the message.
            while link.receive(_SILENCE_SECONDS) is not None:
                pass
        finally:
            with self._changed:
                state.pacing.leave_sender(sender)
                state.loans.leave_sender(sender)
                self._changed.notify_all()

    def _begin_sender(self, state: FeedState, epoch: Epoch, partition: int) -> Message:
        with self._changed:
            self._raise_ended(state, epoch)
            # An epoch ends when all its partitions are done, so a sender of an earlier one has nothing to do.
            is_done = state.is_training and (
                epoch.number != state.number or not state.is_sending or state.pacing.is_done(partition)
            )
            return {"type": "done" if is_done else "accepted"}

    def _await(self, state: FeedState, epoch: Epoch, look: Callable[[], Message | None]) -> Message:
        """Wait for an answer to a sender, unless the feed ends or nothing moves."""
        began = self._clock()
        with self._changed:
            while True:
                self._raise_ended(state, epoch)
                try:
                    answer = look()
                except UsageError as error:
                    state.fail(str(error))
                    self._changed.notify_all()
                    continue
                if answer is not None:
                    state.progress_at = self._clock()
                    self._changed.notify_all()
                    return answer
                waited = self._clock() - max(began, state.progress_at)
                if waited >= state.settings.timeout_seconds:
                    state.fail(state.stall(state.settings.timeout_seconds))
                    self._changed.notify_all()
                    continue
                self._changed.wait(min(_RECHECK_SECONDS, state.settings.timeout_seconds - waited))

    def _raise_ended(self, state: FeedState, epoch: Epoch) -> None:
        if self._is_closing:
            raise _EndedError({"type": "failed", "message": "the run has ended"})
        interruption = state.interruption(epoch)
        if interruption == "failed":
            raise _EndedError({"type": "failed", "message": state.failure})
        if interruption is not None:
            raise _EndedError({"type": "stopped"})

    def _agree(self, state: FeedState, message: Message) -> Message:
        if state.schema is None:
            state.schema = FeedSchema.from_message(message["schema"])
            state.version += 1
        return {"type": "schema", "schema": state.schema.to_message()}

    def _grant(self, state: FeedState, sender: int, partition: int, message: Message) -> Message | None:
        about = (message["sequence"], message["rows"], message["cost"], message["digest"])
        is_stalled = self._clock() - state.progress_at > _STALL_SECONDS
        slices = state.pacing.ask(sender, partition, *about, is_stalled=is_stalled)
        if slices is None:
            return None
        listed = [[each.consumer, each.rows, each.cost, each.is_acknowledged] for each in slices]
        return {"type": "grant", "slices": listed}

    def _lend(self, state: FeedState, sender: int, message: Message) -> Message | None:
        for sequence, rows in message["answered"]:
            state.loans.give_back(sender, sequence, rows)
        if message["sequence"] is None:
            return {"type": "noted"}
        name = state.loans.ask(sender, message["sequence"], message["cost"])
        if name is None:
            return None
        return {"type": "grant", "slices": [[name, message["rows"], message["cost"], False]]}

    def _finish(self, state: FeedState, partition: int, message: Message) -> Message | None:
        return {"type": "done"} if state.pacing.finish(partition, message["blocks"]) else None
