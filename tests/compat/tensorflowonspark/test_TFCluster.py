"""Which nodes there are, and which tasks they become."""

from __future__ import annotations

from typing import Any

import pytest

from gridflow.compat.tensorflowonspark import TFCluster
from gridflow.compat.tensorflowonspark.TFCluster import InputMode, cluster_template, engine_tasks
from gridflow.errors import UsageError


def test_nodes_come_in_the_order_of_their_roles() -> None:
    assert cluster_template(6, 2, "master", True) == {"ps": [0, 1], "master": [2], "evaluator": [3], "worker": [4, 5]}
    assert cluster_template(2, 0, None, False) == {"worker": [0, 1]}
    assert cluster_template(2, 1, "chief", False) == {"ps": [0], "chief": [1]}


def test_cluster_has_as_many_nodes_as_executors_and_one_that_trains() -> None:
    with pytest.raises(AssertionError, match="TensorFlow cluster requires 3 nodes, but only 2 executors available"):
        cluster_template(2, 2, "chief", False)
    with pytest.raises(AssertionError, match="requires at least one worker or master/chief node"):
        cluster_template(2, 2, None, False)


@pytest.mark.parametrize(
    ("arguments", "is_fed", "tasks"),
    [
        ((3, 0, "chief", False), True, ["chief/0", "worker/0", "worker/1"]),
        ((4, 1, "master", True), False, ["ps/0", "chief/0", "evaluator/0", "worker/0"]),
        # All that are fed must have ended before the work is done.
        ((4, 1, "chief", False), True, ["ps/0", "worker/0", "worker/1", "worker/2"]),
        ((2, 1, "chief", False), False, ["ps/0", "worker/0"]),
        ((2, 0, None, False), False, ["worker/0", "worker/1"]),
    ],
)
def test_node_is_a_task(arguments: Any, is_fed: bool, tasks: list[str]) -> None:
    assert engine_tasks(cluster_template(*arguments), 0, is_fed=is_fed) == tasks


def test_parameter_servers_beside_the_driver_are_no_tasks() -> None:
    assert engine_tasks(cluster_template(4, 2, None, False), 2, is_fed=False) == ["worker/0", "worker/1"]


@pytest.mark.parametrize("option", ["driver_ps_nodes", "eval_node"])
def test_some_nodes_read_their_data_themselves(option: str) -> None:
    options: dict[str, Any] = {option: True}
    with pytest.raises(UsageError, match=f"{option} needs InputMode.TENSORFLOW"):
        TFCluster.run(None, print, {}, 3, 1, input_mode=InputMode.SPARK, **options)  # type: ignore[arg-type]
