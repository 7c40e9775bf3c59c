"""Every measurement has the same command line, and prints what scripts can read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
#: What they share, which measures nothing.
PARTS = ("peers.py", "report.py")
SCRIPTS = sorted(path for path in BENCH.glob("*.py") if path.name not in PARTS)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_measurement_can_be_quick_and_can_print_json(script: Path) -> None:
    argv = [sys.executable, str(script), "--help"]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "--quick" in said
    assert "--json" in said


def test_what_is_printed_as_json_is_a_list_of_objects_with_the_same_five_keys() -> None:
    program = (
        "from report import Measurement, print_report\n"
        "print_report([Measurement('a', 1, 's'), Measurement('b', 3, 's', 'peer', 1.5)], as_json=True)"
    )
    argv = [sys.executable, "-c", program]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, cwd=BENCH).stdout
    assert json.loads(said) == [
        {"name": "a", "value": 1, "unit": "s", "peer": None, "ratio": None},
        {"name": "b", "value": 3, "unit": "s", "peer": "peer", "ratio": 1.5},
    ]
