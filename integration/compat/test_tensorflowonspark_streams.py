"""Streams into the nodes of a cluster.

Spark calls Python for each micro-batch over connections that it keeps until the interpreter ends, so the driver is a
program of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from integration.spark.standalone import Standalone

PROGRAM = Path(__file__).parent / "programs" / "tensorflowonspark_streams.py"


@pytest.fixture(scope="module")
def scenes(cluster: Standalone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the program told of each of its scenes."""
    folder = tmp_path_factory.mktemp("streams")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), cluster.url, json.dumps(cluster.settings()), str(folder)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "GRIDFLOW_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {each.pop("scene"): each for each in told}


def test_dstream_is_fed_until_a_node_wants_no_more(scenes: dict[str, dict[str, Any]]) -> None:
    assert scenes["dstream"] == {"rows": list(range(30)), "is_stopped": True}


def test_streaming_dataframe_is_fed_until_shutdown(scenes: dict[str, dict[str, Any]]) -> None:
    assert scenes["frame"] == {"rows": list(range(70)), "is_stopped": True}
