"""What a task's program is told about the others: TF_CONFIG, DTENSOR_*, the data service, filled-in arguments. Pure.

TensorFlow reads TF_CONFIG like this; an evaluator is not part of the cluster, nor are Gridflow's own services:

    {"cluster": {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4"]}, "task": {"type": "worker", "index": 0}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gridflow.errors import TaskError
from gridflow.rendezvous.roster import Roster

#: The groups that TensorFlow knows as parts of a cluster.
CLUSTER_GROUPS = ("chief", "worker", "ps")
DATA_SERVICE = "GRIDFLOW_DATA_SERVICE"
ROSTER = "GRIDFLOW_ROSTER"
# The kernel refuses a longer string in a process's environment (MAX_ARG_STRLEN).
_MAX_VARIABLE_BYTES = 128 * 1024 - 1


def split_task(task: str) -> tuple[str, int]:
    """Split `worker/0` into `worker` and 0."""
    group, _, index = task.partition("/")
    return group, int(index)


def tf_config(roster: Roster, task: str) -> dict[str, Any]:
    """Return the content of TF_CONFIG for a task."""
    group, index = split_task(task)
    hosts = {name: _hosts(roster, name) for name in CLUSTER_GROUPS}
    cluster = {name: addresses for name, addresses in hosts.items() if addresses}
    return {"cluster": cluster, "task": {"type": group, "index": index}}


def environment(roster: Roster, task: str) -> dict[str, str]:
    """Return the variables that describe the cluster to a task's program."""
    variables = {ROSTER: json.dumps(roster.to_dict(), separators=(",", ":"))}
    if split_task(task)[0] in (*CLUSTER_GROUPS, "evaluator"):
        variables["TF_CONFIG"] = json.dumps(tf_config(roster, task), separators=(",", ":"))
    variables |= _dtensor(roster, task)
    dispatcher = roster.group("data")
    if dispatcher:
        variables[DATA_SERVICE] = f"grpc://{dispatcher[0]}"
    for name, value in variables.items():
        if len(name) + 1 + len(value) > _MAX_VARIABLE_BYTES:
            raise TaskError(
                f"{name} for {len(roster.tasks)} tasks is {len(value)} bytes long, more than the system allows",
                hint="use fewer tasks, or shorter host names",
            )
    return variables


def _dtensor(roster: Roster, task: str) -> dict[str, str]:
    """Return the variables of multi-client DTensor: each training task is a client, the first one leads."""
    clients = [name for name in roster.tasks if split_task(name)[0] in ("chief", "worker")]
    if task not in clients:
        return {}
    return {
        "DTENSOR_CLIENT_ID": str(clients.index(task)),
        "DTENSOR_NUM_CLIENTS": str(len(clients)),
        "DTENSOR_JOB_NAME": "worker",
        "DTENSOR_JOBS": ",".join(str(roster[name]) for name in clients),
    }


def fill_arguments(arguments: Sequence[str], roster: Roster, task: str, places: Mapping[str, str]) -> list[str]:
    """Fill `{job_name}`, `{task_index}`, `{ps_hosts}`, … into a program's arguments; other braces stay as they are."""
    group, index = split_task(task)
    values = {
        "job_name": group,
        "task_index": str(index),
        **{f"{name}_hosts": ",".join(_hosts(roster, name)) for name in CLUSTER_GROUPS},
        **places,
    }
    pattern = re.compile(r"\{(" + "|".join(map(re.escape, values)) + r")\}")
    return [pattern.sub(lambda match: values[match[1]], argument) for argument in arguments]


def _hosts(roster: Roster, group: str) -> list[str]:
    return [str(address) for address in roster.group(group)]
