"""The process that removes an attached run when whoever launched it is gone: `python -m … RUN_FOLDER`, with a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gridflow.platforms.htcondor import HTCondor
from gridflow.store import RunFolder


def main(argv: Sequence[str]) -> int:
    """Wait until the launcher's pipe closes; then see that nothing of the run is left."""
    folder = RunFolder(Path(argv[0]))
    sys.stdin.read()
    HTCondor(folder.record()["options"]).cancel(folder, "the process that launched it is gone")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
