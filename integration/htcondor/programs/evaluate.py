"""The second stage of a workflow: judges the weights of the first."""

import os
from pathlib import Path

folder = Path(os.environ["GRIDFLOW_CHECKPOINT_DIR"])
score = int((folder / "weights").read_text()) ** 2
(folder / "score").write_text(str(score))
print("score", score)  # noqa: T201
