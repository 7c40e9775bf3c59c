"""spark-tensorflow-distributor's `MirroredStrategyRunner`: a TensorFlow function on Spark, as one synchronous training.

    from gridflow.compat.spark_tensorflow_distributor import MirroredStrategyRunner

    MirroredStrategyRunner(num_slots=8).run(train)

In Spark every slot is a task of a Gridflow run, in a process of its own that ends with the training; Spark decides
which GPUs it has. In local mode the function runs in this process.
"""

from __future__ import annotations

import logging
import math
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gridflow.compat.gathering import Gathering, Invitation, Member, stand_in_for_barrier
from gridflow.errors import UsageError
from gridflow.gpu.variables import VISIBLE
from gridflow.job import Resources
from gridflow.launcher import describe, submit_to
from gridflow.platforms.spark import Spark
from gridflow.platforms.spark_crew import SparkCrew, driver_hosts
from gridflow.task import identity
from gridflow.task.context import context as task_context

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

__all__ = ["MirroredStrategyRunner"]

_SSL = "spark.ssl.enabled"
_IGNORE_SSL = "tensorflow.spark.distributor.ignoreSsl"
#: What CUDA_VISIBLE_DEVICES can hold of Spark's addresses: '0', '12', but not '01'.
_GPU_ADDRESS = re.compile(r"[1-9][0-9]*|0")


class MirroredStrategyRunner:
    """Runs a training function on `num_slots` GPUs, or tasks where `use_gpu` is False.

    With `local_mode` it runs in this process. `gpu_resource_name` is what Spark calls its GPUs. With
    `use_custom_strategy` the function makes its own strategy; else it is called in the scope of a
    MultiWorkerMirroredStrategy.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        local_mode: bool = False,
        use_gpu: bool = True,
        gpu_resource_name: str = "gpu",
        use_custom_strategy: bool = False,
    ) -> None:
        if num_slots <= 0:
            raise ValueError(f"num_slots is set to {num_slots} but cannot be less than or equal to 0.")
        from pyspark.sql import SparkSession

        self._logger = logging.getLogger(type(self).__name__)
        self._num_slots = num_slots
        self._local_mode = local_mode
        self._use_gpu = use_gpu
        self._gpu_resource_name = gpu_resource_name
        self._use_custom_strategy = use_custom_strategy
        self._spark = SparkSession.builder.getOrCreate()
        self.sc = self._spark.sparkContext
        self._num_tasks = None if local_mode else self.get_num_tasks()

    def get_num_tasks(self) -> int:
        """Return how many tasks of Spark the slots need."""
        if not self._use_gpu:
            return self._num_slots
        key = f"spark.task.resource.{self._gpu_resource_name}.amount"
        settings = self.sc.getConf()
        if not settings.contains(key):
            raise UsageError(
                f"Your cluster might not have Spark GPU-aware scheduling enabled: the conf `{key}` was not found in "
                "the Spark configuration.",
                hint="set it, or say use_gpu=False",
            )
        amount = int(settings.get(key) or 0)
        if amount < 1:
            raise ValueError(
                f"The Spark conf `{key}` has a value of {amount} but it should not have a value less than 1."
            )
        return math.ceil(self._num_slots / amount)

    def run(self, train_fn: Callable[..., Any], **kwargs: Any) -> Any:
        """Call `train_fn(**kwargs)` in every task, and return what it returned in the first."""
        if self._num_tasks is None:
            with self._local_gpus():
                return _call_in_this_process(train_fn, self._use_custom_strategy, kwargs)
        self._check_encryption()
        self._logger.info("%d slots in %d tasks", self._num_slots, self._num_tasks)
        return self._run_in_spark(self._num_tasks, train_fn, kwargs)

    def _run_in_spark(self, tasks: int, train_fn: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        slots = _Slots(tasks, self._num_slots, self._use_gpu, self._gpu_resource_name)
        options = {"spark": self._spark, "gpu_resource": self._gpu_resource_name}
        with Gathering(tasks, *driver_hosts(self._spark)) as gathering:
            call = (slots, gathering.invitation, train_fn, self._use_custom_strategy, kwargs)
            job = describe(_call_in_task, workers=tasks, args=call, job={"name": "mirrored-strategy-runner"})
            platform = _GpuSpark(options) if self._use_gpu else Spark(options)
            with submit_to(platform, job, attached=True) as run:
                return run.result()

    @contextmanager
    def _local_gpus(self) -> Iterator[None]:
        """Show TensorFlow as many of the driver's GPUs as there are slots, and put the environment back afterwards."""
        before = os.environ.get(VISIBLE)
        os.environ[VISIBLE] = ",".join(self._choose_local_gpus())
        try:
            yield
        finally:
            del os.environ[VISIBLE]
            if before is not None:
                os.environ[VISIBLE] = before

    def _choose_local_gpus(self) -> list[str]:
        if not self._use_gpu:
            if self._num_slots > 1:
                raise ValueError("Cannot run with more than 1 CPU machine in local mode. Try setting num_slots to 1.")
            return []
        owned = self._get_gpus_owned(self.sc.resources, self._gpu_resource_name)
        if self._num_slots > len(owned):
            raise ValueError(
                f"{self._num_slots} slots were requested for local training with GPU training but only {len(owned)} "
                "GPUs were available."
            )
        # At random: programs that run side by side should not all begin with the first.
        return random.sample(owned, self._num_slots)

    @staticmethod
    def _get_gpus_owned(resources: Mapping[str, Any], gpu_resource_name: str) -> list[str]:
        """Return the GPUs among Spark's resources, by the names that CUDA knows here."""
        if gpu_resource_name not in resources:
            settings = ", ".join(
                f"spark.{part}.resource.{gpu_resource_name}" for part in ("task", "worker", "executor", "driver")
            )
            raise ValueError(
                f"The provided GPU resource name `{gpu_resource_name}` was not found in the context resources. It "
                f"must be the one in the confs {settings}."
            )
        addresses = list(resources[gpu_resource_name].addresses)
        if not all(_GPU_ADDRESS.fullmatch(address) for address in addresses):
            raise ValueError(
                f"Found GPU addresses {addresses} which are not all in the correct format for {VISIBLE}, which "
                "requires integers with no zero padding."
            )
        if VISIBLE not in os.environ:
            return addresses
        visible = os.environ[VISIBLE].split(",")
        return [visible[int(address)] for address in addresses]

    @staticmethod
    def _get_conf_boolean(sc: SparkContext, key: str, default_value: str) -> bool:
        """Return a setting of Spark that is true or false, in small letters or capitals."""
        value = sc.getConf().get(key, default_value) or default_value
        if value.lower() not in ("true", "false"):
            raise UsageError(f"The Spark conf `{key}` has a value of {value!r}", hint="it must be true or false")
        return value.lower() == "true"

    def _check_encryption(self) -> None:
        """Refuse to send unencrypted what the cluster would encrypt, unless that is wanted."""
        if not self._get_conf_boolean(self.sc, _SSL, "false"):
            return
        warning = "This cluster has TLS encryption enabled, and TensorFlow sends model parameters and data unencrypted"
        if not self._get_conf_boolean(self.sc, _IGNORE_SSL, "false"):
            raise UsageError(warning, hint=f"set {_IGNORE_SSL} to true in the Spark configuration to allow it")
        self._logger.warning("%s; %s allows it", warning, _IGNORE_SSL)


