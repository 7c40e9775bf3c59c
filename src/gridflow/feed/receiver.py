"""The sockets of a consumer: senders bring it rows, and the coordinator hears from it."""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import suppress
from functools import partial

from gridflow.errors import DeadlineError, GridflowError, RendezvousError, TaskFailedError, UsageError
from gridflow.feed.blocks import receive_rows
from gridflow.feed.coordinator import NEWS_SECONDS
from gridflow.feed.inbox import Inbox, Loan, Piece
from gridflow.rendezvous.links import Link, LinkServer
from gridflow.rendezvous.messages import Message
from gridflow.rendezvous.roster import Address

#: Between two reports, so that what happens meanwhile is reported at once.
_REPORT_SECONDS = 0.01
_IDLE_SECONDS = 10.0
_HELLO_SECONDS = 30.0
#: How long a sender may find nothing to send; it is noticed at once if it dies.
_SILENCE_SECONDS = 7 * 24 * 3600.0
_GRACE_SECONDS = 60.0
_JOIN_SECONDS = 10.0


class Receiver:
    """A task's end of one feed."""

    def __init__(
        self, coordinator: Address, secret: bytes, *, feed: str, task: str, attempt: int, timeout_seconds: float
    ) -> None:
        self._feed = feed
        self._attempt = attempt
        self._is_closing = False
        self.inbox = Inbox()
        self._server = LinkServer(secret, self._serve)
        self._links: list[Link] = []
        self._threads: list[threading.Thread] = []
        try:
            self._reports = self._connect(coordinator, secret)
            name = f"gridflow-feed-{secrets.token_hex(8)}"
            self._server.listen_on(name)
            address = self._server.listen(self._reports.own_host)
            hello = {"feed": feed, "task": task, "attempt": attempt}
            places = {"places": [str(address), name], "timeout_seconds": timeout_seconds}
            self._reports.send({"type": "consumer", **hello, **places})
            accepted = self._accepted(timeout_seconds)
            # Not before: the driver does not wait long for a link's first message, but for a feed it does.
            self._news = self._connect(coordinator, secret)
            self._news.send({"type": "news", **hello})
        except BaseException:
            self._release()
            raise
        self.is_equal = bool(accepted["is_equal"])
        self.is_inference = accepted["kind"] == "inference"
        self.first_epoch = int(accepted["first"])
        self.inbox.begin(self.first_epoch)
        for target, name in ((self._report, "gridflow-feed-reports"), (self._hear, "gridflow-feed-news")):
            thread = threading.Thread(target=target, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _connect(self, coordinator: Address, secret: bytes) -> Link:
        link = Link.connect(coordinator, secret)
        self._links.append(link)
        return link

    def _accepted(self, timeout_seconds: float) -> Message:
        answer = self._reports.receive(timeout_seconds + _GRACE_SECONDS)
        if answer is None:
            raise DeadlineError(f"feed {self._feed!r}: the driver did not answer in {timeout_seconds:g} s")
        if answer["type"] == "refused":
            errors = {each.__name__: each for each in (UsageError, DeadlineError, TaskFailedError)}
            raise errors[answer["error"]](answer["message"], hint=answer["hint"])
        return answer

    def close(self, *, has_failed: bool) -> None:
        """Leave the feed; one that was not read to its end is stopped, unless the program has failed."""
        if self._is_closing:
            return
        with self.inbox.changing():
            self._is_closing = True
            self.inbox.is_stopped |= not (has_failed or self.inbox.has_left or self.inbox.is_all_read)
        self._threads[0].join(_JOIN_SECONDS)
        self._release()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def _release(self) -> None:
        for link in self._links:
            link.abort()
        self._server.stop()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        for link in self._links:
            link.close()

    def _report(self) -> None:
        """Tell the coordinator what has come and what was read, until this consumer leaves."""
        has_left = False
        try:
            while not has_left:
                report = self.inbox.report(_IDLE_SECONDS)
                if report is not None:
                    has_left = self._is_closing
                    self._reports.send({"type": "report", "leave": has_left, **report})
                    time.sleep(0 if has_left else _REPORT_SECONDS)
        except GridflowError as error:
            self.inbox.fail(f"feed {self._feed!r}: the driver is gone: {error.message}")

    def _hear(self) -> None:
        """Take in what the coordinator says."""
        version = 0
        try:
            while not self._is_closing:
                self._news.send({"type": "after", "version": version, "epochs": self.inbox.known_epochs})
                news = self._news.receive(NEWS_SECONDS + _GRACE_SECONDS)
                if news is None:
                    raise RendezvousError(f"it was silent for {NEWS_SECONDS + _GRACE_SECONDS:g} s")
                version = news["version"]
                self.inbox.note(news)
        except GridflowError as error:
            if not self._is_closing:
                self.inbox.fail(f"feed {self._feed!r}: the driver is gone: {error.message}")

    def _serve(self, link: Link) -> None:
        hello = link.receive(_HELLO_SECONDS)
        if hello is None or hello["feed"] != self._feed:
            raise RendezvousError(f"a sender for feed {hello and hello['feed']!r} came to feed {self._feed!r}")
        if hello["type"] == "loans":
            self._take_loans(link)
        elif hello["attempt"] == self._attempt:
            self._take_slices(link, hello["number"], hello["partition"])

    def _take_slices(self, link: Link, number: int, partition: int) -> None:
        while (head := link.receive(_SILENCE_SECONDS)) is not None:
            piece = Piece(receive_rows(link, head), head["rows"], head["cost"])
            self.inbox.take_in(number, partition, head["sequence"], piece)

    def _take_loans(self, link: Link) -> None:
        """Take one block after another, each with its answer."""
        while (head := link.receive(_SILENCE_SECONDS)) is not None:
            loan = Loan(receive_rows(link, head), head["rows"])
            self.inbox.lend(loan)
            with suppress(GridflowError), self.inbox.changed:
                self.inbox.wait(partial(self._is_settled, loan))
            if loan.answer is None:
                return
            link.send({"type": "answer", "size": len(loan.answer)}, loan.answer)

    def _is_settled(self, loan: Loan) -> bool:
        return self._is_closing or self.inbox.is_stopped or loan.is_abandoned or loan.answer is not None
