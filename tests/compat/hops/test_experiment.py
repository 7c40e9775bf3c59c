"""Hops' experiments, on a Spark of two threads."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from gridflow.compat.hops import devices, experiment, hdfs, records, tensorboard, tflauncher, util
from gridflow.compat.hops.experiment import Direction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: PySpark leaves the sockets through which results come to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("spark"),
]


def load(folder: str, name: str) -> Any:
    return json.loads(hdfs.load(f"{folder}/{name}"))


def parabola(x: float, y: int = 0) -> float:
    print(f"x is {x}")  # noqa: T201
    return -((x - 3) ** 2) - y


def train_alone() -> dict[str, Any]:
    import numpy as np

    from gridflow.compat.hops import tensorboard as board

    Path(board.logdir(), "events").write_text("an event")
    Path("diagram.txt").write_text("a diagram")
    return {
        "accuracy": np.float32(0.5),
        "diagram": "diagram.txt",
        "logdir": board.logdir(),
        "gpus": devices.get_num_gpus(),
        "ml_id": os.environ["ML_ID"],
        "tf_config": os.environ.get("TF_CONFIG"),
    }


def test_one_call_is_recorded_with_what_it_returned() -> None:
    folder, outputs = experiment.launch(train_alone, name="My experiment!", metric_key="accuracy", description="a test")
    assert outputs is not None
    name = folder.rpartition("/")[2]
    assert folder == f"{hdfs.project_path()}Experiments/{name}"
    assert outputs == {
        "accuracy": 0.5,
        "diagram": f"Experiments/{name}/diagram.txt",
        "logdir": folder,
        "gpus": 0,
        "ml_id": name,
        "tf_config": None,
        "log": f"Experiments/{name}/output.log",
    }
    assert load(folder, ".outputs.json") == outputs
    assert hdfs.load(outputs["diagram"]) == b"a diagram"
    assert hdfs.load(f"{folder}/events") == b"an event"
    record = load(folder, ".experiment.json")
    assert record["duration"] > 0
    wanted = {"id": name, "name": "My experiment!", "description": "a test", "state": "FINISHED", "metric": "0.5"}
    assert record.items() >= {**wanted, "function": "launch", "experimentType": "EXPERIMENT"}.items()
    assert load(folder, ".summary.json") == {"combinations": [{"parameters": {}, "outputs": outputs}]}


def test_lists_of_arguments_are_as_many_calls(spark: SparkSession) -> None:
    folder = tflauncher.launch(spark, parabola, {"x": [1, 2], "y": [5, 6]})
    assert load(f"{folder}/x=1&y=5", ".hparams.json") == {"x": 1, "y": 5}
    assert load(f"{folder}/x=1&y=5", ".outputs.json")["metric"] == -9
    assert load(f"{folder}/x=2&y=6", ".outputs.json")["metric"] == -7
    assert b"x is 2" in hdfs.load(f"{folder}/x=2&y=6/output.log")
    again, outputs = experiment.launch(parabola, {"x": [5]})
    assert again != folder
    assert outputs == {"metric": -4, "log": f"Experiments/{again.rpartition('/')[2]}/x=5/output.log"}


def test_grid_search_returns_the_best() -> None:
    folder, params, outputs = experiment.grid_search(parabola, {"x": [1, 4], "y": [0, 2]}, name="grid")
    assert params == {"x": 4, "y": 0}
    assert outputs["metric"] == -1
    assert folder.endswith("/x=4&y=0")
    root = folder.rpartition("/")[0]
    record = load(root, ".experiment.json")
    wanted = {"metric": "-1.0", "direction": "MAX", "optimizationKey": "metric", "state": "FINISHED"}
    assert record.items() >= {**wanted, "bestDir": folder.removeprefix(hdfs.project_path())}.items()
    combinations = load(root, ".summary.json")["combinations"]
    assert {(each["parameters"]["x"], each["parameters"]["y"]) for each in combinations} == {
        (1, 0),
        (1, 2),
        (4, 0),
        (4, 2),
    }


def test_random_search_goes_by_the_key_that_is_named() -> None:
    def train(x: float) -> dict[str, float]:
        return {"loss": abs(x), "accuracy": 1.0}

    _, params, outputs = experiment.random_search(
        train, {"x": [-1.0, 1.0]}, direction=Direction.MIN, samples=3, optimization_key="loss"
    )
    assert outputs["loss"] == abs(params["x"])


def test_differential_evolution_tries_nothing_twice() -> None:
    folder, params, outputs = experiment.differential_evolution(
        lambda n: n, {"n": [0, 1]}, generations=2, population=4, direction="min"
    )
    assert params == {"n": 0}
    assert outputs["metric"] == 0
    root = folder.rpartition("/generation.")[0]
    assert len(load(root, ".summary.json")["combinations"]) <= 2


def test_a_failure_ends_all_trials_and_is_recorded() -> None:
    def train(x: int) -> int:
        if x == 1:
            raise LookupError("no such table")
        time.sleep(600)
        return x

    with pytest.raises(LookupError, match="no such table"):
        experiment.grid_search(train, {"x": [0, 1, 2]}, name="fails")
    [folder] = hdfs.ls("Experiments")
    record = load(folder, ".experiment.json")
    assert (record["state"], record["error"]) == ("FAILED", "no such table")
    assert b"no such table" in hdfs.load(f"{folder}/x=1/output.log")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"loss": 1}, "optimization_key not in returned dict: 'metric' is none of 'loss'"),
        ({}, "Returned dict is empty"),
        ("good", "Metric to maximize or minimize is not a number: good"),
    ],
)
def test_a_search_needs_a_number(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        records.metric_to_optimize(value, "metric")


def test_events_of_a_local_folder_are_kept() -> None:
    def train() -> str:
        from gridflow.compat.hops import tensorboard as board

        Path(board.logdir(), "run").mkdir()
        Path(board.logdir(), "run", "events").write_text("an event")
        return board.logdir()

    folder, outputs = experiment.launch(train, local_logdir=True)
    assert outputs is not None
    assert outputs["metric"].endswith("/local_logdir/")
    assert hdfs.load(f"{folder}/run/events") == b"an event"


def test_tensorboard_runs_while_an_experiment_does(tmp_path: Path) -> None:
    folder = str(tmp_path)
    with tensorboard.showing(folder):
        assert hdfs.load(f"{folder}/TensorBoard.task0").decode() == tensorboard.tb_url
        commands = [" ".join(child.cmdline()) for child in psutil.Process().children()]
        assert any("tensorboard" in command and folder in command for command in commands)
    assert tensorboard.tb_url is None
    assert not hdfs.exists(f"{folder}/TensorBoard.task0")


def test_events_have_a_place_outside_of_experiments() -> None:
    assert tensorboard.logdir() == f"{hdfs.project_path()}Logs/TensorBoard"


def test_one_experiment_runs_at_a_time() -> None:
    with (
        experiment._experiment("launch", "EXPERIMENT", "first", None, False, None),
        pytest.raises(RuntimeError, match="An experiment is currently running"),
    ):
        experiment.launch(parabola, {"x": [1]})


def with_settings(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Return a session with these settings, and have it be the one that is found."""
    from pyspark import SparkConf

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    monkeypatch.setattr(util, "_find_spark", lambda: session)
    found: SparkSession = session
    return found


