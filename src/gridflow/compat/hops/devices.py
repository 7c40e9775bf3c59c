"""Which devices there are: `devices.get_num_gpus()`."""

from __future__ import annotations

import os

from gridflow.gpu.inventory import take_inventory
from gridflow.gpu.variables import GRANT, NO_DEVICE, VISIBLE

#: How many GPUs the cluster gives to each executor, where it does so without Spark's knowledge.
EXECUTOR_GPUS = "EXECUTOR_GPUS"


def get_num_gpus() -> int:
    """Return how many GPUs this process may use."""
    if os.environ.get(VISIBLE) in ("", NO_DEVICE):
        return 0
    if not os.environ.get(GRANT) and os.environ.get(EXECUTOR_GPUS):
        return int(os.environ[EXECUTOR_GPUS])
    return len(take_inventory(os.environ).usable)
