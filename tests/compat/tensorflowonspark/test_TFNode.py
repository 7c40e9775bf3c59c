"""Paths, and rows from a manager's queues."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gridflow.compat.tensorflowonspark import TFManager, TFNode, marker
from gridflow.compat.tensorflowonspark.TFSparkNode import TFNodeContext
from gridflow.errors import UsageError

KEY = b"a key"


@pytest.fixture
def manager() -> Iterator[Any]:
    started = TFManager.start(KEY, ["input", "output"], "local")
    yield started
    started.shutdown()


def fill(manager: Any, *items: object) -> None:
    queue = manager.get_queue("input")
    for item in items:
        queue.put(item)


HOME = f"/user/{getpass.getuser()}"


@pytest.mark.parametrize(
    ("path", "local", "hdfs", "viewfs"),
    [
        ("hdfs://foo/bar", "hdfs://foo/bar", "hdfs://foo/bar", "hdfs://foo/bar"),
        ("viewfs://foo/bar", "viewfs://foo/bar", "viewfs://foo/bar", "viewfs://foo/bar"),
        ("file://foo/bar", "file://foo/bar", "file://foo/bar", "file://foo/bar"),
        ("/foo/bar", "file:///foo/bar", "hdfs:///foo/bar", "viewfs:///foo/bar"),
        ("foo/bar", f"file://{os.getcwd()}/foo/bar", f"hdfs://{HOME}/foo/bar", f"viewfs://{HOME}/foo/bar"),
    ],
)
def test_paths_are_on_the_clusters_own_file_system(path: str, local: str, hdfs: str, viewfs: str) -> None:
    for default, expected in (("file://", local), ("hdfs://", hdfs), ("viewfs://", viewfs)):
        ctx = SimpleNamespace(defaultFS=default, working_dir=os.getcwd())
        assert TFNode.hdfs_path(ctx, path) == expected


def test_relative_path_on_another_file_system_starts_at_its_root() -> None:
    assert TFNodeContext(defaultFS="s3a://bucket").absolute_path("foo") == "s3a://bucket/foo"


def test_batches_are_as_large_as_asked_for_until_the_feed_ends(manager: Any) -> None:
    fill(manager, *range(10), None)
    feed = TFNode.DataFeed(manager)
    assert feed.next_batch(2) == [0, 1]
    assert feed.next_batch(4) == [2, 3, 4, 5]
    assert not feed.should_stop()
    assert feed.next_batch(10) == [6, 7, 8, 9]
    assert feed.should_stop()
    assert feed.next_batch(1) == []


def test_end_of_a_partition_ends_a_batch_where_answers_are_wanted(manager: Any) -> None:
    items = (1, 2, marker.EndPartition(), marker.EndPartition(), 3, None)
    fill(manager, *items, *items)
    feed = TFNode.DataFeed(manager, train_mode=False)
    assert [feed.next_batch(5), feed.next_batch(5)] == [[1, 2], [3]]
    feed.batch_results([10, 20, 30])
    output = manager.get_queue("output")
    assert [output.get() for _ in range(3)] == [10, 20, 30]
    assert TFNode.DataFeed(manager, train_mode=True).next_batch(5) == [1, 2, 3]


def test_columns_become_tensors_in_the_order_of_their_names(manager: Any) -> None:
    fill(manager, (1, "x"), (2, "y"), None)
    feed = TFNode.DataFeed(manager, input_mapping={"b": "second", "a": "first"})
    assert feed.next_batch(5) == {"first": [1, 2], "second": ["x", "y"]}


def test_terminated_feed_is_emptied(manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TFNode, "_DRAIN_SECONDS", 0.1)
    fill(manager, *range(10))
    TFNode.DataFeed(manager).terminate()
    assert str(manager.get("state")) == "'terminating'"
    assert manager.get_queue("input").empty()


def test_manager_is_reached_with_its_key_alone(manager: Any) -> None:
    from multiprocessing import AuthenticationError

    fill(manager, "row")
    other: Any = TFManager.connect(manager.address, KEY)
    assert other.get_queue("input").get() == "row"
    assert other.get_queue("none")._getvalue() is None
    with pytest.raises(AuthenticationError):
        TFManager.connect(manager.address, b"another key")


def test_what_tensorflow_2_has_no_use_for_is_refused() -> None:
    with pytest.raises(UsageError, match=r"start_cluster_server\(\) is of TensorFlow 1"):
        TFNodeContext().start_cluster_server()
    with pytest.raises(UsageError, match=r"export_saved_model\(\) is of TensorFlow 1"):
        TFNodeContext().export_saved_model(None, "", "", {})
    for refused in (TFNode.next_batch, TFNode.batch_results):
        with pytest.raises(UsageError, match=r"is no more \(use TFNode.DataFeed"):
            refused(None, 1)
    with pytest.raises(UsageError, match=r"TFNode.terminate\(\) is no more"):
        TFNode.terminate(None)


def test_released_port_is_free() -> None:
    with socket.socket() as keeper:
        keeper.bind(("", 0))
        port = keeper.getsockname()[1]
        ctx = TFNodeContext(tmp_socket=keeper)
        ctx.release_port()
        ctx.release_port()
        assert ctx.tmp_socket is None
        with socket.socket() as mine:
            mine.bind(("", port))
