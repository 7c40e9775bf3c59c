"""Small things about the host and the process: its address, its GPUs, its number."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gridflow.compat.tensorflowonspark import gpu_info
from gridflow.errors import TaskError
from gridflow.gpu.variables import VISIBLE

logger = logging.getLogger(__name__)

_EXECUTOR_ID = Path("executor_id")
#: Any address outside: nothing is sent to it.
_OUTSIDE = ("8.8.8.8", 80)
_HADOOP = "HADOOP_PREFIX"
_CLASSPATH = "CLASSPATH"
_EXPANDED = "TFOS_CLASSPATH_UPDATED"


def single_node_env(num_gpus: int = 1, worker_index: int = -1, nodes: Sequence[str] = ()) -> None:
    """Set this process up for TensorFlow alone: Hadoop's class path, and which GPUs it sees.

    `nodes` are the addresses of all workers, by which those of one host take different GPUs.
    """
    expand_hadoop_classpath()
    if num_gpus < 1 or not gpu_info.is_gpu_available():
        os.environ[VISIBLE] = ""
        return
    index = worker_index
    if worker_index >= 0 and nodes:
        index = index_on_host(nodes[worker_index], nodes)
    os.environ[VISIBLE] = str(gpu_info.get_gpus(num_gpus, index))
    logger.info("using the GPUs %s", os.environ[VISIBLE])


def index_on_host(address: str, addresses: Sequence[str]) -> int:
    """Return which of those on its host an address is, counted from 0."""
    host = address.partition(":")[0]
    return [each for each in addresses if each.partition(":")[0] == host].index(address)


def expand_hadoop_classpath() -> None:
    """Write out the wildcards of Hadoop's class path, which the JVM inside a process does not understand."""
    if _HADOOP not in os.environ or _EXPANDED in os.environ:
        return
    command = os.path.join(os.environ[_HADOOP], "bin", "hadoop")
    expanded = subprocess.check_output([command, "classpath", "--glob"], text=True).strip()
    os.environ[_CLASSPATH] = os.pathsep.join(filter(None, (os.environ.get(_CLASSPATH), expanded)))
    os.environ[_EXPANDED] = "1"


def get_ip_address() -> str:
    """Return the address of this host that others see."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_OUTSIDE)
            return str(probe.getsockname()[0])
        except OSError:  # no way to the outside
            return socket.gethostbyname(socket.getfqdn())


def find_in_path(path: str, file: str) -> str | bool:
    """Return where a file is among the folders of a path; False where it is not."""
    candidates = (os.path.join(folder, file) for folder in path.split(os.pathsep))
    return next((each for each in candidates if os.path.isfile(each)), False)


def write_executor_id(num: int) -> None:
    """Write a node's number into the working folder."""
    _EXECUTOR_ID.write_text(str(num))


def read_executor_id() -> int:
    """Return the number of the node that has this working folder."""
    if not _EXECUTOR_ID.is_file():
        raise TaskError(f"no node was started in {os.getcwd()}", hint="see the logs of the nodes for what went wrong")
    return int(_EXECUTOR_ID.read_text())
