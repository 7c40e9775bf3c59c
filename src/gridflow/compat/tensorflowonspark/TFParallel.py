"""Independent nodes: the function runs in every executor, and none knows of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gridflow.compat.tensorflowonspark import TFSparkNode, util

if TYPE_CHECKING:
    from pyspark import SparkContext


def run(
    sc: SparkContext, map_fn: Callable[[Any, Any], Any], tf_args: Any, num_executors: int, use_barrier: bool = True
) -> None:
    """Call `map_fn(tf_args, ctx)` in so many Spark tasks, with a barrier all at the same time."""
    default_fs = TFSparkNode.default_file_system(sc)

    def call(numbers: Iterable[int]) -> list[int]:
        number = list(numbers)[-1]
        nodes = _addresses() if use_barrier else []
        gpus = TFSparkNode.argument(tf_args, "num_gpus", 1)
        util.single_node_env(num_gpus=gpus, worker_index=number, nodes=nodes)
        ctx = TFSparkNode.TFNodeContext(executor_id=number, defaultFS=default_fs)
        ctx.num_workers = len(nodes) if use_barrier else num_executors
        map_fn(tf_args, ctx)
        return [number]

    numbers = sc.parallelize(list(range(num_executors)), num_executors)
    if use_barrier:
        numbers.barrier().mapPartitions(call).collect()
    else:
        numbers.mapPartitions(call).collect()


def _addresses() -> list[str]:
    from pyspark import BarrierTaskContext

    return [task.address for task in BarrierTaskContext.get().getTaskInfos()]
