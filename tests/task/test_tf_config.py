from __future__ import annotations

import errno
import json
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridflow.errors import TaskError
from gridflow.rendezvous.roster import Roster
from gridflow.task.tf_config import environment, fill_arguments, split_task, tf_config

ROSTER = Roster.from_dict(
    {
        "chief/0": "c:1",
        "worker/0": "w0:2",
        "worker/1": "w1:3",
        "ps/0": "p:4",
        "evaluator/0": "e:5",
        "data/0": "d0:6",
        "data/1": "d1:7",
        "tensorboard/0": "t:8",
    }
)
CLUSTER = {"chief": ["c:1"], "worker": ["w0:2", "w1:3"], "ps": ["p:4"]}


def test_a_task_is_split_into_group_and_index() -> None:
    assert split_task("worker/12") == ("worker", 12)


@pytest.mark.parametrize("task", ["chief/0", "worker/1", "ps/0", "evaluator/0"])
def test_every_task_is_told_of_the_cluster_and_of_itself(task: str) -> None:
    group, index = split_task(task)
    told = {"cluster": CLUSTER, "task": {"type": group, "index": index}}
    assert tf_config(ROSTER, task) == told
    assert json.loads(environment(ROSTER, task)["TF_CONFIG"]) == told


def test_the_evaluator_is_told_of_a_cluster_that_it_is_not_part_of() -> None:
    assert "evaluator" not in tf_config(ROSTER, "evaluator/0")["cluster"]


@pytest.mark.parametrize("task", ["data/0", "tensorboard/0"])
def test_gridflows_own_services_are_no_part_of_tensorflows_cluster(task: str) -> None:
    variables = environment(ROSTER, task)
    assert variables.keys() == {"GRIDFLOW_ROSTER", "GRIDFLOW_DATA_SERVICE"}


def test_groups_that_a_job_does_not_have_are_left_out() -> None:
    assert tf_config(Roster.from_dict({"worker/0": "a:1"}), "worker/0") == {
        "cluster": {"worker": ["a:1"]},
        "task": {"type": "worker", "index": 0},
    }


def test_addresses_are_in_the_order_of_their_tasks() -> None:
    addresses = {f"worker/{index}": f"h{index}:1" for index in (10, 2, 0, 1)}
    cluster = tf_config(Roster.from_dict(addresses), "worker/2")["cluster"]
    assert cluster == {"worker": ["h0:1", "h1:1", "h2:1", "h10:1"]}


def test_ipv6_addresses_are_written_in_brackets() -> None:
    assert tf_config(Roster.from_dict({"worker/0": "[::1]:80"}), "worker/0")["cluster"] == {"worker": ["[::1]:80"]}


def test_every_training_task_is_a_client_of_dtensor_and_the_first_one_leads() -> None:
    told = [
        {name: value for name, value in environment(ROSTER, task).items() if name.startswith("DTENSOR_")}
        for task in ("chief/0", "worker/0", "worker/1")
    ]
    assert told == [
        {
            "DTENSOR_CLIENT_ID": str(client),
            "DTENSOR_NUM_CLIENTS": "3",
            "DTENSOR_JOB_NAME": "worker",
            "DTENSOR_JOBS": "c:1,w0:2,w1:3",
        }
        for client in range(3)
    ]
    for task in ("ps/0", "evaluator/0"):
        assert not any(name.startswith("DTENSOR_") for name in environment(ROSTER, task))


def test_the_data_service_is_where_its_first_task_is() -> None:
    assert environment(ROSTER, "worker/0")["GRIDFLOW_DATA_SERVICE"] == "grpc://d0:6"
    assert "GRIDFLOW_DATA_SERVICE" not in environment(Roster.from_dict({"worker/0": "a:1"}), "worker/0")


def test_the_roster_is_read_back_from_its_variable() -> None:
    text = environment(ROSTER, "ps/0")["GRIDFLOW_ROSTER"]
    assert Roster.from_dict(json.loads(text)).to_dict() == ROSTER.to_dict()


# Sizes


def test_a_cluster_too_large_for_the_environment_is_refused() -> None:
    roster = Roster.from_dict({f"worker/{index}": f"host-{index:05}.example:2222" for index in range(5000)})
    size = len(json.dumps(roster.to_dict(), separators=(",", ":")))
    with pytest.raises(TaskError) as caught:
        environment(roster, "worker/0")
    assert str(caught.value) == (
        f"GRIDFLOW_ROSTER for 5000 tasks is {size} bytes long, more than the system allows "
        "(use fewer tasks, or shorter host names)"
    )


def roster_of_size(size: int) -> Roster:
    """Return a roster whose variable, name and value, takes so many bytes."""
    addresses = {f"worker/{index}": "h:1" for index in range(4000)}
    room = size - len("GRIDFLOW_ROSTER=") - len(json.dumps(addresses, separators=(",", ":")))
    return Roster.from_dict({**addresses, "worker/0": "h" * (room + 1) + ":1"})


def test_what_is_not_refused_can_be_given_to_a_process() -> None:
    largest = 128 * 1024 - 1
    variables = environment(roster_of_size(largest), "ps/0")
    assert len(f"GRIDFLOW_ROSTER={variables['GRIDFLOW_ROSTER']}") == largest
    small = {"GRIDFLOW_ROSTER": variables["GRIDFLOW_ROSTER"]}
    assert subprocess.run(["true"], env=small, check=False).returncode == 0
    with pytest.raises(OSError, match="Argument list too long") as caught:
        subprocess.run(["true"], env={"GRIDFLOW_ROSTER": f"{small['GRIDFLOW_ROSTER']} "}, check=False)
    assert caught.value.errno == errno.E2BIG
    with pytest.raises(TaskError, match=r"^GRIDFLOW_ROSTER for 4000 tasks is "):
        environment(roster_of_size(largest + 1), "ps/0")


# Arguments


def test_arguments_are_filled_in_for_programs_that_read_flags() -> None:
    arguments = [
        "--job_name={job_name}",
        "--task_index",
        "{task_index}",
        "--hosts={chief_hosts};{worker_hosts};{ps_hosts}",
        "{log_dir}/{job_name}",
    ]
    assert fill_arguments(arguments, ROSTER, "worker/1", {"log_dir": "/logs"}) == [
        "--job_name=worker",
        "--task_index",
        "1",
        "--hosts=c:1;w0:2,w1:3;p:4",
        "/logs/worker",
    ]


@pytest.mark.parametrize("argument", ['{"lr": 0.1}', "{}", "{unknown}", "{job_name", "{ job_name }", "{{}}", "%s", ""])
def test_other_braces_stay_as_they_are(argument: str) -> None:
    assert fill_arguments([argument], ROSTER, "worker/0", {}) == [argument]


def test_what_is_filled_in_is_not_filled_in_again() -> None:
    assert fill_arguments(["{log_dir}"], ROSTER, "worker/0", {"log_dir": "{job_name}"}) == ["{job_name}"]


def test_a_group_that_the_job_does_not_have_is_filled_in_as_nothing() -> None:
    roster = Roster.from_dict({"worker/0": "a:1"})
    assert fill_arguments(["--ps_hosts={ps_hosts}"], roster, "worker/0", {}) == ["--ps_hosts="]


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="{}"))))
def test_arguments_without_braces_are_never_touched(arguments: list[str]) -> None:
    assert fill_arguments(arguments, ROSTER, "worker/0", {}) == arguments
