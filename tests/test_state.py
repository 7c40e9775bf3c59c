from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridflow.state import Exit, RunState, RunStatus, TaskState, TaskStatus, replay

TASKS = ("worker/0", "ps/0")


def event(kind: str, time: float = 1.0, **fields: Any) -> dict[str, Any]:
    return {"time": time, "event": kind, **fields}


def replayed(*events: dict[str, Any]) -> RunStatus:
    return replay("x-1", "local", TASKS, events)


STARTED = (
    event("supervisor", 0.5, pid=7, start_time="99"),
    event("run", 1.0, state="running"),
    event("task", 2.0, task="worker/0", state="starting", host="here", restarts=0),
    event("task", 2.0, task="ps/0", state="starting", host="here", restarts=0),
    event("task", 3.0, task="ps/0", state="running"),
    event("task", 3.5, task="worker/0", state="running"),
)


# States


def test_a_run_ends_with_an_exit_code_and_no_other_state_has_one() -> None:
    assert {state.value: state.exit_code for state in RunState} == {
        "pending": None,
        "held": None,
        "running": None,
        "succeeded": 0,
        "failed": 1,
        "cancelled": 130,
        "timed_out": 4,
    }
    assert {state for state in RunState if state.is_ended} == {
        RunState.SUCCEEDED,
        RunState.FAILED,
        RunState.CANCELLED,
        RunState.TIMED_OUT,
    }


def test_a_task_has_ended_when_it_succeeded_failed_or_was_stopped() -> None:
    assert {state.value for state in TaskState if state.is_ended} == {"succeeded", "failed", "stopped"}


@pytest.mark.parametrize(
    ("returncode", "exit_", "words"),
    [
        (0, Exit(code=0), "exit code 0"),
        (3, Exit(code=3), "exit code 3"),
        (-signal.SIGTERM, Exit(signal="SIGTERM"), "killed by SIGTERM"),
        (
            -signal.SIGKILL,
            Exit(signal="SIGKILL"),
            "killed by SIGKILL (by a person, or by the system when memory ran out)",
        ),
        (-(signal.SIGRTMIN + 3), Exit(signal="signal 37"), "killed by signal 37"),
    ],
)
def test_the_end_of_a_process_is_an_exit_code_or_a_signal(returncode: int, exit_: Exit, words: str) -> None:
    assert Exit.from_returncode(returncode) == exit_
    assert str(exit_) == words
    assert exit_.is_success == (returncode == 0)


# Replaying events


def test_a_run_without_events_is_pending() -> None:
    status = replayed()
    assert (status.run, status.platform, status.state) == ("x-1", "local", RunState.PENDING)
    assert status.tasks == (TaskStatus("worker/0"), TaskStatus("ps/0"))
    assert status.started is None


def test_a_run_that_goes_on_shows_its_tasks() -> None:
    status = replayed(*STARTED)
    assert status.state is RunState.RUNNING
    assert (status.started, status.ended) == (1.0, None)
    assert status["worker/0"] == TaskStatus("worker/0", TaskState.RUNNING, host="here", started=2.0)


def test_a_run_that_failed_names_the_first_failed_task_and_the_reason() -> None:
    status = replayed(
        *STARTED,
        event("task", 4.0, task="worker/0", state="failed", exit_code=1, signal=None, reason="ValueError: x"),
        event("task", 5.0, task="ps/0", state="stopped", exit_code=None, signal="SIGTERM", reason="worker/0 failed"),
        event("run", 6.0, state="failed", reason="worker/0 failed: ValueError: x", task="worker/0"),
    )
    assert (status.state, status.failed_task) == (RunState.FAILED, "worker/0")
    assert status.reason == "worker/0 failed: ValueError: x"
    assert (status.started, status.ended) == (1.0, 6.0)
    assert (status["worker/0"].exit_code, status["worker/0"].ended) == (1, 4.0)
    assert (status["ps/0"].state, status["ps/0"].signal) == (TaskState.STOPPED, "SIGTERM")


def test_a_run_ends_once_and_the_first_end_counts() -> None:
    status = replayed(
        *STARTED,
        event("run", 6.0, state="succeeded"),
        event("run", 7.0, state="failed", reason="the run's supervisor process was killed"),
        event("run", 8.0, state="running"),
    )
    assert (status.state, status.reason, status.ended) == (RunState.SUCCEEDED, "", 6.0)


