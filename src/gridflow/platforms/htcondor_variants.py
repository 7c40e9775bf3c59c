"""Tasks of one run that do not work together: combinations of a sweep, and stages of a workflow. Pure.

    --sweep lr=0.1,0.01 --sweep seed=1..3     six tasks, each with --lr=… and --seed=… after its other arguments
    [[platform.htcondor.then]]                worker/1 after worker/0, worker/2 after that

Each is `worker/N` to people; to itself it is alone.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gridflow.errors import JobError, SettingsError
from gridflow.job import Group, Job, Program
from gridflow.state import RunStatus
from gridflow.tables import Table

#: More than that in one run is more likely a mistake.
MOST_COMBINATIONS = 10_000
# 1..10
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


@dataclass(frozen=True)
class Variant:
    """How a task differs from the job."""

    args: tuple[str, ...] = ()
    #: The names and values of a sweep.
    values: Mapping[str, str] = field(default_factory=dict)
    #: Of a stage: its own program, and how often HTCondor tries it again.
    name: str = ""
    program: str = ""
    retries: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return what the task reads."""
        return {"args": list(self.args), "values": dict(self.values), "program": self.program}


def combinations(axes: Sequence[str]) -> tuple[Variant, ...]:
    """Return every combination of a sweep's values, such as `lr=0.1,0.01` and `seed=1..10`."""
    parsed = dict(_axis(axis) for axis in axes)
    if len(parsed) < len(axes):
        raise SettingsError("a name of the sweep is given twice", hint="give all of its values at once")
    count = 1
    for listed in parsed.values():
        count *= len(listed)
    if count > MOST_COMBINATIONS:
        raise SettingsError(f"the sweep has {count} combinations", hint=f"at most {MOST_COMBINATIONS} go in one run")
    variants = []
    for chosen in itertools.product(*parsed.values()):
        values = dict(zip(parsed, chosen, strict=True))
        variants.append(Variant(tuple(f"--{name}={value}" for name, value in values.items()), values))
    return tuple(variants)


def _axis(text: str) -> tuple[str, list[str]]:
    name, is_there, listed = text.partition("=")
    values: list[str] = []
    for part in listed.split(","):
        ends = _RANGE.fullmatch(part.strip())
        if ends:
            first, last = int(ends[1]), int(ends[2])
            step = 1 if last >= first else -1
            values += [str(number) for number in range(first, last + step, step)]
        elif part.strip():
            values.append(part.strip())
    if not is_there or not re.fullmatch(r"[A-Za-z_][\w.-]*", name.strip()) or not values:
        raise SettingsError(f"sweep {text!r} is not NAME=VALUES", hint="for example lr=0.1,0.01 or seed=1..10")
    return name.strip(), values


def stages(tables: Iterable[Table]) -> tuple[Variant, ...]:
    """Read the stages that follow the job's own program."""
    found = []
    for table in tables:
        program = table.text("program")
        stage = Variant(
            args=table.strings("args"),
            program=program,
            name=table.text("name") or Program.from_path(program).stem,
            retries=table.integer("retries", 0) or 0,
        )
        table.close()
        if not program.endswith(".py"):
            raise SettingsError(f"{table.where}: program = {program!r} is no .py file", hint="name the stage's program")
        if not re.fullmatch(r"[A-Za-z]\w*", stage.name):
            raise SettingsError(
                f"{table.where}: name = {stage.name!r} cannot name a stage", hint="use letters and digits"
            )
        found.append(stage)
    return tuple(found)


def expand(job: Job, variants: Sequence[Variant]) -> Job:
    """Return the job with a worker for each variant; what they run besides the job's own program comes along."""
    if not variants:
        return job
    if len(job.tasks) != 1:
        raise JobError(
            f"the job has {len(job.tasks)} tasks, but those of a sweep or workflow are alone",
            hint="leave out the numbers of tasks: there is one worker for each combination or stage",
        )
    resources = job.group_of(job.first_task).resources
    programs = [variant.program for variant in variants if variant.program]
    files = (*job.files, *(name for name in programs if name not in job.files and name != job.program.target))
    return replace(job, groups=(Group("worker", len(variants), resources),), files=files)


def table(status: RunStatus, variants: Sequence[Variant], results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a sweep's outcome as CSV: a row for each combination, with what its program has given as its result."""
    names = list(dict.fromkeys(name for variant in variants for name in variant.values))
    metrics = [
        name for name in dict.fromkeys(key for result in results.values() for key in result) if name not in names
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["task", "state", "exit_code", *names, *metrics])
    for task, variant in zip(status.tasks, variants, strict=True):
        result = results.get(task.task, {})
        code = "" if task.exit_code is None else task.exit_code
        row = [variant.values.get(name, "") for name in names] + [result.get(name, "") for name in metrics]
        writer.writerow([task.task, task.state, code, *row])
    return text.getvalue()
