from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridflow.errors import DeadlineError, RendezvousError, RunCancelledError
from gridflow.rendezvous.board import ORDERS, Board, FolderFiles, Member, MemoryFiles, Orders
from gridflow.rendezvous.reachability import Listening, unreachable
from gridflow.rendezvous.roster import Address, Roster
from gridflow.task.ports import ReservedPort


@pytest.fixture(params=["folder", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FolderFiles | MemoryFiles:
    return FolderFiles(tmp_path) if request.param == "folder" else MemoryFiles()


def test_each_reader_hears_each_message_once(files: FolderFiles | MemoryFiles) -> None:
    writer, reader = Board(files), Board(files)
    assert reader.read("worker/0") == []
    writer.write("worker/0", {"type": "here"})
    writer.write("worker/0", {"type": "join", "text": "größer\n"})
    assert reader.read("worker/0") == [{"type": "here"}, {"type": "join", "text": "größer\n"}]
    assert reader.read("worker/0") == []
    assert Board(files).read("worker/0")[0] == {"type": "here"}


def test_a_line_that_is_not_complete_is_not_there_yet(files: FolderFiles | MemoryFiles) -> None:
    reader = Board(files)
    files.append("ps-0.jsonl", b'{"type": ')
    assert reader.read("ps/0") == []
    files.append("ps-0.jsonl", b'"here"}\n{"ty')
    assert reader.read("ps/0") == [{"type": "here"}]


def test_a_launch_after_the_end_begins_anew() -> None:
    files = MemoryFiles()
    leader, orders = Board(files), orders_of(Board(files))
    leader.write(ORDERS, {"type": "launch", "attempt": 1, "tasks": ["worker/0"]})
    leader.write(ORDERS, {"type": "finish", "state": "failed"})
    orders.look(at_once=True)
    assert orders.finish is not None
    leader.write(ORDERS, {"type": "launch", "attempt": 2, "tasks": ["worker/0"]})
    orders.look(at_once=True)
    assert orders.finish is None
    assert orders.launch("worker/0", 1) is not None


def test_orders_cease_when_nothing_is_heard_of_the_leader() -> None:
    now, files = 0.0, MemoryFiles()
    orders = Orders(Board(files), lambda: None, lambda: now, patience_seconds=300)
    Board(files).write(ORDERS, {"type": "launch", "attempt": 1, "tasks": ["worker/0"]})
    now = 299
    assert not orders.is_over("worker/0", 1)
    now = 599
    assert not orders.is_over("worker/0", 1)
    now = 600
    assert orders.is_over("worker/0", 1)
    Board(files).write(ORDERS, {"type": "alive"})
    now = 601
    assert not orders.is_over("worker/0", 1)


def orders_of(board: Board) -> Orders:
    return Orders(board, lambda: None)


def member_of(files: MemoryFiles) -> Member:
    return Member(Board(files), "worker/0", 1, orders_of(Board(files)))


def test_orders_start_and_end_attempts() -> None:
    files = MemoryFiles()
    leader, orders = Board(files), orders_of(Board(files))
    assert orders.launch("worker/0", 0) is None
    leader.write(ORDERS, {"type": "launch", "attempt": 1, "tasks": ["worker/0"]})
    orders.look(at_once=True)
    assert orders.launch("worker/0", 0) == {"type": "launch", "attempt": 1, "tasks": ["worker/0"]}
    assert not orders.is_over("worker/0", 1)
    leader.write(ORDERS, {"type": "stop", "attempts": {"worker/0": 1}})
    orders.look(at_once=True)
    assert orders.is_over("worker/0", 1)
    leader.write(ORDERS, {"type": "launch", "attempt": 2, "tasks": ["worker/0"]})
    orders.look(at_once=True)
    assert not orders.is_over("worker/0", 2)
    leader.write(ORDERS, {"type": "finish", "state": "succeeded"})
    orders.look(at_once=True)
    assert orders.is_over("worker/0", 2)


def test_a_task_that_waits_in_vain_names_who_is_missing() -> None:
    files = MemoryFiles()
    Board(files).write(ORDERS, {"type": "waiting", "missing": ["worker/1"]})
    said = "worker/0 waited in vain until every task has joined; missing: worker/1"
    with ReservedPort() as port, member_of(files) as member, pytest.raises(DeadlineError, match=said):
        member.join(Address("127.0.0.1", port.number), timeout_seconds=0.5)


def test_a_task_that_is_told_to_stop_waits_no_longer() -> None:
    files = MemoryFiles()
    Board(files).write(ORDERS, {"type": "stop", "attempts": {"worker/0": 1}})
    said = "was told to stop while it waited until every task has joined"
    with ReservedPort() as port, member_of(files) as member, pytest.raises(RunCancelledError, match=said):
        member.join(Address("127.0.0.1", port.number), timeout_seconds=30)


# Whether tasks can connect to each other


@pytest.fixture
def ports() -> Iterator[list[ReservedPort]]:
    with ReservedPort() as first, ReservedPort() as second:
        yield [first, second]


def test_tasks_that_answer_are_reached(ports: list[ReservedPort]) -> None:
    roster = Roster.from_dict({f"worker/{index}": f"127.0.0.1:{port.number}" for index, port in enumerate(ports)})
    problems = {}

    def probe(index: int) -> None:
        with Listening(ports[index].number, f"worker/{index}") as listening:
            problems[index] = unreachable(roster, f"worker/{index}", 20, listening)
            listening.answer(1)

    threads = [threading.Thread(target=probe, args=(index,), name=f"probe {index}") for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == {0: "", 1: ""}


def test_a_task_that_nobody_answers_for_is_named(ports: list[ReservedPort]) -> None:
    roster = Roster.from_dict({f"worker/{index}": f"127.0.0.1:{port.number}" for index, port in enumerate(ports)})
    with Listening(ports[0].number, "worker/0") as listening:
        problem = unreachable(roster, "worker/0", 0.3, listening)
    assert problem.startswith(f"worker/0 at {roster['worker/0']} cannot reach worker/1 (at {roster['worker/1']}: ")
    assert "Connection refused" in problem


def test_a_stranger_at_a_tasks_address_is_no_task(ports: list[ReservedPort]) -> None:
    roster = Roster.from_dict({"worker/0": "127.0.0.1:9", "worker/1": f"127.0.0.1:{ports[1].number}"})
    with Listening(ports[0].number, "worker/0") as listening, Listening(ports[1].number, "ps/0") as stranger:
        thread = threading.Thread(target=stranger.answer, args=(3,), name="stranger")
        thread.start()
        problem = unreachable(roster, "worker/0", 0.3, listening)
        thread.join()
    assert "'ps/0' answers there" in problem


def test_a_task_that_cannot_be_reached_ends_the_join_with_a_hint(ports: list[ReservedPort]) -> None:
    files = MemoryFiles()
    board = Board(files)
    addresses = {f"worker/{index}": f"127.0.0.1:{port.number}" for index, port in enumerate(ports)}
    board.write(ORDERS, {"type": "roster", "attempt": 1, "tasks": addresses})
    with member_of(files) as member, pytest.raises(RendezvousError, match="use one task with several GPUs"):
        member.join(Address("127.0.0.1", ports[0].number), timeout_seconds=1)
    assert [message["type"] for message in Board(files).read("worker/0")] == ["join", "error"]
