"""GPUs as `nvidia-smi` tells of them."""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Mapping

from gridflow.errors import CommandError, DeadlineError, PlatformError
from gridflow.gpu.inventory import Device

_FIELDS = ("index", "uuid", "name", "memory.total", "compute_cap")
_ARGUMENTS = (f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
#: A driver that has to wake the devices first takes seconds for it.
_TIMEOUT_SECONDS = 60.0
#: About what a CUDA context with cuDNN and cuBLAS takes.
OVERHEAD_MB = 512


def detect(environ: Mapping[str, str]) -> tuple[Device, ...] | None:
    """Ask the command, where there is one on the path."""
    command = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if command is None:
        return None
    argv = [command, *_ARGUMENTS]
    try:
        done = subprocess.run(
            argv, env=dict(environ), capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise DeadlineError(
            f"`{' '.join(argv)}` did not answer within {_TIMEOUT_SECONDS:g} s", hint="the driver is stuck; see `dmesg`"
        ) from None
    if "No devices were found" in done.stdout:
        return ()
    if done.returncode:
        raise CommandError(argv, done.returncode, done.stdout, done.stderr, hint="or declare the GPUs in gpus.toml")
    return parse(done.stdout)


def parse(text: str) -> tuple[Device, ...]:
    """Read the lines that `nvidia-smi` prints."""
    # 0, GPU-8a56a4bc-e184-a047-2620-be19fdf913d5, NVIDIA A100-SXM4-40GB, 40960, 8.0
    return tuple(_device(line) for line in csv.reader(text.splitlines(), skipinitialspace=True) if line)


def _device(line: list[str]) -> Device:
    try:
        index, uuid, name, memory_mb, capability = line
        return Device(int(index), int(memory_mb), uuid, name, float(capability), OVERHEAD_MB)
    except ValueError:
        # A GPU that shares the host's memory prints '[N/A]' for its own.
        raise PlatformError(
            f"nvidia-smi printed {', '.join(line)!r} instead of {', '.join(_FIELDS)}",
            hint="declare the GPUs in gpus.toml",
        ) from None