@dataclass(frozen=True)
class _Slots:
    """How the GPUs are spread over the tasks."""

    tasks: int
    slots: int
    use_gpu: bool
    resource: str

    def gpus(self, index: int, owned: list[str]) -> list[str]:
        """Return which of its GPUs a task uses: if they cannot be even, the first tasks have one more."""
        if not self.use_gpu:
            return []
        return owned[: self.slots // self.tasks + (index < self.slots % self.tasks)]


class _GpuCrew(SparkCrew):
    """Slots with the GPUs that the session gives to each of its tasks."""

    def profile(self, _resources: Resources, _settings: SparkConf) -> None:
        """Ask for nothing but what the session's settings say."""


class _GpuSpark(Spark):
    """Spark, where it alone decides on GPUs: it may know some that this host's own inventory does not."""

    crew_type = _GpuCrew


def _call_in_task(
    slots: _Slots,
    invitation: Invitation,
    train_fn: Callable[..., Any],
    use_custom_strategy: bool,
    kwargs: dict[str, Any],
) -> Any:
    """Call the function as a task of the run: with its GPUs, and with a barrier that all tasks share."""
    task = task_context()
    owned = [name for name in os.environ.get(identity.DEVICES, "").split(",") if name]
    os.environ[VISIBLE] = ",".join(slots.gpus(task.index, owned))
    hosts = [str(address) for address in task.roster.group("worker")]
    stand_in_for_barrier(Member(invitation, task.index), task.index, hosts, _resources(slots.resource, owned))
    return _call(train_fn, use_custom_strategy, kwargs)


def _resources(name: str, addresses: list[str]) -> dict[str, Any]:
    from pyspark.resource import ResourceInformation

    return {name: ResourceInformation(name, addresses)} if addresses else {}


def _call_in_this_process(train_fn: Callable[..., Any], use_custom_strategy: bool, kwargs: dict[str, Any]) -> Any:
    """Call the function after whatever TensorFlow has done here before."""
    if not use_custom_strategy:
        from tensorflow.python.eager import context

        # Collectives can be set up only once, unless TensorFlow begins anew.
        context._reset_context()
    return _call(train_fn, use_custom_strategy, kwargs)


def _call(train_fn: Callable[..., Any], use_custom_strategy: bool, kwargs: dict[str, Any]) -> Any:
    if use_custom_strategy:
        return train_fn(**kwargs)
    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        return train_fn(**kwargs)
