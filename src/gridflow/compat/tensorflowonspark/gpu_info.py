"""The host's GPUs that nobody computes on, as `nvidia-smi` tells of them."""

from __future__ import annotations

import logging
import random
import re
import subprocess
import time

from gridflow.errors import PlatformError, UsageError

logger = logging.getLogger(__name__)

#: How often to look again for GPUs that are free.
MAX_RETRIES = 3
AS_STRING = "string"
AS_LIST = "list"
_RETRY_SECONDS = 30
# GPU 0: Tesla K80 (UUID: GPU-8a56a4bc-e184-a047-2620-be19fdf913d5)
_LISTED = re.compile(r"GPU (\d+):.*\(UUID: ([^)]+)\)")


def _nvidia_smi(*arguments: str) -> str:
    return subprocess.check_output(["nvidia-smi", *arguments]).decode()


def is_gpu_available() -> bool:
    """Tell whether the host has GPUs."""
    try:
        _nvidia_smi("--list-gpus")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def get_gpus(num_gpu: int = 1, worker_index: int = -1, format: str = AS_STRING) -> str | list[str]:  # noqa: A002 - its name
    """Return the numbers of free GPUs, as text with commas or as a list; wait for them for some time.

    Workers of one host give their index there to get different ones; without, they are drawn.
    """
    if format not in (AS_STRING, AS_LIST):
        raise UsageError(f"format={format!r} is unknown", hint=f"one of {AS_STRING}, {AS_LIST}")
    free = _wait_for_free(num_gpu)
    if worker_index == -1:
        chosen = random.sample(free, num_gpu)
    else:
        first = worker_index * num_gpu
        if first + num_gpu > len(free):
            # More workers than GPUs: they share.
            first = first % len(free)
            first = min(first, len(free) - num_gpu)
        chosen = free[first : first + num_gpu]
    return ",".join(chosen) if format == AS_STRING else chosen


def _wait_for_free(count: int) -> list[str]:
    listed = _LISTED.findall(_nvidia_smi("--list-gpus"))
    for retry in range(1, MAX_RETRIES + 1):
        busy = _nvidia_smi("--format=csv,noheader,nounits", "--query-compute-apps=gpu_uuid").split()
        free = [number for number, uuid in listed if uuid not in busy]
        if len(free) >= count:
            return free
        logger.warning("%d of %d GPUs are free, and %d are wanted", len(free), len(listed), count)
        time.sleep(_RETRY_SECONDS * retry)
    users = _nvidia_smi("--format=csv", "--query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory")
    raise PlatformError(f"there are no {count} free GPUs of {len(listed)}; they are used by\n{users}")
