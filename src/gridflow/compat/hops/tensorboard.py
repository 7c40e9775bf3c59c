"""TensorBoard: where programs write for it, and the process that shows it while an experiment goes on."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gridflow.compat.hops import hdfs
from gridflow.task.ports import ReservedPort

#: Where the present task's events go; None outside of experiments.
events_logdir: str | None = None
#: Where TensorBoard is; None while there is none.
tb_url: str | None = None

_LOCAL = "local_logdir"
_OUTSIDE = "Logs/TensorBoard"
_END_SECONDS = 10.0
# It dies with the process that started it, and with it alone.
_MAIN = """
import sys
from gridflow import processes
processes.die_with_parent(int(sys.argv.pop(1)))
from tensorboard.main import run_main
run_main()
"""
_logger = logging.getLogger(__name__)


def logdir() -> str:
    """Return where to write events and checkpoints: in the experiment's folder, or outside of one in the project's."""
    return events_logdir or hdfs.project_path() + _OUTSIDE


@contextmanager
def writing_to(folder: str, *, is_local: bool) -> Iterator[None]:
    """Have `logdir` be a folder, or with `is_local` one of this machine whose content goes there at the end."""
    global events_logdir
    before = events_logdir
    hdfs.mkdir(folder)
    events_logdir = folder if not is_local else os.path.join(os.getcwd(), _LOCAL) + os.sep
    if is_local:
        Path(events_logdir).mkdir(exist_ok=True)
    try:
        yield
    finally:
        if is_local:
            for entry in Path(events_logdir).iterdir():
                hdfs.copy_to_hdfs(str(entry), folder, overwrite=True)
        events_logdir = before


@contextmanager
def showing(folder: str) -> Iterator[None]:
    """Run TensorBoard on a folder; its address is in `tb_url`, and in a file of that folder."""
    global tb_url
    if importlib.util.find_spec("tensorboard") is None:
        _logger.warning("tensorboard is not installed, so nothing shows %s", folder)
        yield
        return
    endpoint = f"{folder}/TensorBoard.task0"
    with ReservedPort() as port:
        arguments = ["--logdir", folder, "--port", str(port.number), "--host", "127.0.0.1"]
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN, str(os.getpid()), *arguments],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        tb_url = f"http://127.0.0.1:{port.number}"
        try:
            hdfs.dump(tb_url, endpoint)
            _logger.info("TensorBoard: %s", tb_url)
            yield
        finally:
            tb_url = None
            _end(process)
            if hdfs.exists(endpoint):
                hdfs.delete(endpoint)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
