"""The programs in docs/spark.md run as they stand there."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def output_of(heading: str, folder: Path) -> list[str]:
    """Run the first program below a heading of the page, and return the lines that it printed."""
    below = PAGE.read_text().partition(f"\n## {heading}\n")[2]
    [program, *_] = re.findall(r"```python\n(.*?)```", below, flags=re.DOTALL)
    (folder / "train.py").write_text(program)
    # Its executors keep their folders where this says, and otherwise inside the pyspark package.
    own = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(folder / "work")}
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env={**environ, **own},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip().splitlines()


def test_program_that_is_fed_trains_three_epochs(tmp_path: Path) -> None:
    report, losses = output_of("Feed it rows", tmp_path)[-2:]
    assert report.startswith("Report(rows=3000, ")
    first, *_, last = ast.literal_eval(losses)
    assert last < first


def test_program_with_a_pipeline_trains_and_predicts(tmp_path: Path) -> None:
    losses, _, names, _, *rows, _, _ = output_of("Pipelines", tmp_path)
    first, *_, last = ast.literal_eval(losses)
    assert last < first
    assert [name.strip() for name in names.split("|")[1:-1]] == ["x", "y", "predicted"]
    assert len(rows) == 3
