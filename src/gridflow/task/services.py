"""The services that Gridflow runs itself: TensorFlow's standard server, and the tf.data service."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gridflow.rendezvous.roster import Roster
from gridflow.task import identity as names
from gridflow.task.tf_config import ROSTER


def serve_tensorflow(environ: Mapping[str, str]) -> None:
    """Run TensorFlow's server for this task until the agent stops it."""
    import tensorflow as tf

    config = json.loads(environ["TF_CONFIG"])
    session_config = tf.compat.v1.ConfigProto()
    # A worker runs one function per peer that waits for it; with fewer threads than that it deadlocks on small hosts.
    tasks = sum(len(addresses) for addresses in config["cluster"].values())
    session_config.inter_op_parallelism_threads = tasks + 1
    server = tf.distribute.Server(
        tf.train.ClusterSpec(config["cluster"]),
        job_name=config["task"]["type"],
        task_index=config["task"]["index"],
        protocol="grpc",
        config=session_config,
    )
    server.join()


def serve_data(environ: Mapping[str, str]) -> None:
    """Run a tf.data worker, and in `data/0` the dispatcher too, until the agent stops it."""
    import tensorflow as tf

    service = tf.data.experimental.service
    roster = Roster.from_dict(json.loads(environ[ROSTER]))
    here, dispatcher_address = roster[environ[names.TASK]], roster["data/0"]
    servers = []
    port, worker_address = here.port, str(here)
    if here == dispatcher_address:
        servers.append(service.DispatchServer(service.DispatcherConfig(port=here.port)))
        # The dispatcher has the task's port; its worker takes any other and TensorFlow fills it in.
        port, worker_address = 0, f"{here.host}:%port%"
    config = service.WorkerConfig(dispatcher_address=str(dispatcher_address), worker_address=worker_address, port=port)
    servers.append(service.WorkerServer(config))
    for server in servers:
        server.join()
