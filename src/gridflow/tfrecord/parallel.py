"""Iterables run by threads, their items in order and never far ahead of whoever takes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

#: Items of one iterable that wait to be taken.
_AHEAD = 2


class _Lane:
    """What one iterable has given and nobody has taken yet."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.is_done = False
        self.error: BaseException | None = None


class _Stage:
    """Threads that run iterables, one lane each."""

    def __init__(self, tasks: Sequence[Iterable[Any]]) -> None:
        self._tasks = tasks
        self._changed = threading.Condition()
        self._lanes = [_Lane() for _ in tasks]
        self._next = 0
        self._is_stopped = False

    def work(self) -> None:
        """Run iterables until there are no more."""
        while True:
            with self._changed:
                if self._is_stopped or self._next == len(self._tasks):
                    return
                number, self._next = self._next, self._next + 1
            self._run(self._lanes[number], self._tasks[number])

    def _run(self, lane: _Lane, task: Iterable[Any]) -> None:
        error: BaseException | None = None
        try:
            for item in task:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_stopped or len(lane.items) < _AHEAD)
                    if self._is_stopped:
                        return
                    lane.items.append(item)
                    self._changed.notify_all()
        except BaseException as caught:  # noqa: BLE001  the root of a thread; whoever takes the items gets it
            error = caught
        with self._changed:
            lane.is_done, lane.error = True, error
            self._changed.notify_all()

    def take(self) -> Iterator[Any]:
        """Yield all items, those of the first iterable first."""
        for lane in self._lanes:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda lane=lane: lane.items or lane.is_done)  # type: ignore[misc]
                    if not lane.items:
                        break
                    item = lane.items.popleft()
                    self._changed.notify_all()
                yield item
            if lane.error is not None:
                raise lane.error

    def stop(self) -> None:
        """Let the threads end."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()


def in_order(tasks: Sequence[Iterable[Any]], threads: int) -> Iterator[Any]:
    """Yield the items of all iterables one after the other, while threads run some of them ahead."""
    workers = min(threads, len(tasks))
    if workers <= 1:
        for task in tasks:
            yield from task
        return
    stage = _Stage(tasks)
    started = [threading.Thread(target=stage.work, name=f"tfrecord-{n}", daemon=True) for n in range(workers)]
    for thread in started:
        thread.start()
    try:
        yield from stage.take()
    finally:
        stage.stop()
        for thread in started:
            thread.join()
