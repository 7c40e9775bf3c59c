"""Print the task's grant and what CUDA is told; with `tensorflow` as argument import that first."""

import json
import os
import sys

import gridflow

if "tensorflow" in sys.argv:
    import tensorflow  # noqa: F401

grant = gridflow.context().grant
names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
variables = {name: os.environ.get(name) for name in names}
print("grant", json.dumps([grant.devices, grant.memory, grant.limits_mb, variables]))  # noqa: T201
