"""spark-tensorflow-distributor's programs on a real cluster, whose workers have GPUs as far as Spark knows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from integration.spark.standalone import Standalone, session_on

from gridflow.compat.spark_tensorflow_distributor import MirroredStrategyRunner
from gridflow.gpu.variables import VISIBLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: PySpark leaves the sockets through which results come to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def spark(cluster: Standalone) -> Iterator[SparkSession]:
    """A session with one executor on each worker; a task has both of its GPUs, and the driver has three."""
    script = cluster.folder / "driver-gpus.sh"
    script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["0", "1", "2"]}\'\n')
    script.chmod(0o755)
    settings = {
        **cluster.settings(cores=2),
        "spark.driver.resource.gpu.amount": "3",
        "spark.driver.resource.gpu.discoveryScript": str(script),
        "spark.executorEnv.CUDA_VISIBLE_DEVICES": "10,11,12,13",
        "spark.task.cpus": "2",
        "spark.task.resource.gpu.amount": "2",
    }
    # Spark alone decides: no inventory knows these GPUs.
    del settings["spark.executorEnv.GRIDFLOW_GPUS"]
    with session_on(cluster, settings) as started:
        yield started


def gpus_of_all() -> list[str]:
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    assert context is not None
    found: list[str] = context.allGather(os.environ[VISIBLE])
    return found


@pytest.mark.parametrize(("slots", "counts"), [(1, [1]), (3, [2, 1]), (4, [2, 2])])
def test_gpus_are_spread_over_the_tasks_as_spark_gives_them(spark: SparkSession, slots: int, counts: list[int]) -> None:
    runner = MirroredStrategyRunner(num_slots=slots, use_custom_strategy=True)
    assert runner.get_num_tasks() == len(counts)
    seen = [each.split(",") for each in runner.run(gpus_of_all)]
    assert [len(each) for each in seen] == counts
    # The executor's own list says which device an address of Spark means.
    assert {name for each in seen for name in each} <= {"10", "11", "12", "13"}


def test_training_on_cpus_sees_no_gpu(spark: SparkSession) -> None:
    runner = MirroredStrategyRunner(num_slots=2, use_gpu=False, use_custom_strategy=True)
    assert runner.get_num_tasks() == 2
    assert runner.run(gpus_of_all) == ["", ""]


@pytest.mark.parametrize("before", [None, "10,11,12,13"])
@pytest.mark.parametrize("slots", [1, 3])
def test_local_training_has_the_drivers_gpus(
    spark: SparkSession, slots: int, before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    if before:
        monkeypatch.setenv(VISIBLE, before)
    runner = MirroredStrategyRunner(num_slots=slots, local_mode=True, use_custom_strategy=True)
    seen = set(runner.run(lambda: os.environ[VISIBLE]).split(","))
    assert len(seen) == slots
    assert seen <= ({"10", "11", "12"} if before else {"0", "1", "2"})
    assert os.environ.get(VISIBLE) == before
    with pytest.raises(ValueError, match=r"4 slots were requested .* only 3 GPUs were available"):
        MirroredStrategyRunner(num_slots=4, local_mode=True).run(os.getpid)


def train_with_keras(epochs: int) -> dict[str, Any]:
    """Train as if there were no other task; the strategy comes from the runner."""
    import keras
    import numpy as np
    import tensorflow as tf
    from pyspark import BarrierTaskContext

    keras.utils.set_random_seed(7)
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((rows, rows.sum(axis=1, keepdims=True))).repeat().batch(16)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=keras.optimizers.SGD(0.05))
    history = model.fit(dataset.with_options(options), epochs=epochs, steps_per_epoch=5, verbose=0)
    losses = history.history["loss"]
    context = BarrierTaskContext.get()
    assert context is not None
    return {
        "losses": losses,
        "of_all": context.allGather(repr(losses)),
        "replicas": tf.distribute.get_strategy().num_replicas_in_sync,
    }


def test_keras_trains_on_two_tasks(spark: SparkSession) -> None:
    answer = MirroredStrategyRunner(num_slots=2, use_gpu=False).run(train_with_keras, epochs=2)
    assert answer["replicas"] == 2
    assert answer["losses"][1] < answer["losses"][0]
    assert answer["of_all"] == [repr(answer["losses"])] * 2


def test_what_a_task_raises_ends_the_training_though_others_wait(spark: SparkSession) -> None:
    def train() -> None:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        assert context is not None
        context.barrier()
        if context.partitionId() == 1:
            raise ArithmeticError("the loss is not a number")
        context.barrier()

    with pytest.raises(ArithmeticError, match="the loss is not a number"):
        MirroredStrategyRunner(num_slots=2, use_gpu=False, use_custom_strategy=True).run(train)
