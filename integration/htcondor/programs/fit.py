"""The first stage of a workflow: makes weights, but fails as often as it is told to."""

import os
import sys
from pathlib import Path

folder = Path(os.environ["GRIDFLOW_CHECKPOINT_DIR"])
tries = folder / "tries"
number = int(tries.read_text()) if tries.exists() else 0
tries.write_text(str(number + 1))
print("try", number)  # noqa: T201
if number < int(sys.argv[2]):
    sys.exit(4)
(folder / "weights").write_text("3")
