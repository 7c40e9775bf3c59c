from __future__ import annotations

import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import until

from gridflow.gpu.entries import Process
from gridflow.gpu.liveness import identify
from gridflow.gpu.watch import Watch


@contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def is_ready(watch: Watch) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(watch, selectors.EVENT_READ)
        return bool(selector.select(0))


def test_a_file_that_is_put_in_place_wakes_whoever_waits(tmp_path: Path) -> None:
    with Watch(tmp_path) as watch:
        (tmp_path / "new").write_text("")
        assert not is_ready(watch)
        (tmp_path / "new").rename(tmp_path / "file")
        assert is_ready(watch)
        assert watch.wait(60) is False
        assert not is_ready(watch)


def test_the_end_of_a_process_wakes_whoever_waits(tmp_path: Path) -> None:
    with sleeping() as first, sleeping() as second, Watch(tmp_path) as watch:
        processes = [identify(first.pid), identify(second.pid)]
        assert watch.follow(processes) is False
        second.kill()
        assert watch.wait(60) is True
        assert watch.follow([processes[0]]) is False
        first.kill()
        assert watch.wait(60) is True


def test_a_process_that_has_ended_already_is_told_at_once(tmp_path: Path) -> None:
    with Watch(tmp_path) as watch:
        me = identify(os.getpid())
        assert watch.follow([me]) is False
        assert watch.follow([me, Process(me.pid, "1", me.namespace)]) is True
        with sleeping() as gone:
            process = identify(gone.pid)
        assert watch.follow([process]) is True


def test_another_thread_can_end_a_wait(tmp_path: Path) -> None:
    with Watch(tmp_path) as watch:
        thread = threading.Thread(target=watch.wait, args=(60,), name="waits")
        thread.start()
        watch.wake()
        thread.join(60)
        assert not thread.is_alive()


def test_without_a_folder_processes_are_still_heard_of(tmp_path: Path) -> None:
    with sleeping() as process, Watch(tmp_path / "nowhere") as watch:
        watch.follow([identify(process.pid)])
        process.kill()
        assert watch.wait(60) is True


def test_nothing_stays_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with sleeping() as process:
        with Watch(tmp_path) as watch:
            watch.follow([identify(process.pid)])
        watch = Watch(tmp_path)
        watch.close()
    until(lambda: os.listdir("/proc/self/fd") == before, "everything is closed", seconds=5)
