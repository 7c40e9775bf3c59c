"""Add up squares, slowly; save what is done when asked to stop, or, with --periodic, every 20 steps by exit code 85."""

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

state = Path(os.environ["GRIDFLOW_CHECKPOINT_DIR"], "state")
step, total = map(int, state.read_text().split()) if state.exists() else (0, 0)
print("starting at step", step)  # noqa: T201


def save(_number: int = 0, _frame: FrameType | None = None) -> None:
    state.write_text(f"{step} {total}")
    print("saved at step", step)  # noqa: T201


def stop(_number: int, _frame: FrameType | None) -> None:
    save()
    sys.exit(0)


signal.signal(signal.SIGTERM, stop)
while step < 60:
    step, total = step + 1, total + step * step
    time.sleep(0.15)
    if step % 20 == 0 and "--periodic" in sys.argv:
        save()
        sys.exit(85)
print("total", total)  # noqa: T201