def test_size_of_the_application_is_asked_in_both_forms(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert util.num_executors(spark) == util.num_executors() == 1
    assert util.num_param_servers(spark) == util.num_param_servers() == 0
    settings = {
        "spark.executor.instances": "4",
        "spark.dynamicAllocation.maxExecutors": "6",
        "spark.tensorflow.num.ps": "2",
    }
    session = with_settings(settings, monkeypatch)
    assert util.num_executors(session) == 4
    assert util.num_executors() == 6
    assert util.num_param_servers(session) == util.num_param_servers() == 2
    monkeypatch.setenv("NUM_TF_PS", "3")
    assert util.num_param_servers(session) == 2
    assert util.num_param_servers() == 3


def test_parameter_servers_and_evaluators_need_enough_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    with_settings({"spark.executor.instances": "2"}, monkeypatch)
    with pytest.raises(AssertionError, match="number of parameter servers should be greater than 0"):
        experiment.parameter_server(train_alone)
    with pytest.raises(AssertionError, match="number of workers must be atleast 3"):
        experiment.mirrored(train_alone, evaluator=True)
    monkeypatch.setenv("NUM_TF_PS", "2")
    with pytest.raises(AssertionError, match=r"num_ps cannot be greater than num_executors.*there are 2 and 2"):
        experiment.parameter_server(train_alone)
    for other in (experiment.launch, experiment.mirrored, experiment.collective_all_reduce):
        with pytest.raises(AssertionError, match="number of parameter servers should be 0"):
            other(train_alone)


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({"EXECUTOR_GPUS": "2"}, 2),
        ({"EXECUTOR_GPUS": "2", "CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"GRIDFLOW_GRANT": '{"devices": [1], "memory": [8], "uuids": ["1"]}', "EXECUTOR_GPUS": "2"}, 1),
    ],
)
def test_gpus_are_those_that_the_process_may_use(
    variables: dict[str, str], gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EXECUTOR_GPUS", "CUDA_VISIBLE_DEVICES", "GRIDFLOW_GRANT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert devices.get_num_gpus() == gpus
