"""`gridflow doctor`: what is there and what can be used."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from pathlib import Path

from tests.cli.terminal import gridflow

from gridflow.platforms.base import PLATFORMS


def test_json_tells_of_this_machine_its_packages_and_every_platform(tmp_path: Path) -> None:
    done = gridflow("doctor", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert report["python"] == platform.python_version()
    assert report["cpus"] == len(os.sched_getaffinity(0))
    assert report["home"] == str(tmp_path / "gridflow-home")
    assert report["home_free_gb"] > 0
    versions = {package["package"]: package["version"] for package in report["packages"]}
    assert versions["keras"] == metadata.version("keras")
    assert versions["tensorflow"] is not None
    assert [place["platform"] for place in report["platforms"]] == list(PLATFORMS)
    for place in report["platforms"]:
        assert place["findings"]
        assert all(finding.keys() == {"what", "good", "detail"} for finding in place["findings"])


def test_lines_for_people_say_which_platform_can_be_used() -> None:
    done = gridflow("doctor")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Python {platform.python_version()} on ")
    assert "platform local (processes on this machine): can be used\n  ✓ Linux: process descriptors" in done.stdout


def test_home_that_does_not_exist_yet_is_not_made(tmp_path: Path) -> None:
    gridflow("doctor")
    assert not (tmp_path / "gridflow-home").exists()
