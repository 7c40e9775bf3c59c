from __future__ import annotations

from pathlib import Path

import pytest

from gridflow.errors import TaskError
from gridflow.task.identity import TaskIdentity

ENVIRON = {
    "GRIDFLOW_RUN": "train-1",
    "GRIDFLOW_TASK": "worker/0",
    "GRIDFLOW_RUN_DIR": "/runs/train-1",
    "GRIDFLOW_RENDEZVOUS": "10.0.0.1:4000",
    "GRIDFLOW_HOST": "10.0.0.2",
}


def test_a_task_learns_who_it_is_from_its_environment() -> None:
    environ = {**ENVIRON, "GRIDFLOW_PORT": "2222", "GRIDFLOW_RESTART": "3", "PATH": "/bin"}
    assert TaskIdentity.read(environ) == TaskIdentity(
        run="train-1",
        task="worker/0",
        run_dir=Path("/runs/train-1"),
        rendezvous="10.0.0.1:4000",
        host="10.0.0.2",
        port=2222,
        restart=3,
    )


@pytest.mark.parametrize("more", [{}, {"GRIDFLOW_PORT": ""}])
def test_a_task_takes_any_port_and_is_at_its_first_start_unless_told(more: dict[str, str]) -> None:
    identity = TaskIdentity.read({**ENVIRON, **more})
    assert (identity.port, identity.restart) == (None, 0)


@pytest.mark.parametrize("name", ENVIRON)
def test_a_variable_that_is_not_set_is_named(name: str) -> None:
    for environ in ({key: value for key, value in ENVIRON.items() if key != name}, {**ENVIRON, name: ""}):
        with pytest.raises(TaskError) as caught:
            TaskIdentity.read(environ)
        assert str(caught.value) == f"{name} not set (start the program with `gridflow run`)"


def test_all_variables_that_are_not_set_are_named() -> None:
    with pytest.raises(TaskError) as caught:
        TaskIdentity.read({})
    assert str(caught.value) == f"{', '.join(ENVIRON)} not set (start the program with `gridflow run`)"
