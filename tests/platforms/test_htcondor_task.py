"""The wrapper that starts a task in its slot, and what its exit codes say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gridflow.platforms.htcondor_events import WRAPPER_CODES
from gridflow.platforms.htcondor_package import package
from gridflow.platforms.htcondor_submit import WRAPPER_SOURCE

#: A Python that does not have Gridflow.
PLAIN_PYTHON = os.path.realpath(sys.executable)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """What the wrapper needs of a machine, and no Python."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("sh", "mkdir", "tr"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


def wrap(scratch: Path, tools: Path, **variables: str) -> int:
    environ = {"PATH": str(tools), "_CONDOR_SCRATCH_DIR": str(scratch), "GRIDFLOW_TASK": "worker/0", **variables}
    argv = ["/bin/sh", str(WRAPPER_SOURCE)]
    return subprocess.run(argv, env=environ, cwd=tools, capture_output=True, timeout=60, check=False).returncode


def test_a_scratch_folder_that_cannot_be_used_is_121(tmp_path: Path, tools: Path) -> None:
    assert wrap(tmp_path / "nothing", tools) == 121
    assert WRAPPER_CODES[121] == "its scratch folder cannot be used"


def test_a_machine_without_python_is_122(tmp_path: Path, tools: Path) -> None:
    assert wrap(tmp_path, tools) == 122
    assert "there is no Python 3.11 or newer here" in (tmp_path / "logs" / "worker-0.log").read_text()


def test_a_package_that_cannot_be_loaded_is_123(tmp_path: Path, tools: Path) -> None:
    (tmp_path / "gridflow.zip").write_bytes(b"torn")
    assert wrap(tmp_path, tools, GRIDFLOW_PYTHON=PLAIN_PYTHON) == 123
    log = (tmp_path / "logs" / "worker-0.log").read_text()
    assert "gridflow.zip, which came with the task, cannot be loaded" in log


def test_a_machine_without_gridflow_uses_what_came_along(tmp_path: Path, tools: Path) -> None:
    (tmp_path / "gridflow.zip").write_bytes(package())
    assert wrap(tmp_path, tools, GRIDFLOW_PYTHON=PLAIN_PYTHON, GRIDFLOW_RUN="run-1") not in (0, *WRAPPER_CODES)
    # It got as far as the job, which did not come along.
    log = (tmp_path / "logs" / "worker-0.log").read_text()
    assert "[gridflow] slot " in log
    assert "job.json" in log


def test_a_node_of_the_parallel_universe_takes_the_task_of_its_number(tmp_path: Path, tools: Path) -> None:
    variables = {"GRIDFLOW_TASK": "", "GRIDFLOW_TASKS": "worker/0 worker/1 ps/0", "_CONDOR_PROCNO": "2"}
    assert wrap(tmp_path, tools, **variables) == 122
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["ps-0.log"]
