from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal, gridflow, started
from tests.gpu.hosts import TWO_OF_8_GB, Host, declared_host

from gridflow import gpu
from gridflow.gpu.claims import Claim
from gridflow.gpu.tickets import Ticket


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return declared_host(tmp_path, monkeypatch)


def lines_of(output: str) -> list[str]:
    """Return the lines of an output, whatever the time."""
    return re.sub(r"\b\d+:\d\d:\d\d\b", "H:MM:SS", output).splitlines()


def test_devices_holders_and_the_queue_are_shown(host: Host) -> None:
    host.declare("reserved = [2]\n" + TWO_OF_8_GB.replace("2", "3"))
    with (
        gpu.claim(gpus=1, name="alone", owner="ana"),
        gpu.claim(gpus=0.25, name="sharing", owner="bo"),
        Ticket.ask(Claim(gpus=2, name="patient", owner="bo")),
    ):
        done = gridflow("gpus")
    assert (done.returncode, done.stderr) == (0, "")
    assert lines_of(done.stdout) == [
        f"GPUs declared in {host.folder / 'gpus.toml'}",
        "  GPU 0  T4  8192 MB, 0 MB free",
        "      alone (ana)  alone, H:MM:SS",
        "  GPU 1  T4  8192 MB, 6144 MB free",
        "      sharing (bo)  2048 MB, H:MM:SS",
        "  GPU 2  T4  8192 MB, reserved",
        "waiting",
        "  1. patient (bo): 2 GPUs, H:MM:SS; held by alone (ana), sharing (bo)",
    ]


def test_scripts_get_one_object(host: Host) -> None:
    with gpu.claim(gpus=2, name="alone", owner="ana"), Ticket.ask(Claim(name="patient", owner="bo", priority=3)):
        report = json.loads(gridflow("gpus", "--json").stdout)
    assert list(report) == ["source", "ledger", "order", "devices", "holders", "waiting"]
    assert (report["ledger"], report["order"]) == (str(host.ledger.folder), "priority")
    assert report["devices"][1] == {
        "device": "1",
        "index": 1,
        "uuid": "",
        "name": "T4",
        "memory_mb": 8192,
        "free_mb": 0,
        "capability": 7.5,
        "part_of": "",
        "not_claimable": "",
    }
    (holder,), (waiter,) = report["holders"], report["waiting"]
    assert (holder["who"], holder["devices"], holder["memory_mb"]) == ("alone (ana)", ["0", "1"], [8192, 8192])
    assert (holder["alone"], holder["wanted_by"], len(holder["pids"])) == (True, "", 1)
    assert (waiter["who"], waiter["claim"], waiter["priority"]) == ("patient (bo)", "1 GPU", 3)
    assert waiter["reason"] == "held by alone (ana)"


def test_what_a_task_claims_of_its_own_grant_is_shown_below_it(host: Host) -> None:
    with gpu.claim(gpus=0.5, name="task") as grant, pytest.MonkeyPatch.context() as inside:
        for name, value in grant.environment.items():
            inside.setenv(name, value)
        with gpu.claim(gpus=1, memory_per_gpu_mb=1024, shared=True, name="part", owner="ana"):
            inside.undo()
            lines = lines_of(gridflow("gpus").stdout)
    assert lines[-2:] == [
        f"  GPU 0 of {grant.id}  GPU  4096 MB, claimed by others only",
        "      part (ana)  1024 MB, H:MM:SS",
    ]


def test_a_host_without_gpus_says_so(tmp_path: Path) -> None:
    empty = {"GRIDFLOW_GPUS": "", "PATH": str(tmp_path)}
    done = gridflow("gpus", variables=empty)
    assert (done.returncode, done.stdout) == (0, "no GPU was found\n")
    assert json.loads(gridflow("gpus", "--json", variables=empty).stdout)["devices"] == []


def test_a_wrong_declaration_is_one_line(host: Host) -> None:
    host.declare("[[gpu]]\n")
    done = gridflow("gpus")
    assert (done.returncode, done.stderr) == (2, 'gridflow: gpus.toml.gpu[0] has no memory (write memory = "16 GB")\n')


def test_watching_prints_an_object_for_each_change(host: Host) -> None:
    with started("gpus", "--watch", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["holders"] == []
        with gpu.claim(1, name="short"):
            (holder,) = json.loads(process.stdout.readline())["holders"]
            assert holder["name"] == "short"
        assert json.loads(process.stdout.readline())["holders"] == []


def test_watching_on_a_terminal_shows_what_is_until_ctrl_c(host: Host) -> None:
    with Terminal("gpus", "--watch") as terminal:
        terminal.wait_for("GPU 0  T4  8192 MB, 8192 MB free")
        with gpu.claim(1, name="short", owner="ana"):
            terminal.wait_for(r"short \(ana\)  alone")
        terminal.press(b"\x03")
        assert terminal.wait() == 130
        assert terminal.settings == terminal.settings_before
