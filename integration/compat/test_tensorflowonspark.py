"""TensorFlowOnSpark's programs on a real cluster: two workers, executors of several cores."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from integration.spark.standalone import Standalone, session_on
from tests.waiting import until

from gridflow.compat.tensorflowonspark import TFCluster, TFNode, TFParallel
from gridflow.compat.tensorflowonspark.TFCluster import InputMode
from gridflow.errors import DeadlineError, TaskFailedError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

#: What Spark collects from an RDD comes through a socket that it leaves to Python to close.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def spark(cluster: Standalone) -> Iterator[SparkSession]:
    settings = {
        "spark.executor.cores": "2",
        "spark.executor.resource.gpu.amount": "2",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "1",
    }
    with session_on(cluster, settings) as started:
        yield started


@pytest.fixture
def sc(spark: SparkSession) -> SparkContext:
    return spark.sparkContext


@contextmanager
def fed(sc: SparkContext, program: Callable[..., None], nodes: int, args: Any = None, **options: Any) -> Iterator[Any]:
    """Have a cluster that Spark feeds, and shut it down."""
    cluster = TFCluster.run(sc, program, args, nodes, options.pop("num_ps", 0), input_mode=InputMode.SPARK, **options)
    try:
        yield cluster
    except BaseException:
        cluster.shutdown(timeout=1)
        raise
    cluster.shutdown()


def count_rows(folder: str, ctx: Any) -> None:
    """Write down all rows that a node was fed, and the sizes of its batches."""
    feed = ctx.get_data_feed()
    rows, sizes = [], []
    while not feed.should_stop():
        batch = feed.next_batch(7)
        sizes.append(len(batch))
        rows += batch
    Path(folder, f"{ctx.job_name}-{ctx.task_index}").write_text(json.dumps([rows, sizes]))


def read(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.iterdir()) if path.is_file()}


def test_nodes_know_their_roles_their_arguments_and_each_other(sc: SparkContext, tmp_path: Path) -> None:
    def program(args: Namespace, ctx: Any) -> None:
        facts = vars(ctx) | {"path": ctx.absolute_path("data"), "config": json.loads(os.environ["TF_CONFIG"])}
        Path(args.folder, f"{ctx.job_name}-{ctx.task_index}").write_text(json.dumps(facts))
        done = Path(args.folder).parent / "done"
        while ctx.job_name == "ps" or (ctx.job_name == "evaluator" and not done.exists()):
            time.sleep(0.1)
        if ctx.job_name == "chief":
            done.touch()

    folder = tmp_path / "facts"
    folder.mkdir()
    options: dict[str, Any] = {"master_node": "chief", "eval_node": True}
    cluster = TFCluster.run(sc, program, Namespace(folder=str(folder)), num_executors=4, num_ps=1, **options)
    assert cluster.tensorboard_url() is None
    assert cluster.nodeRDD.collect() == [0, 1, 2, 3]
    cluster.shutdown()
    facts = read(folder)
    assert {name: each["executor_id"] for name, each in facts.items()} == {
        "ps-0": 0,
        "chief-0": 1,
        "evaluator-0": 2,
        "worker-0": 3,
    }
    spec = facts["worker-0"]["cluster_spec"]
    nodes = {f"{node['job_name']}-{node['task_index']}": node for node in cluster.cluster_info}
    assert {name: f"{node['host']}:{node['port']}" for name, node in nodes.items()} == {
        f"{group}-0": addresses[0] for group, addresses in spec.items()
    }
    for name, each in facts.items():
        group = name.removesuffix("-0")
        assert each["config"] == {"cluster": spec, "task": {"type": group, "index": 0}, "environment": "cloud"}
        assert (each["num_workers"], each["worker_num"]) == (2, each["executor_id"])
        assert each["path"] == f"file://{os.getcwd()}/data"
        assert each["tmp_socket"] is None


def test_command_line_becomes_the_nodes_own_and_without_a_leader_there_is_no_tf_config(
    sc: SparkContext, tmp_path: Path
) -> None:
    def program(args: list[str], ctx: Any) -> None:
        Path(sys.argv[1], str(ctx.task_index)).write_text(json.dumps([sys.argv == args, "TF_CONFIG" in os.environ]))

    TFCluster.run(sc, program, ["train.py", str(tmp_path)], num_executors=2, num_ps=0).shutdown()
    assert read(tmp_path) == {"0": [True, False], "1": [True, False]}


def test_port_is_kept_until_the_program_lets_go_of_it(sc: SparkContext) -> None:
    def program(_args: object, ctx: Any) -> None:
        import socket

        [host, port] = ctx.cluster_spec[ctx.job_name][ctx.task_index].split(":")
        assert ctx.tmp_socket.getsockname()[1] == int(port)
        with socket.socket() as mine:
            try:
                mine.bind(("", int(port)))
            except OSError:
                pass
            else:
                raise AssertionError(f"port {port} of {host} was free")
            ctx.release_port()
            assert ctx.tmp_socket is None
            mine.bind(("", int(port)))

    TFCluster.run(sc, program, {}, 2, 0, master_node="chief", release_port=False).shutdown()


def test_inference_answers_each_row_once_in_order_and_batches_end_with_partitions(sc: SparkContext) -> None:
    def program(_args: object, ctx: Any) -> None:
        feed = TFNode.DataFeed(ctx.mgr, False)
        while not feed.should_stop():
            batch = feed.next_batch(batch_size=30)
            feed.batch_results([(row[0] ** 2, len(batch)) for row in batch])

    rows = sc.parallelize([[x] for x in range(1000)], 10)
    with fed(sc, program, 2) as cluster:
        answers = cluster.inference(rows)
        assert answers.map(lambda each: each[0]).collect() == [x * x for x in range(1000)]
        assert answers.map(lambda each: each[1]).collect() == ([30] * 90 + [10] * 10) * 10
        assert cluster.inference(sc.parallelize([], 2)).collect() == []


def test_answers_may_come_after_further_rows_were_taken(sc: SparkContext) -> None:
    def program(_args: object, ctx: Any) -> None:
        feed = ctx.get_data_feed(train_mode=False)
        waiting: list[Any] = []
        while not feed.should_stop():
            waiting.append(feed.next_batch(3))
            if sum(map(len, waiting)) % 10 == 0:
                feed.batch_results([-row for batch in waiting for row in batch])
                waiting.clear()

    with fed(sc, program, 1) as cluster:
        assert cluster.inference(sc.parallelize(range(40), 4)).collect() == [-x for x in range(40)]


def test_error_while_feeding_reaches_the_driver_and_the_next_cluster_is_well(sc: SparkContext) -> None:
    def program(_args: object, ctx: Any) -> None:
        feed = TFNode.DataFeed(ctx.mgr, False)
        feed.batch_results(feed.next_batch(10))
        raise ValueError("it happened while feeding")

    rows = sc.parallelize([[x] for x in range(1000)], 10)
    cluster = TFCluster.run(sc, program, {}, num_executors=2, num_ps=0, input_mode=InputMode.SPARK)
    with pytest.raises(Exception, match="it happened while feeding"):
        cluster.inference(rows).count()
    with pytest.raises(ValueError, match="it happened while feeding"):
        cluster.shutdown()
    assert "it happened while feeding" in TFCluster.tf_status["error"]
    cluster = TFCluster.run(sc, program, {}, num_executors=2, num_ps=0, input_mode=InputMode.SPARK)
    with pytest.raises(TaskFailedError, match=r"worker/\d failed: ValueError: it happened while feeding"):
        cluster.train(rows, 1)
    with pytest.raises(ValueError, match="it happened while feeding"):
        cluster.shutdown()


def test_error_after_feeding_reaches_the_driver(sc: SparkContext) -> None:
    def program(_args: object, ctx: Any) -> None:
        feed = TFNode.DataFeed(ctx.mgr, False)
        while not feed.should_stop():
            feed.batch_results(feed.next_batch(10))
        time.sleep(1)
        raise RuntimeError("it happened after feeding")

    cluster = TFCluster.run(sc, program, {}, num_executors=2, num_ps=0, input_mode=InputMode.SPARK)
    assert cluster.inference(sc.parallelize(range(100), 4)).count() == 100
    with pytest.raises(RuntimeError, match="it happened after feeding"):
        cluster.shutdown(grace_secs=0)


def test_epochs_follow_each_other_within_a_batch_and_inference_may_follow_training(
    spark: SparkSession, sc: SparkContext, tmp_path: Path
) -> None:
    def program(folder: str, ctx: Any) -> None:
        feed = ctx.get_data_feed(train_mode=False)
        sizes = []
        while not feed.should_stop():
            batch = feed.next_batch(7)
            sizes.append(len(batch))
            feed.batch_results([sum(sizes)] * len(batch))
        Path(folder, "sizes").write_text(json.dumps(sizes))

    with fed(sc, program, 1, str(tmp_path)) as cluster:
        cluster.train(sc.parallelize(range(10), 3), num_epochs=2)
        cluster.train(spark.createDataFrame([(1, 2.0)], "a int, b double"))
        assert cluster.inference(sc.parallelize(range(6), 1)).collect() == [36] * 6
        cluster.train(sc.parallelize(range(5), 2).map(lambda x: x), num_epochs=1)
    # Twice 10 and ten times 1 row; six that want answers; and five at the end.
    assert read(tmp_path)["sizes"] == [7, 7, 7, 7, 2, 6, 5]


def test_workers_share_the_rows_beside_a_parameter_server(sc: SparkContext, tmp_path: Path) -> None:
    def program(folder: str, ctx: Any) -> None:
        if ctx.job_name == "ps":
            time.sleep(1000)
        count_rows(folder, ctx)

    rows = sc.parallelize([[x] for x in range(2000)], 20)
    with fed(sc, program, 4, str(tmp_path), num_ps=1, master_node="chief") as cluster:
        cluster.train(rows, 1)
    found = read(tmp_path)
    assert sorted(found) == ["chief-0", "worker-0", "worker-1"]
    assert sorted(row[0] for rows, _ in found.values() for row in rows) == list(range(2000))


def test_node_that_terminates_gets_no_more_rows_and_the_last_one_ends_the_feeding(
    sc: SparkContext, tmp_path: Path
) -> None:
    def program(folder: str, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        rows = feed.next_batch(10)
        if ctx.task_index:
            while len(rows) < 400:
                rows += feed.next_batch(10)
        feed.terminate()
        assert feed.should_stop()
        Path(folder, str(ctx.task_index)).write_text(json.dumps(len(rows)))

    computed = sc.accumulator(0)

    def note(rows: Iterable[int]) -> Iterator[list[int]]:
        computed.add(1)
        time.sleep(0.02)
        return ([row] for row in rows)

    with fed(sc, program, 2, str(tmp_path)) as cluster:
        cluster.train(sc.parallelize(range(100_000), 1000).mapPartitions(note), num_epochs=3)
        cluster.train(sc.parallelize(range(10)), 1)
    assert read(tmp_path) == {"0": 10, "1": 400}
    assert computed.value < 1000


def test_loss_of_an_executor_while_feeding_is_an_error(cluster: Standalone, sc: SparkContext, tmp_path: Path) -> None:
    def program(folder: str, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        feed.next_batch(1)
        Path(folder, str(ctx.task_index)).touch()
        while not feed.should_stop():
            feed.next_batch(1)
            time.sleep(0.05)

    def slowly(rows: Iterable[int]) -> Iterator[int]:
        for row in rows:
            time.sleep(0.05)
            yield row

    def kill_executors() -> None:
        until(lambda: len(list(tmp_path.glob("[01]"))) == 2, "both nodes read", seconds=120)
        for executor in cluster.executors():
            executor.kill()

    tf_cluster = TFCluster.run(sc, program, str(tmp_path), 2, 0, input_mode=InputMode.SPARK)
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_executors)
        with pytest.raises(TaskFailedError, match=r"worker/\d failed: its executor on 127.0.0.\d is gone"):
            tf_cluster.train(sc.parallelize(range(10_000), 4).mapPartitions(slowly), 1)
        killed.result()
    with pytest.raises(TaskFailedError, match="is gone"):
        tf_cluster.shutdown()


def test_parameter_servers_beside_the_driver_take_no_executor(sc: SparkContext, tmp_path: Path) -> None:
    def program(folder: str, ctx: Any) -> None:
        if ctx.job_name == "ps":
            Path(folder, f"ps-{ctx.task_index}").write_text(json.dumps(os.getppid()))
            time.sleep(1000)
        until(lambda: len(list(Path(folder).glob("ps-*"))) == 2, "both parameter servers run")
        Path(folder, f"worker-{ctx.task_index}").write_text(json.dumps(sorted(ctx.cluster_spec)))

    cluster = TFCluster.run(sc, program, str(tmp_path), num_executors=6, num_ps=2, driver_ps_nodes=True)
    assert len(cluster.cluster_info) == 6
    cluster.shutdown()
    found = read(tmp_path)
    assert (found["ps-0"], found["ps-1"]) == (os.getpid(), os.getpid())
    assert [found[f"worker-{index}"] for index in range(4)] == [["ps", "worker"]] * 4


def test_nodes_that_spark_has_no_room_for_are_named(sc: SparkContext) -> None:
    def program(_args: object, _ctx: Any) -> None:
        raise AssertionError("it should never start")

    with pytest.raises(DeadlineError, match=r"worker/\d never joined within 5 s: Spark gave 4 of 5 slots"):
        TFCluster.run(sc, program, {}, num_executors=5, num_ps=0, reservation_timeout=5)


def test_tensorboard_runs_beside_the_first_worker(sc: SparkContext, tmp_path: Path) -> None:
    def program(folder: str, ctx: Any) -> None:
        until(Path(folder, "seen").exists, "somebody has looked at TensorBoard", seconds=120)

    logs = str(tmp_path / "logs")
    cluster = TFCluster.run(sc, program, str(tmp_path), 2, 0, tensorboard=True, log_dir=logs, master_node="chief")
    url = cluster.tensorboard_url()
    assert url is not None

    def page() -> str:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    assert "<html" in until(page, "TensorBoard answers", seconds=120)
    (tmp_path / "seen").touch()
    cluster.shutdown()


@pytest.mark.parametrize("use_barrier", [True, False])
def test_parallel_nodes_know_their_number(sc: SparkContext, tmp_path: Path, use_barrier: bool) -> None:
    def program(args: Namespace, ctx: Any) -> None:
        Path(args.folder, str(ctx.worker_num)).write_text(json.dumps(ctx.num_workers))

    TFParallel.run(sc, program, Namespace(folder=str(tmp_path)), num_executors=3, use_barrier=use_barrier)
    assert read(tmp_path) == {"0": 3, "1": 3, "2": 3}


def test_parallel_nodes_that_spark_has_no_room_for_are_refused(sc: SparkContext) -> None:
    with pytest.raises(Exception, match="barrier"):
        TFParallel.run(sc, lambda _args, _ctx: None, {}, num_executors=5)
