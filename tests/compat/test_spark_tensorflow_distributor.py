"""The runner of spark-tensorflow-distributor, on a Spark of two threads."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gridflow.compat.spark_tensorflow_distributor import MirroredStrategyRunner
from gridflow.errors import UsageError
from gridflow.gpu.variables import VISIBLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: PySpark leaves the sockets through which results come to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("spark"),
]


def runner(**wanted: Any) -> MirroredStrategyRunner:
    return MirroredStrategyRunner(**{"num_slots": 2, "use_gpu": False, "use_custom_strategy": True, **wanted})


def gathered(greeting: str) -> dict[str, Any]:
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    context.barrier()
    said = context.allGather(f"{greeting} {context.partitionId()}")
    return {
        "said": said,
        "again": context.allGather(os.environ[VISIBLE]),
        "hosts": [info.address for info in context.getTaskInfos()],
    }


def visible() -> str:
    return os.environ[VISIBLE]


def with_gpus(spark_resources: dict[str, list[str]], **wanted: Any) -> MirroredStrategyRunner:
    """Return a local runner on a driver with such resources."""
    found = runner(local_mode=True, use_gpu=True, **wanted)
    found.sc = SimpleNamespace(  # type: ignore[assignment]
        resources={name: SimpleNamespace(addresses=addresses) for name, addresses in spark_resources.items()}
    )
    return found


def test_every_task_meets_the_others_and_the_first_one_answers() -> None:
    answer = runner().run(gathered, greeting="task")
    assert answer["said"] == ["task 0", "task 1"]
    assert answer["again"] == ["", ""]
    assert len(set(answer["hosts"])) == 2


def test_what_the_function_raises_is_raised_here() -> None:
    def fail() -> None:
        raise KeyError("no such column")

    with pytest.raises(KeyError, match="no such column"):
        runner().run(fail)


@pytest.mark.parametrize("slots", [0, -1])
def test_slots_must_be_positive(slots: int) -> None:
    with pytest.raises(ValueError, match=f"num_slots is set to {slots} but cannot be less than or equal to 0"):
        MirroredStrategyRunner(num_slots=slots)


def test_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="positional"):
        MirroredStrategyRunner(2)  # type: ignore[call-arg]


def test_gpus_need_a_cluster_that_schedules_them() -> None:
    with pytest.raises(UsageError, match=r"the conf `spark\.task\.resource\.tpu\.amount` was not found"):
        MirroredStrategyRunner(num_slots=2, gpu_resource_name="tpu")


def test_cpu_training_in_this_process_has_one_slot() -> None:
    assert runner(num_slots=1, local_mode=True).run(visible) == ""
    with pytest.raises(ValueError, match="Cannot run with more than 1 CPU machine in local mode"):
        runner(local_mode=True).run(visible)


@pytest.mark.parametrize(
    ("before", "owned"), [(None, {"0", "1", "2"}), ("10,11,12,13", {"10", "11", "12"}), ("GPU-a,GPU-b,GPU-c", None)]
)
def test_local_training_sees_some_of_the_drivers_gpus_and_leaves_the_environment(
    before: str | None, owned: set[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VISIBLE, before)
    chosen = with_gpus({"gpu": ["0", "1", "2"]}).run(visible).split(",")
    assert len(set(chosen)) == 2
    assert set(chosen) < (owned or set((before or "").split(",")))
    assert os.environ.get(VISIBLE) == before


def test_environment_is_put_back_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "7")
    with pytest.raises(ZeroDivisionError):
        with_gpus({"gpu": ["0"]}, num_slots=1).run(lambda: 1 / 0)
    assert os.environ[VISIBLE] == "7"


def test_local_training_refuses_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    with pytest.raises(ValueError, match=r"3 slots were requested .* but only 1 GPUs were available"):
        with_gpus({"gpu": ["0"]}, num_slots=3).run(visible)
    with pytest.raises(ValueError, match="`gpu` was not found in the context resources"):
        with_gpus({"fpga": ["0"]}).run(visible)
    with pytest.raises(ValueError, match="integers with no zero padding"):
        with_gpus({"gpu": ["00", "01"]}).run(visible)


def test_keras_trains_in_this_process_in_the_scope_of_a_strategy() -> None:
    def train() -> int:
        import keras
        import numpy as np
        import tensorflow as tf

        assert isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy)

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        rows = np.ones((8, 4), np.float32)
        history = model.fit(rows, rows[:, :1], batch_size=4, epochs=2, verbose=0)
        return len(history.history["loss"])

    local = runner(num_slots=1, local_mode=True, use_custom_strategy=False)
    assert local.run(train) == 2
    assert local.run(train) == 2


class Settings:
    """A Spark context with some settings, and no cluster."""

    def __init__(self, **settings: str) -> None:
        self._settings = settings

    def getConf(self) -> Any:  # noqa: N802
        return SimpleNamespace(
            contains=self._settings.__contains__, get=lambda key, default=None: self._settings.get(key, default)
        )


def with_settings(settings: dict[str, str], **wanted: Any) -> MirroredStrategyRunner:
    found = runner(**wanted)
    found.sc = Settings(**settings)  # type: ignore[assignment]
    return found


@pytest.mark.parametrize(
    ("slots", "amount", "tasks"), [(2, 1, 2), (4, 2, 2), (6, 4, 2), (8, 4, 2), (1, 4, 1), (5, 2, 3)]
)
def test_tasks_are_as_many_as_the_slots_need(slots: int, amount: int, tasks: int) -> None:
    found = with_settings({"spark.task.resource.gpu.amount": str(amount)}, num_slots=slots)
    assert found.get_num_tasks() == slots
    found._use_gpu = True
    assert found.get_num_tasks() == tasks


def test_a_task_without_gpus_is_no_gpu_training() -> None:
    found = with_settings({"spark.task.resource.gpu.amount": "0"})
    found._use_gpu = True
    with pytest.raises(ValueError, match=r"`spark\.task\.resource\.gpu\.amount` has a value of 0 but it should not"):
        found.get_num_tasks()


def test_encrypted_cluster_is_refused_unless_that_is_overridden(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match=r"TLS encryption enabled.*tensorflow\.spark\.distributor\.ignoreSsl"):
        with_settings({"spark.ssl.enabled": "TRUE"}).run(visible)
    found = with_settings({"spark.ssl.enabled": "true", "tensorflow.spark.distributor.ignoreSsl": "True"})
    assert found.run(visible) == ""
    with pytest.raises(UsageError, match=r"`spark\.ssl\.enabled` has a value of 'yes'"):
        with_settings({"spark.ssl.enabled": "yes"}).run(visible)
