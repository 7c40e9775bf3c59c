"""What a node is told, and which GPUs it is shown."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest

from gridflow.compat.tensorflowonspark import TFSparkNode, gpu_info, reservation
from gridflow.errors import TaskError

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def meta(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    for name in (VISIBLE, "TF_CONFIG", "SPARK_EXECUTOR_POD_IP"):
        # Set first, so that whatever a node changes is put back.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    server = reservation.Server(1)
    yield {
        "id": 1,
        "cluster_template": {"chief": [0]},
        "num_executors": 1,
        "default_fs": "file://",
        "working_dir": ".",
        "server_addr": server.start(),
    }
    server.stop()
    if TFSparkNode.TFSparkNode.mgr is not None:
        TFSparkNode.TFSparkNode.mgr.shutdown()
        TFSparkNode.TFSparkNode.mgr = None


class Gpus:
    """A host's GPUs, and who asked for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, int]] = []
        monkeypatch.setattr(gpu_info, "is_gpu_available", lambda: True)
        monkeypatch.setattr(gpu_info, "get_gpus", self.get)

    def get(self, count: int, index: int, format: str) -> list[str]:  # noqa: A002
        assert format == gpu_info.AS_LIST
        self.asked.append((count, index))
        return [str(number) for number in range(count)]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    return Gpus(monkeypatch)


def run(meta: dict[str, Any], tf_args: object = None, number: int = 0) -> Any:
    """Run a node in this process, and return the context of its program."""
    seen: list[Any] = []
    node = TFSparkNode.run(
        lambda args, ctx: seen.append((args, ctx)), tf_args, meta, False, None, ["input"], background=False
    )
    node([number])
    [(args, ctx)] = seen
    assert args is tf_args
    return ctx


def spark_gives(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    monkeypatch.setattr(TFSparkNode, "_spark_gpus", lambda: list(addresses))


def test_program_is_told_who_it_is(meta: dict[str, Any]) -> None:
    ctx = run(meta, Namespace())
    assert (ctx.job_name, ctx.task_index, ctx.executor_id, ctx.num_workers) == ("chief", 0, 0, 1)
    assert (ctx.defaultFS, ctx.working_dir, ctx.tmp_socket) == ("file://", ".", None)
    assert str(ctx.mgr.get("state")) == "'running'"
    assert json.loads(os.environ["TF_CONFIG"]) == {
        "cluster": ctx.cluster_spec,
        "task": {"type": "chief", "index": 0},
        "environment": "cloud",
    }


def test_without_a_leader_tensorflow_is_not_told_of_the_cluster(meta: dict[str, Any]) -> None:
    ctx = run({**meta, "cluster_template": {"worker": [0]}})
    assert list(ctx.cluster_spec) == ["worker"]
    assert "TF_CONFIG" not in os.environ


def test_nodes_come_by_their_numbers_and_no_number_twice() -> None:
    def node(number: int, group: str) -> dict[str, Any]:
        return {"executor_id": number, "job_name": group, "host": "h", "port": number}

    spec = TFSparkNode._get_cluster_spec([node(0, "ps"), node(1, "worker"), node(2, "worker")])
    assert spec == {"ps": ["h:0"], "worker": ["h:1", "h:2"]}
    with pytest.raises(TaskError, match="two nodes have the number 1"):
        TFSparkNode._get_cluster_spec([node(1, "worker"), node(1, "worker")])


def test_gpu_that_is_wanted_and_not_there_is_an_error(meta: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_info, "is_gpu_available", lambda: False)
    with pytest.raises(TaskError, match="chief:0 wants 1 GPUs and can have 0"):
        run(meta, Namespace(num_gpus=1))


def test_host_without_gpus_shows_none(meta: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_info, "is_gpu_available", lambda: False)
    run(meta)
    assert os.environ[VISIBLE] == ""


@pytest.mark.parametrize(
    ("tf_args", "asked", "shown"),
    [
        (Namespace(), [(1, 0)], "0"),
        (Namespace(num_gpus=2), [(2, 0)], "0,1"),
        ({"num_gpus": 2}, [(2, 0)], "0,1"),
        ({"num_gpus": 0}, [], ""),
        (["--num_gpus", "2"], [(1, 0)], "0"),
    ],
)
def test_node_is_shown_the_gpus_it_wants_and_by_default_one(
    meta: dict[str, Any], gpus: Gpus, tf_args: object, asked: list[tuple[int, int]], shown: str
) -> None:
    run(meta, tf_args)
    assert gpus.asked == asked
    assert os.environ[VISIBLE] == shown


def test_nodes_of_one_host_take_different_gpus(
    meta: dict[str, Any], gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"chief": ["1.1.1.1:2222"], "worker": ["1.1.1.1:2223", "1.1.1.1:2224", "2.2.2.2:2222"]}
    monkeypatch.setattr(TFSparkNode, "_get_cluster_spec", lambda _nodes: spec)
    run({**meta, "cluster_template": {"chief": [0], "worker": [1, 2, 3]}}, Namespace(num_gpus=1), number=2)
    assert gpus.asked == [(1, 2)]


def test_gpus_that_spark_gave_come_first(meta: dict[str, Any], gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_gives(monkeypatch, "5", "6")
    run(meta)
    assert (os.environ[VISIBLE], gpus.asked) == ("5,6", [])


def test_fewer_gpus_than_spark_gave_may_be_wanted(
    meta: dict[str, Any], gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_gives(monkeypatch, "5", "6")
    run(meta, Namespace(num_gpus=1))
    assert (os.environ[VISIBLE], gpus.asked) == ("5", [])


def test_where_spark_gave_none_the_host_is_asked(
    meta: dict[str, Any], gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_gives(monkeypatch)
    run(meta)
    assert (os.environ[VISIBLE], gpus.asked) == ("0", [(1, 0)])


def test_pod_has_the_gpus_that_spark_gave_and_no_others(
    meta: dict[str, Any], gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_EXECUTOR_POD_IP", "1.2.3.4")
    spark_gives(monkeypatch)
    run(meta)
    assert (os.environ[VISIBLE], gpus.asked) == ("", [])


def test_pod_without_the_gpus_it_wants_fails(meta: dict[str, Any], gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_EXECUTOR_POD_IP", "1.2.3.4")
    with pytest.raises(TaskError, match="wants 1 GPUs and can have 0"):
        run(meta, Namespace(num_gpus=1))
    assert gpus.asked == []


def test_tensorboard_runs_beside_the_first_worker_or_whoever_leads() -> None:
    template = {"ps": [0], "chief": [1], "worker": [2, 3]}
    assert [TFSparkNode.has_tensorboard(template, number) for number in range(4)] == [False, False, True, False]
    assert TFSparkNode.has_tensorboard({"ps": [0], "master": [1]}, 1)
