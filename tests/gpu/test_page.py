"""docs/gpus.md says what is so: its examples are run, and it names all there is."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path

from tests.cli.terminal import gridflow
from tests.gpu.hosts import Host

from gridflow import gpu
from gridflow.gpu.claims import Claim
from gridflow.gpu.grants import Grant
from gridflow.gpu.inventory import take_inventory
from gridflow.gpu.order import AGEING_SECONDS, ORDERS
from gridflow.gpu.tickets import Ticket
from gridflow.job import Job
from gridflow.tables import read_toml

PAGE = Path(__file__).parents[2] / "docs" / "gpus.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_the_program_shown_runs(host: Host) -> None:
    (program,) = blocks("python")
    assert host.run(program).splitlines() == ["[0] [2048.0] GPU 0 (T4), 2048 of 8192 MB", "GPU"]


def test_the_files_shown_are_valid(host: Host) -> None:
    job, declaration = blocks("toml")
    host.declare(job)
    assert Job.from_table(read_toml(host.folder / "gpus.toml")["job"]).group("worker") is not None
    host.declare(declaration)
    inventory = take_inventory(host.environ)
    assert (len(inventory.devices), len(inventory.usable), inventory.order) == (9, 8, "fair")


def test_every_field_order_and_key_is_named(host: Host) -> None:
    text = PAGE.read_text()
    fields = [field.name for field in (*dataclasses.fields(Claim), *dataclasses.fields(Grant))]
    unnamed = {"overhead_mb", "id", "is_declared"}  # of a grant, for Gridflow itself
    assert [name for name in {*fields} - unnamed if f"`{name}`" not in text] == []
    assert [name for name in ORDERS if f"`{name}`" not in text] == []
    assert AGEING_SECONDS == 600, "the page says ten minutes"
    with gpu.claim(2), Ticket.ask(Claim()):
        report = json.loads(gridflow("gpus", "--json").stdout)
    keys = {*report, *report["devices"][0], *report["holders"][0], *report["waiting"][0]}
    assert [key for key in keys if f"`{key}`" not in text] == []


def test_the_commands_shown_are_there(host: Host) -> None:
    (commands,) = blocks("console")
    for command in commands.splitlines():
        words = shlex.split(command)[1:]
        done = gridflow(*words, "--help") if "--watch" in words else gridflow(*words)
        assert (done.returncode, done.stderr) == (0, "")
