"""The command line as people and scripts use it: a process of its own, with pipes or on a terminal."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

COMMAND = (sys.executable, "-m", "gridflow")
WAIT_SECONDS = 60.0
_WIDTH, _HEIGHT = 100, 30


def gridflow(
    *words: str | Path, cwd: Path | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it printed."""
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        cwd=cwd,
        env={**os.environ, **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=WAIT_SECONDS,
        check=False,
    )


@contextmanager
def started(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Start a command whose output goes to a pipe; it is killed at the end of the block if it still runs."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *words: str | Path) -> None:
        self._master, self._slave = os.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", _HEIGHT, _WIDTH, 0, 0))
        self.settings_before = termios.tcgetattr(self._slave)
        self.shown = ""
        self._process = subprocess.Popen(
            [*COMMAND, *map(str, words)],
            env={**os.environ, "TERM": "xterm-256color"},
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)
        os.close(self._slave)

    @property
    def settings(self) -> list[object]:
        """The terminal's settings as they are now."""
        return termios.tcgetattr(self._slave)

    def press(self, key: bytes) -> None:
        """Press a key, such as Ctrl-C."""
        os.write(self._master, key)

    @property
    def text(self) -> str:
        """What was shown, without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown)

    def wait_for(self, pattern: str) -> None:
        """Read what is shown until the pattern is in its text."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, f"{pattern!r} was never shown, but: {self.text}"
            self._read()

    def wait(self) -> int:
        """Read what is shown until the command has ended, and return its exit code."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"the command never ended; it showed: {self.shown}"
            self._read()
        while self._read():
            pass
        return self._process.returncode

    def _read(self) -> bool:
        readable, _, _ = select.select([self._master], [], [], 0.05)
        if not readable:
            return False
        try:
            content = os.read(self._master, 1 << 16)
        except OSError as error:
            if error.errno == errno.EIO:  # nobody writes there any more
                return False
            raise
        self.shown += content.decode(errors="replace")
        return bool(content)


def _take_terminal() -> None:
    """Make standard input the terminal that Ctrl-C comes from."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
