"""Claims and releases in children that kill themselves at every line of code in turn, and prints what came of it.

python killed_anywhere.py STEP      every STEP-th line that the claim executes
"""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import Any

from gridflow.gpu import Claim, claim
from gridflow.gpu.inventory import take_inventory
from gridflow.gpu.ledger import Ledger, ledger_folder
from gridflow.gpu.tickets import Ticket


class Countdown:
    """A trace function that counts the lines of Gridflow, and kills the process at one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.kill_at = kill_at
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if f"{os.sep}gpu{os.sep}" not in frame.f_code.co_filename:
            return None
        if event == "line":
            if self.lines == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.lines += 1
        return self


def act(countdown: Countdown) -> None:
    sys.settrace(countdown)
    with claim(1), claim(gpus=0.5):
        pass
    sys.settrace(None)


def count_lines() -> int:
    act(Countdown(None))  # what happens only the first time is not counted
    countdown = Countdown(None)
    act(countdown)
    return countdown.lines


def main(step: int) -> None:
    ledger, total = Ledger(ledger_folder(os.environ)), len(take_inventory(os.environ).usable)
    lines, killed, leftovers = count_lines(), 0, 0
    for kill_at in range(0, lines, step):
        child = os.fork()
        if child == 0:
            act(Countdown(kill_at))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        leftovers += bool(ledger.read_table()["holdings"] or ledger.read_table()["waiting"])
        # Everything is free at once, whatever the dead have left.
        with Ticket.ask(Claim(gpus=total, wait_seconds=0)) as ticket:
            assert ticket.wait().devices == list(range(total)), f"killed at line {kill_at}"
        files = sorted(path.name for path in ledger.folder.iterdir())
        assert files in ([ledger.file.name], [ledger.file.name, f"{ledger.file.name}.new"]), files
    json.dump({"lines": lines, "killed": killed, "leftovers": leftovers}, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
