"""A node of the cluster: who it is, which GPUs it sees, and the context that the program is handed."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import secrets
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from gridflow.compat.tensorflowonspark import TFManager, TFNode, gpu_info, reservation, util
from gridflow.errors import TaskError
from gridflow.gpu.variables import VISIBLE

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)

Spec = dict[str, list[str]]
MapFunction = Callable[[Any, "TFNodeContext"], Any]

#: Groups that train.
_TRAINING = ("master", "chief", "worker")
#: Set where Spark runs in Kubernetes: hosts there show GPUs that the pod may not use.
_POD = "SPARK_EXECUTOR_POD_IP"
#: Ports to use instead of any free one.
PORT = "TENSORFLOW_PORT"
_TENSORBOARD_PORT = "TENSORBOARD_PORT"


class TFNodeContext:
    """What a program is told of the node it runs in, and what it may ask of it."""

    def __init__(
        self,
        executor_id: int = 0,
        job_name: str = "",
        task_index: int = 0,
        cluster_spec: Mapping[str, Sequence[str]] | None = None,
        defaultFS: str = "file://",
        working_dir: str = ".",
        mgr: Any = None,
        tmp_socket: socket.socket | None = None,
    ) -> None:
        spec = {} if cluster_spec is None else cluster_spec
        self.worker_num = executor_id
        self.executor_id = executor_id
        self.job_name = job_name
        self.task_index = task_index
        self.cluster_spec = spec
        self.num_workers = sum(len(nodes) for name, nodes in spec.items() if name in _TRAINING)
        self.defaultFS = defaultFS
        self.working_dir = working_dir
        self.mgr = mgr
        self.tmp_socket = tmp_socket

    def absolute_path(self, path: str) -> str:
        """Return the URL of a path on the cluster's own file system."""
        return TFNode.hdfs_path(self, path)

    def start_cluster_server(self, num_gpus: int = 1, rdma: bool = False) -> NoReturn:
        """Refuse: see `TFNode.start_cluster_server`."""
        TFNode.start_cluster_server(self, num_gpus, rdma)

    def export_saved_model(self, sess: Any, export_dir: str, tag_set: str, signatures: Any) -> NoReturn:
        """Refuse: see `TFNode.export_saved_model`."""
        TFNode.export_saved_model(sess, export_dir, tag_set, signatures)

    def get_data_feed(
        self,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> TFNode.DataFeed:
        """Return the rows that Spark feeds to this node."""
        return TFNode.DataFeed(self.mgr, train_mode, qname_in, qname_out, input_mapping)

    def release_port(self) -> None:
        """Let go of the node's port, for TensorFlow to take it."""
        TFNode.release_port(self)


class TFSparkNode:
    """What this process knows of the node that it runs."""

    mgr: Any = None
    cluster_id: int | None = None


def default_file_system(sc: SparkContext) -> str:
    """Return the cluster's own file system, such as `hdfs://namenode:8020`; the local one is `file://`."""
    found = str(sc._jsc.hadoopConfiguration().get("fs.defaultFS"))
    return found.rstrip("/") + "//" if found in ("file:///", "file://", "file:/") else found


def argument(tf_args: Any, name: str, default: Any = None) -> Any:
    """Return one of a program's arguments, which may be a namespace, a dict or a command line."""
    if isinstance(tf_args, Mapping):
        return tf_args.get(name, default)
    return getattr(tf_args, name, default)


def role(template: Mapping[str, Sequence[int]], executor_id: int) -> tuple[str, int]:
    """Return the group that a node belongs to, and its index there."""
    for name, numbers in template.items():
        if executor_id in numbers:
            return name, list(numbers).index(executor_id)
    return "default", -1


def _get_cluster_spec(sorted_cluster_info: Iterable[Mapping[str, Any]]) -> Spec:
    """Return the addresses of all nodes by their groups, as TensorFlow wants them."""
    spec: Spec = {}
    seen: set[int] = set()
    for node in sorted_cluster_info:
        if node["executor_id"] in seen:
            raise TaskError(f"two nodes have the number {node['executor_id']}", hint="start the cluster again")
        seen.add(node["executor_id"])
        spec.setdefault(node["job_name"], []).append(f"{node['host']}:{node['port']}")
    return spec


def _has_spark_resource_api() -> bool:
    """Tell whether this process belongs to a Spark that gives resources to tasks; not loading Spark to find out."""
    return "pyspark" in sys.modules


def _spark_gpus() -> list[str]:
    if not _has_spark_resource_api():
        return []
    from pyspark import TaskContext

    context = TaskContext.get()
    resources = context.resources() if context else None
    return list(resources["gpu"].addresses) if resources and "gpu" in resources else []


def show_gpus(tf_args: Any, ctx: TFNodeContext) -> None:
    """Choose the GPUs that TensorFlow sees: those that Spark gave, or else free ones of the host, by default one."""
    wanted = argument(tf_args, "num_gpus")
    gpus = _spark_gpus()
    if wanted is not None:
        gpus = gpus[:wanted]
    if not gpus and wanted != 0 and _POD not in os.environ and gpu_info.is_gpu_available():
        addresses = [address for group in ctx.cluster_spec.values() for address in group]
        index = util.index_on_host(ctx.cluster_spec[ctx.job_name][ctx.task_index], addresses)
        gpus = list(gpu_info.get_gpus(wanted or 1, index, format=gpu_info.AS_LIST))
    if wanted is not None and len(gpus) < wanted:
        node = f"{ctx.job_name}:{ctx.task_index}"
        raise TaskError(f"{node} wants {wanted} GPUs and can have {len(gpus)}", hint="lower num_gpus")
    os.environ[VISIBLE] = ",".join(gpus)


def export_tf_config(spec: Spec, job_name: str, task_index: int) -> None:
    """Tell TensorFlow of the cluster, where one of its nodes leads."""
    if "master" not in spec and "chief" not in spec:
        os.environ.pop("TF_CONFIG", None)
        return
    task = {"type": job_name, "index": task_index}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": spec, "task": task, "environment": "cloud"})


def keep_port() -> tuple[int, socket.socket | None]:
    """Return a port for TensorFlow, and the socket that keeps it; None where a variable says which it is."""
    if PORT in os.environ:
        return int(os.environ[PORT]), None
    keeper = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("", 0))
    return keeper.getsockname()[1], keeper


