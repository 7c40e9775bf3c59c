"""Show what a task finds."""

import os
import sys

print("arguments", sys.argv[1:])  # noqa: T201
print("folder", os.getcwd())  # noqa: T201
print("GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("GRIDFLOW_GRANT"))  # noqa: T201
print("host", os.environ["GRIDFLOW_ROSTER"])  # noqa: T201
