"""Say who this is, and with which arguments."""

import os
import sys

print(f"hello from {os.environ['GRIDFLOW_TASK']}", *sys.argv[1:])  # noqa: T201
