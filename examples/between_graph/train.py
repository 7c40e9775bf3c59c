"""A between-graph program in the style of TensorFlow 1: it knows its cluster from flags alone.

Each worker builds the graph for itself. The variables live on the parameter server, and every worker updates them
without waiting for the others.
"""

from __future__ import annotations

import argparse
from collections import deque
from statistics import fmean
from typing import Any

import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

BATCH = 32
LEARNING_RATE = 0.2


def build_graph(seed: int) -> tuple[Any, Any, Any]:
    """Return the operation that trains, the number of steps so far and the loss."""
    images, labels = load_digits(return_X_y=True)
    data = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels))
    x, y = tf.data.make_one_shot_iterator(data.shuffle(len(images), seed=seed).repeat().batch(BATCH)).get_next()
    weights = tf.get_variable("weights", [64, 10], initializer=tf.zeros_initializer())
    bias = tf.get_variable("bias", [10], initializer=tf.zeros_initializer())
    loss = tf.losses.sparse_softmax_cross_entropy(y, tf.matmul(x, weights) + bias)
    global_step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(LEARNING_RATE).minimize(loss, global_step=global_step)
    return train, global_step, loss


def work(server: Any, cluster: Any, task_index: int, steps: int, checkpoint_dir: str) -> None:
    setter = tf.train.replica_device_setter(worker_device=f"/job:worker/task:{task_index}", cluster=cluster)
    with tf.Graph().as_default(), tf.device(setter):
        train, global_step, loss = build_graph(seed=task_index)
        # A worker talks to the parameter server and to itself, so that none waits for one that has ended.
        config = tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{task_index}"])
        if task_index > 0:
            # The session below would look only every 30 s whether the first worker has initialised the variables.
            manager = tf.train.SessionManager(ready_op=tf.report_uninitialized_variables(), recovery_wait_secs=1)
            manager.wait_for_session(server.target, config=config, max_wait_secs=300).close()
        with tf.train.MonitoredTrainingSession(
            master=server.target,
            is_chief=task_index == 0,
            checkpoint_dir=checkpoint_dir,
            hooks=[tf.train.StopAtStepHook(last_step=steps)],
            log_step_count_steps=None,
            config=config,
        ) as session:
            own_steps = 0
            recent: deque[float] = deque(maxlen=50)
            while not session.should_stop():
                _, step, loss_now = session.run([train, global_step, loss])
                own_steps += 1
                recent.append(loss_now)
                if own_steps % 100 == 0:
                    print(f"step {step}, mean loss {fmean(recent):.4f}", flush=True)
    print(f"did {own_steps} of {steps} steps, mean loss {fmean(recent):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job_name", choices=["ps", "worker"], required=True)
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--ps_hosts", required=True, help="host:port,host:port")
    parser.add_argument("--worker_hosts", required=True, help="host:port,host:port")
    parser.add_argument("--checkpoint_dir", default="checkpoints")
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    cluster = tf.train.ClusterSpec({"ps": options.ps_hosts.split(","), "worker": options.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=options.job_name, task_index=options.task_index)
    if options.job_name == "ps":
        server.join()
    else:
        work(server, cluster, options.task_index, options.steps, options.checkpoint_dir)


if __name__ == "__main__":
    main()
