"""Asynchronous training with parameter servers and a custom loop.

The same program runs in every task: workers and parameter servers serve, the chief hands out the steps. Where the
servers are run for it (`gridflow run --serve ps,worker`) only the chief comes here.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

BATCH = 32
LEARNING_RATE = 0.2
STEPS_PER_ROUND = 250


class Classifier:
    """A linear classifier; its variables live on the parameter servers when made in a strategy's scope."""

    def __init__(self) -> None:
        self.weights = tf.Variable(tf.zeros([64, 10]))  # 2560 bytes: the partitioner makes two parts of it
        self.bias = tf.Variable(tf.zeros([10]))
        self.steps = tf.Variable(0, dtype=tf.int64)

    def logits(self, images: Any) -> Any:
        """Return ten scores for each image."""
        return tf.matmul(images, tf.convert_to_tensor(self.weights)) + self.bias

    def loss(self, images: Any, labels: Any) -> Any:
        """Return the mean loss of some images."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=self.logits(images))
        return tf.reduce_mean(losses)

    def step(self, batches: Any) -> Any:
        """Train on the next batch; this runs on a worker."""
        images, labels = next(batches)
        variables = [*self.weights.variables, self.bias]
        with tf.GradientTape() as tape:
            loss = self.loss(images, labels)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(LEARNING_RATE * gradient)
        self.steps.assign_add(1)
        return loss


def serve(resolver: Any) -> None:
    cluster = resolver.cluster_spec()
    # A function that waits for another task holds a thread; hosts with few cores have too few of them.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=cluster.num_tasks("worker") + 2)
    server = tf.distribute.Server(
        cluster, job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc", config=config
    )
    server.join()  # never returns: whoever started this task ends it when the chief has ended


def load_data() -> list[Any]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    return list(train_test_split(images, labels, test_size=360, random_state=1, stratify=labels))


def coordinate(resolver: Any, checkpoint_dir: str, rounds: int) -> None:
    x, x_test, y, y_test = load_data()
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=1024, max_shards=2)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Classifier()
    print(f"the weights are kept in {len(model.weights.variables)} parts")

    state = tf.train.Checkpoint(weights=model.weights, bias=model.bias, steps=model.steps)
    checkpoints = tf.train.CheckpointManager(state, checkpoint_dir, max_to_keep=2)
    if checkpoints.restore_or_initialize():
        print(f"continuing after {int(model.steps)} steps")

    def batches() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).repeat().batch(BATCH)

    step, per_worker = tf.function(model.step), iter(coordinator.create_per_worker_dataset(batches))
    while int(model.steps) < rounds * STEPS_PER_ROUND:
        losses = [coordinator.schedule(step, args=(per_worker,)) for _ in range(STEPS_PER_ROUND)]
        coordinator.join()
        checkpoints.save()
        mean_loss = sum(loss.fetch() for loss in losses) / STEPS_PER_ROUND
        print(f"{int(model.steps)} steps, mean loss {mean_loss:.4f}", flush=True)
    hits = tf.argmax(model.logits(x_test), axis=1).numpy() == y_test
    print(f"final loss {float(model.loss(x_test, y_test)):.4f}, test accuracy {hits.mean():.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--checkpoint-dir", default=os.environ.get("GRIDFLOW_CHECKPOINT_DIR", "checkpoints"))
    options = parser.parse_args()
    if "TF_CONFIG" not in os.environ:
        parser.error("parameter servers need a cluster: start this with `gridflow run --chief --workers 2 --ps 1`")
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        coordinate(resolver, options.checkpoint_dir, options.rounds)


if __name__ == "__main__":
    main()
