"""Hops' programs on a real cluster: two workers, four executors of one core and one GPU each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from integration.spark.standalone import Standalone, session_on

from gridflow.compat.hops import experiment, hdfs, util

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: PySpark leaves the sockets through which results come to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("spark", "project"),
]


@pytest.fixture(scope="module")
def spark(cluster: Standalone) -> Iterator[SparkSession]:
    """A session with four executors of one core."""
    with session_on(cluster, {"spark.executor.instances": "4"}) as started:
        yield started


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A project of this test's own."""
    monkeypatch.setenv(hdfs.PROJECT_PATH, str(tmp_path / "project"))
    return hdfs.project_path()


def tell_role() -> dict[str, Any]:
    """Write down what each task knows of itself; the chief returns what it knows."""
    from gridflow.compat.hops import devices, tensorboard

    config = json.loads(os.environ["TF_CONFIG"])
    told = {
        "type": config["task"]["type"],
        "tasks": {name: len(addresses) for name, addresses in config["cluster"].items()},
        "gpus": devices.get_num_gpus(),
        "logdir": tensorboard.logdir(),
    }
    Path(tensorboard.logdir(), f"{told['type']}-{config['task']['index']}.json").write_text(json.dumps(told))
    return told


def told(folder: str) -> dict[str, Any]:
    return {
        path.rpartition("/")[2].removesuffix(".json"): json.loads(hdfs.load(path))
        for path in hdfs.ls(f"{folder}/logdir")
    }


def test_trials_run_one_in_each_executor(tmp_path: Path) -> None:
    def train(x: int, folder: str = str(tmp_path)) -> dict[str, Any]:
        from gridflow.compat.hops import devices

        # Each waits for another one that goes on at the same time.
        Path(folder, f"trial-{x}").touch()
        while len(list(Path(folder).glob("trial-*"))) < 2:
            pass
        return {"loss": (x - 2) ** 2, "gpus": devices.get_num_gpus(), "visible": os.environ["CUDA_VISIBLE_DEVICES"]}

    folder, params, outputs = experiment.grid_search(
        train, {"x": [1, 2, 3]}, direction="min", optimization_key="loss", name="on the cluster"
    )
    assert params == {"x": 2}
    assert (outputs["loss"], outputs["gpus"]) == (0, 1)
    assert outputs["visible"] in ("0", "1", "2", "3")
    assert hdfs.exists(f"{folder}/output.log")


def test_mirrored_training_has_a_chief_workers_and_an_evaluator() -> None:
    assert util.num_executors() == 4
    folder, outputs = experiment.mirrored(tell_role, evaluator=True)
    assert outputs["type"] == "chief"
    assert outputs["tasks"] == {"chief": 1, "worker": 2}
    assert outputs["logdir"] == f"{folder}/logdir"
    tasks = told(folder)
    assert tasks.keys() == {"chief-0", "worker-0", "worker-1", "evaluator-0"}
    assert {tasks[name]["gpus"] for name in ("chief-0", "worker-0", "worker-1")} == {1}
    logs = {f"{name.replace('-', '_')}_output.log" for name in tasks}
    assert {path.rpartition("/")[2] for path in hdfs.glob(f"{folder}/*_output.log")} == logs
    record = json.loads(hdfs.load(f"{folder}/.experiment.json"))
    assert (record["function"], record["experimentType"]) == ("mirrored", "DISTRIBUTED_TRAINING")


def train_with_keras() -> float:
    import keras
    import numpy as np
    import tensorflow as tf

    from gridflow.compat.hops import tensorboard

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = np.ones((32, 4), np.float32)
    callbacks = [keras.callbacks.TensorBoard(tensorboard.logdir())] if "chief" in os.environ["GRIDFLOW_TASK"] else []
    history = model.fit(rows, rows[:, :1], batch_size=8, epochs=2, callbacks=callbacks, verbose=0)
    return float(history.history["loss"][-1])


def test_keras_trains_on_several_executors(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "num_executors", lambda _spark=None: 2)
    folder, outputs = experiment.collective_all_reduce(train_with_keras, local_logdir=True)
    assert outputs["metric"] >= 0
    assert any("events.out" in path for path in hdfs.ls(f"{folder}/logdir", recursive=True))
    assert json.loads(hdfs.load(f"{folder}/.experiment.json"))["metric"] == str(outputs["metric"])


def test_parameter_servers_hold_no_gpu_and_workers_that_serve_end_with_the_chief(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train() -> dict[str, Any]:
        import tensorflow as tf

        role = tell_role()
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if resolver.task_type in ("worker", "ps"):
            server = tf.distribute.Server(
                resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
            )
            server.join()
        return role

    monkeypatch.setenv("NUM_TF_PS", "1")
    folder, outputs = experiment.parameter_server(train)
    assert outputs["tasks"] == {"chief": 1, "worker": 2, "ps": 1}
    tasks = told(folder)
    assert {name: each["gpus"] for name, each in tasks.items()} == {
        "chief-0": 1,
        "worker-0": 1,
        "worker-1": 1,
        "ps-0": 0,
    }
