"""What a real system needs of the machine: programs, and Debian's packages that have them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

import pytest

_INSTALL_SECONDS = 600


def require(packages: Mapping[str, str]) -> None:
    """Have programs, each named with its package: installed where that may be done, otherwise named as missing."""
    missing = sorted({package for program, package in packages.items() if shutil.which(program) is None})
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        names = " ".join(missing)
        pytest.fail(f"{names} is missing on this system; install it with: sudo apt-get install {names}", pytrace=False)
    apt = ["apt-get", "-qq", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for argv in ([*apt, "update"], [*apt, "install", *missing]):
        subprocess.run(argv, check=True, timeout=_INSTALL_SECONDS, env=environment)
