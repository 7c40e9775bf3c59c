from __future__ import annotations

from typing import Any

from gridflow.job import Job
from gridflow.rendezvous.board import ORDERS, Board, MemoryFiles
from gridflow.state import RunState, TaskState
from gridflow.task.leader import Leader


class Run:
    """A leader, what it reports and orders, and tasks that write what they are told to."""

    def __init__(self, **table: Any) -> None:
        self.job = Job.from_table({"program": "train.py", **table})
        self.files = MemoryFiles()
        self.now = 0.0
        self.reports: list[dict[str, Any]] = []
        self._orders = Board(self.files)
        self.lead()

    def lead(self) -> None:
        """Have a leader; its machine was switched on when it came."""
        switched_on = self.now
        self.leader = Leader(
            self.job, Board(self.files), self.reports.append, lambda: self.now - switched_on, lambda: self.now
        )

    def says(self, task: str, kind: str, **fields: Any) -> None:
        Board(self.files).write(task, {"type": kind, **fields})
        self.leader.step()

    def orders(self) -> list[dict[str, Any]]:
        self.leader.step()
        return self._orders.read(ORDERS)

    def all_join(self, attempt: int) -> None:
        for port, task in enumerate(self.job.tasks, 1000):
            if attempt == 1:
                self.says(task, "here", start=1)
            self.says(task, "join", attempt=attempt, address=f"10.0.0.1:{port}")
            self.says(task, "reached", attempt=attempt)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.leader.step()

    @property
    def states(self) -> dict[str, str]:
        return {event["task"]: event["state"] for event in self.reports if event["event"] == "task"}


def stop_reasons(run: Run) -> list[str]:
    return [order["reason"] for order in run.orders() if order["type"] == "stop"]


def test_tasks_get_their_roster_when_all_have_joined_and_go_when_all_are_reached() -> None:
    run = Run(worker={"count": 2})
    assert [order["type"] for order in run.orders()] == ["launch", "waiting"]
    run.says("worker/0", "here", start=1)
    run.says("worker/0", "join", attempt=1, address="10.0.0.1:1000")
    assert run.orders() == [{"type": "waiting", "missing": ["worker/1"]}]
    run.says("worker/1", "here", start=1)
    run.says("worker/1", "join", attempt=1, address="10.0.0.2:1001")
    roster = {"worker/0": "10.0.0.1:1000", "worker/1": "10.0.0.2:1001"}
    assert {"type": "roster", "attempt": 1, "tasks": roster} in run.orders()
    run.says("worker/0", "reached", attempt=1)
    assert run.orders() == []
    run.says("worker/1", "reached", attempt=1)
    assert run.orders() == [{"type": "go", "attempt": 1}]


def test_the_run_succeeds_when_its_workers_have() -> None:
    run = Run(worker={"count": 2}, ps={})
    run.all_join(1)
    run.says("worker/0", "ended", attempt=1, exit_code=0)
    run.says("worker/1", "ended", attempt=1, exit_code=0)
    assert run.orders()[-1]["type"] == "stop"
    run.says("ps/0", "ended", attempt=1, exit_code=None, signal="SIGTERM")
    assert run.leader.finish is not None
    assert run.leader.finish.state is RunState.SUCCEEDED
    assert run.states == {
        "worker/0": TaskState.SUCCEEDED,
        "worker/1": TaskState.SUCCEEDED,
        "ps/0": TaskState.STOPPED,
    }
    assert run.reports[-1]["event"] == "run"


def test_a_failure_stops_the_others_and_is_reported_once() -> None:
    run = Run(worker={"count": 2})
    run.all_join(1)
    run.says("worker/1", "error", attempt=1, error="ValueError: no")
    reason = "worker/1 failed: ValueError: no"
    assert run.orders()[-1] == {"type": "stop", "attempts": {"worker/0": 1}, "reason": reason}
    run.says("worker/1", "ended", attempt=1, exit_code=1)
    run.says("worker/0", "ended", attempt=1, signal="SIGTERM")
    run.leader.step()
    ends = [event for event in run.reports if event["event"] == "run"]
    assert ends == [{"event": "run", "state": RunState.FAILED, "reason": reason, "task": "worker/1"}]


def test_a_failed_gang_starts_again() -> None:
    run = Run(worker={"count": 2}, max_restarts=1)
    run.all_join(1)
    run.says("worker/0", "ended", attempt=1, exit_code=1)
    run.says("worker/1", "ended", attempt=1, signal="SIGTERM")
    launch = next(order for order in run.orders() if order["type"] == "launch" and order["attempt"] == 2)
    assert launch["restarts"] == {"worker/0": 1, "worker/1": 1}
    assert {"event": "restart", "restart": 1, "reason": "worker/0 failed: exit code 1"} in run.reports


def test_what_an_earlier_attempt_says_is_not_heard() -> None:
    run = Run(worker={"count": 2}, max_restarts=1)
    run.all_join(1)
    run.says("worker/0", "ended", attempt=1, exit_code=1)
    run.says("worker/1", "ended", attempt=1, signal="SIGTERM")
    run.says("worker/1", "ended", attempt=1, exit_code=0)
    assert run.leader.finish is None
    assert run.states["worker/1"] == TaskState.STOPPED