def test_no_task_of_a_run_that_has_ended_goes_on() -> None:
    ended = event("task", 4.0, task="worker/0", state="failed", exit_code=2, reason="exit code 2")
    status = replayed(*STARTED, ended, event("run", 6.0, state="failed", reason="the supervisor was killed"))
    assert status["worker/0"].reason == "exit code 2"
    assert status["ps/0"] == TaskStatus(
        "ps/0", TaskState.STOPPED, host="here", reason="the supervisor was killed", started=2.0, ended=6.0
    )


def test_a_restart_forgets_how_the_last_attempt_ended_and_counts() -> None:
    status = replayed(
        *STARTED,
        event("tensorboard", 3.6, url="http://127.0.0.1:6006/"),
        event("task", 4.0, task="worker/0", state="failed", exit_code=1, reason="exit code 1"),
        event("restart", 5.0, restart=1, reason="worker/0 failed: exit code 1"),
        event("task", 5.5, task="worker/0", state="starting", host="there", restarts=1),
    )
    assert (status.state, status.restarts, status.reason) == (RunState.RUNNING, 1, "worker/0 failed: exit code 1")
    assert status["worker/0"] == TaskStatus("worker/0", TaskState.STARTING, host="there", restarts=1, started=5.5)
    # its port was drawn anew
    assert status.tensorboard_url is None


def test_a_run_that_succeeded_after_a_restart_has_no_reason_left() -> None:
    status = replayed(
        *STARTED, event("restart", 5.0, restart=1, reason="worker/0 failed"), event("run", 9.0, state="succeeded")
    )
    assert (status.state, status.restarts, status.reason) == (RunState.SUCCEEDED, 1, "")


def test_a_task_that_was_evicted_is_pending_again() -> None:
    status = replayed(*STARTED, event("task", 4.0, task="worker/0", state="pending", reason="evicted"))
    assert (status["worker/0"].state, status["worker/0"].reason) == (TaskState.PENDING, "evicted")
    assert status["worker/0"].ended is None


def test_tensorboard_is_there_until_the_run_has_ended() -> None:
    there = event("tensorboard", url="http://127.0.0.1:6006/")
    assert replayed(*STARTED, there).tensorboard_url == "http://127.0.0.1:6006/"
    assert replayed(*STARTED, there, event("run", state="succeeded")).tensorboard_url is None


def test_events_that_are_not_known_change_nothing() -> None:
    strange: tuple[dict[str, Any], ...] = (
        event("weather", sun=True),
        {"time": 1.0},
        {},
        event("task", task="worker/9", state="failed"),
    )
    assert replayed(*STARTED, *strange) == replayed(*STARTED)


events = st.one_of(
    st.builds(
        lambda task, state: event("task", task=task, state=state, host="h", restarts=0),
        st.sampled_from(TASKS),
        st.sampled_from([state.value for state in TaskState]),
    ),
    st.builds(
        lambda state: event("run", state=state, reason="r"), st.sampled_from([state.value for state in RunState])
    ),
    st.builds(lambda restart: event("restart", restart=restart, reason="r"), st.integers(1, 3)),
    st.just(event("tensorboard", url="u")),
)


@settings(deadline=None)
@given(st.lists(events))
def test_whatever_happened_is_a_status_that_json_can_hold(history: list[dict[str, Any]]) -> None:
    status = replayed(*history)
    assert [task.task for task in status.tasks] == list(TASKS)
    assert json.loads(json.dumps(status.to_dict())) == status.to_dict()
    if status.state.is_ended:
        assert all(task.state.is_ended for task in status.tasks)
        longer = replayed(*history, event("run", state="failed"), event("run", state="running"))
        assert longer.state is status.state


# What others see


def test_the_json_object_has_the_documented_keys() -> None:
    shown = replayed(*STARTED, event("run", 6.0, state="timed_out", reason="late", task="ps/0")).to_dict()
    assert shown == {
        "run": "x-1",
        "platform": "local",
        "state": "timed_out",
        "tasks": [
            {
                "task": "worker/0",
                "state": "stopped",
                "exit_code": None,
                "signal": None,
                "host": "here",
                "restarts": 0,
                "reason": "late",
            },
            {
                "task": "ps/0",
                "state": "stopped",
                "exit_code": None,
                "signal": None,
                "host": "here",
                "restarts": 0,
                "reason": "late",
            },
        ],
        "reason": "late",
        "restarts": 0,
        "failed_task": "ps/0",
        "tensorboard_url": None,
        "started": 1.0,
        "ended": 6.0,
    }
    # Every key comes before its value is known, too.
    assert replayed().to_dict().keys() == shown.keys()


def test_a_task_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="worker/9"):
        replayed()["worker/9"]
