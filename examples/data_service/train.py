"""Workers share one stream of elements that the tf.data service makes for them.

Every element goes to exactly one worker, whichever asks first. Without a service this process reads everything.
"""

from __future__ import annotations

import argparse
import os

import numpy as np
import tensorflow as tf

ELEMENTS = 600
BATCH = 10


def batches(service: str) -> tf.data.Dataset:
    """Return the numbers below ELEMENTS; the steps before `distribute` are done by the service, not by the worker."""
    numbers = tf.data.Dataset.range(ELEMENTS).shuffle(ELEMENTS, seed=1).batch(BATCH)
    if not service:
        return numbers
    return numbers.apply(
        tf.data.experimental.service.distribute(
            processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            service=service,
            job_name="first-epoch",  # workers that give the same name share the elements
            max_outstanding_requests=2,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service", default=os.environ.get("GRIDFLOW_DATA_SERVICE", ""), help="grpc://host:port")
    options = parser.parse_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    seen = np.zeros(ELEMENTS, dtype="int64")
    for batch in batches(options.service):
        np.add.at(seen, batch.numpy(), 1)

    def sum_over_workers(counts: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(tf.identity, args=(counts,)), axis=None)

    total = tf.function(sum_over_workers)(tf.constant(seen)).numpy()
    print(f"this worker read {seen.sum()} of {total.sum()} elements")
    if not (total == 1).all():
        raise AssertionError(f"{(total == 0).sum()} elements were missed, {(total > 1).sum()} came more than once")
    print("every element was read exactly once")


if __name__ == "__main__":
    main()