def test_an_eviction_costs_no_restart() -> None:
    run = Run(worker={"count": 2}, max_restarts=0)
    run.all_join(1)
    run.says("worker/1", "ended", attempt=1, signal="SIGTERM", evicted=True)
    run.says("worker/0", "ended", attempt=1, signal="SIGTERM")
    launch = [order for order in run.orders() if order["type"] == "launch"][-1]
    assert (launch["attempt"], launch["restarts"]) == (2, {"worker/0": 0, "worker/1": 0})


def test_a_task_that_comes_back_unannounced_was_evicted() -> None:
    run = Run(worker={"count": 2})
    run.all_join(1)
    run.says("worker/1", "here", start=2)
    run.says("worker/0", "ended", attempt=1, signal="SIGTERM")
    assert [order["attempt"] for order in run.orders() if order["type"] == "launch"] == [1, 2]


def test_a_leader_that_comes_back_starts_all_tasks_again() -> None:
    run = Run(worker={"count": 2})
    run.all_join(1)
    run.lead()
    run.says("worker/0", "here", start=2)
    assert [order["attempt"] for order in run.orders() if order["type"] == "launch"] == [1, 2]


def test_a_leader_that_comes_back_counts_restarts_on() -> None:
    run = Run(worker={"count": 2}, max_restarts=1)
    run.all_join(1)
    run.says("worker/1", "ended", attempt=1, exit_code=1)
    run.says("worker/0", "ended", attempt=1, signal="SIGTERM")
    run.lead()
    launches = [order for order in run.orders() if order["type"] == "launch"]
    assert [(order["attempt"], order["gang_restarts"]) for order in launches] == [(1, 0), (2, 1), (3, 1)]
    run.says("worker/1", "ended", attempt=3, exit_code=1)
    run.says("worker/0", "ended", attempt=3, signal="SIGTERM")
    assert run.leader.finish is not None
    assert run.leader.finish.reason == "worker/1 failed: exit code 1"


def test_a_task_that_never_gets_a_slot_is_named_and_nobody_waits_for_its_end() -> None:
    run = Run(worker={"count": 2}, start_timeout="5m")
    run.says("worker/0", "here", start=1)
    run.says("worker/0", "join", attempt=1, address="10.0.0.1:1000")
    run.wait(301)
    run.says("worker/0", "ended", attempt=1, signal="SIGTERM")
    run.leader.step()
    assert run.leader.finish is not None
    assert run.leader.finish.state is RunState.TIMED_OUT
    assert run.leader.finish.reason == (
        "worker/1 never joined within 300 s: HTCondor has no slot for worker/1; start_timeout may be longer"
    )


def test_a_task_that_joins_late_though_it_has_a_slot_is_only_named() -> None:
    run = Run(worker={"count": 2}, start_timeout="5m")
    for task in run.job.tasks:
        run.says(task, "here", start=1)
    run.says("worker/0", "join", attempt=1, address="10.0.0.1:1000")
    run.wait(301)
    assert stop_reasons(run) == ["worker/1 never joined within 300 s"]


def test_an_evicted_task_has_the_start_timeout_once_more_to_find_a_slot() -> None:
    run = Run(worker={"count": 2}, start_timeout="5m")
    run.all_join(1)
    run.wait(1000)
    run.says("worker/1", "ended", attempt=1, signal="SIGTERM", evicted=True)
    run.says("worker/0", "ended", attempt=1, signal="SIGTERM")
    run.says("worker/0", "join", attempt=2, address="10.0.0.1:1000")
    run.wait(299)
    assert run.leader.finish is None
    run.wait(2)
    run.says("worker/0", "ended", attempt=2, signal="SIGTERM")
    assert run.leader.finish is not None
    assert "HTCondor has no slot for worker/1" in run.leader.finish.reason


def test_the_deadline_of_the_run_counts_on_when_the_leader_is_evicted() -> None:
    run = Run(worker={"count": 2}, timeout="1h")
    run.all_join(1)
    run.wait(3000)
    assert run.leader.finish is None
    run.lead()
    run.says("worker/0", "here", start=2)
    run.all_join(2)
    run.wait(599)
    assert stop_reasons(run) == []
    run.wait(2)
    assert stop_reasons(run) == ["the deadline of 3600 s passed while worker/0, worker/1 still ran"]


def test_a_leader_gives_signs_of_life() -> None:
    run = Run(worker={"count": 2})
    run.all_join(1)
    run.orders()
    run.wait(119)
    assert run.orders() == []
    run.wait(2)
    run.wait(1)
    assert run.orders() == [{"type": "alive"}]


def test_a_task_that_has_given_up_is_known_to_have_no_slot() -> None:
    run = Run(worker={"count": 2}, start_timeout="5m")
    run.says("worker/1", "here", start=1)
    run.says("worker/1", "gone")
    run.lead()
    run.says("worker/0", "here", start=1)
    run.says("worker/0", "join", attempt=2, address="10.0.0.1:1000")
    run.wait(301)
    [reason] = stop_reasons(run)
    assert reason.endswith("HTCondor has no slot for worker/1; start_timeout may be longer")


def test_a_task_that_falls_silent_when_told_to_stop_is_taken_to_be_gone() -> None:
    run = Run(worker={"count": 2}, stop_timeout="10s")
    run.all_join(1)
    run.says("worker/0", "ended", attempt=1, exit_code=1)
    run.wait(60)
    assert run.leader.finish is None
    run.wait(20)
    assert run.leader.finish is not None
    assert run.states["worker/1"] == TaskState.STOPPED