def start_tensorboard(log_dir: str | None, executor_id: int, host: str) -> tuple[int, int]:
    """Start TensorBoard, which ends with this process's task; return its process and its port."""
    port = int(os.environ.get(_TENSORBOARD_PORT, 0))
    if not port:
        with socket.create_server((host, 0)) as free:
            port = free.getsockname()[1]
    folder = log_dir or f"tensorboard_{executor_id}"
    where = ["--logdir", folder, "--port", str(port), "--host", host]
    process = subprocess.Popen([sys.executable, "-m", "tensorboard.main", "--reload_multifile=True", *where])
    return process.pid, port


def has_tensorboard(template: Mapping[str, Sequence[int]], executor_id: int) -> bool:
    """Tell whether TensorBoard runs beside a node: the first worker, or else whoever leads."""
    leaders = [name for name in ("worker", "chief", "master") if name in template]
    return bool(leaders) and role(template, executor_id) == (leaders[0], 0)


def call(fn: MapFunction, tf_args: Any, ctx: TFNodeContext) -> None:
    """Call the program; a command line becomes the process's own."""
    if isinstance(tf_args, list):
        sys.argv = tf_args
    fn(tf_args, ctx)


@dataclass(frozen=True)
class Place:
    """Where a node is, and what keeps its port until TensorFlow takes it."""

    host: str
    port: int
    keeper: socket.socket | None = None
    #: Where the manager of its queues is, if others can reach it.
    addr: Any = None
    authkey: bytes = b""
    #: How often the nodes were all started again; None for a node that stays.
    attempt: int | None = None


def join_cluster(
    cluster_meta: Mapping[str, Any], executor_id: int, place: Place, mgr: Any, *, tensorboard: bool, log_dir: str | None
) -> TFNodeContext:
    """Tell the other nodes of this one, wait for them, and return the context of its program."""
    template = cluster_meta["cluster_template"]
    job_name, task_index = role(template, executor_id)
    tb_pid = tb_port = 0
    if tensorboard and has_tensorboard(template, executor_id):
        tb_pid, tb_port = start_tensorboard(log_dir, executor_id, place.host)
    node = {
        "executor_id": executor_id,
        "host": place.host,
        "job_name": job_name,
        "task_index": task_index,
        "port": place.port,
        "tb_pid": tb_pid,
        "tb_port": tb_port,
        "addr": place.addr,
        "authkey": place.authkey,
        reservation.ATTEMPT: place.attempt,
    }
    spec = _get_cluster_spec(sorted(_meet(cluster_meta, node), key=lambda each: int(each["executor_id"])))
    export_tf_config(spec, job_name, task_index)
    folders = (cluster_meta["default_fs"], cluster_meta["working_dir"])
    return TFNodeContext(executor_id, job_name, task_index, spec, *folders, mgr, place.keeper)


def _meet(cluster_meta: Mapping[str, Any], node: Mapping[str, Any]) -> list[dict[str, Any]]:
    client = reservation.Client(cluster_meta["server_addr"])
    try:
        client.register(dict(node))
        found: list[dict[str, Any]] = client.await_reservations()
    finally:
        client.close()
    return found


def run(
    fn: MapFunction,
    tf_args: Any,
    cluster_meta: Mapping[str, Any],
    tensorboard: bool,
    log_dir: str | None,
    queues: Sequence[str],
    background: bool,
) -> Callable[[Iterable[int]], None]:
    """Return the function that runs the node of a number in this process, or in the `background` beside it.

    `TFCluster` does not use it: its nodes are tasks of a run.
    """

    def run_node(numbers: Iterable[int]) -> None:
        executor_id = list(numbers)[-1]
        authkey = secrets.token_bytes(16)
        mgr: Any = TFManager.start(authkey, queues)
        mgr.set("state", "running")
        TFSparkNode.mgr, TFSparkNode.cluster_id = mgr, cluster_meta["id"]
        port, keeper = keep_port()
        place = Place(util.get_ip_address(), port, keeper, mgr.address, authkey)
        ctx = join_cluster(cluster_meta, executor_id, place, mgr, tensorboard=tensorboard, log_dir=log_dir)
        if keeper is not None and cluster_meta.get("release_port", True):
            ctx.release_port()
        show_gpus(tf_args, ctx)
        if background:
            # As a fork, since a function defined within another cannot be sent.
            forked = multiprocessing.get_context("fork")
            forked.Process(target=_call_and_tell, args=(fn, tf_args, ctx), daemon=True).start()
        else:
            call(fn, tf_args, ctx)

    return run_node


def _call_and_tell(fn: MapFunction, tf_args: Any, ctx: TFNodeContext) -> None:
    try:
        call(fn, tf_args, ctx)
    except Exception:  # noqa: BLE001 - the root of a process
        ctx.mgr.get_queue("error").put(traceback.format_exc())
