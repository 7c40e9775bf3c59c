"""The fuzz target, for a few seconds; `make fuzz` runs it for longer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    shutil.which("clang++") is None and (os.geteuid() != 0 or shutil.which("apt-get") is None),
    reason="no clang++ here to build the fuzz target with",
)
def test_no_damage_makes_the_codec_crash_or_misuse_memory() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "fuzz", "5", "1"], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = re.search(r"Done (\d+) runs", done.stderr)
    assert found is not None
    assert int(found[1]) > 100
