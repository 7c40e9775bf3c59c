from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow.platforms.htcondor_events import Fold, explain, parse
from gridflow.state import Exit, RunState, RunStatus, TaskState, replay

SUBMITTED = "000 (012.000.000) 2026-11-15 19:30:40 Job submitted from host: <10.0.0.1:9618?addrs=10.0.0.1-9618>\n...\n"
EXECUTING = (
    "001 (012.000.000) 2026-11-15 19:30:42 Job executing on host: <10.1.7.3:9618?addrs=10.1.7.3-9618>\n"
    "\tSlotName: slot1_1@execute7\n\tCpus = 1\n...\n"
)
EVICTED = (
    "004 (012.000.000) 2026-11-15 19:31:00 Job was evicted.\n\t(0) CPU times\n"
    "\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  Run Remote Usage\n\t0  -  Run Bytes Sent By Job\n"
    "\tPartitionable Resources :    Usage  Request Allocated \n...\n"
)
HELD = (
    "012 (012.000.000) 2026-11-15 19:31:05 Job was held.\n\tTransfer input files failure at access point pool while "
    "sending files to execution point slot1_4@pool. Details: reading from file /share/x.dat: (errno 2) No such file or "
    "directory\n\tCode 13 Subcode 2\n...\n"
)
RELEASED = "013 (012.000.000) 2026-11-15 19:31:06 Job was released.\n\tvia condor_release (by user alice)\n...\n"
ABORTED = "009 (012.000.000) 2026-11-15 19:31:09 Job was aborted.\n\tvia condor_rm (by user alice)\n...\n"
START_ERROR = (
    "021 (012.000.000) 2026-11-15 19:30:43 Error from starter on slot1_1@pool:\n"
    "\tSingularity test failed: could not open image /images/none.sif\n\tCode 0 Subcode 0\n...\n"
)


def terminated(how: str) -> str:
    return f"005 (012.000.000) 2026-11-15 19:31:10 Job terminated.\n\t(1) {how}\n\t\tUsr 0 00:00:00\n...\n"


def said(second: int, **event: Any) -> str:
    return f"008 (012.000.000) 2026-11-15 19:30:{second:02} gridflow {json.dumps(event)}\n...\n"


def status(**logs: str) -> RunStatus:
    tasks = tuple(name.replace("_", "/") for name in logs)
    fold = Fold(tasks).take({name.replace("_", "/"): parse(text) for name, text in logs.items()})
    return replay("run", "htcondor", tasks, fold.events)


# One task, which says nothing for itself


def test_a_job_that_waits_is_pending() -> None:
    assert status(worker_0=SUBMITTED).state is RunState.PENDING


def test_a_job_in_a_slot_is_starting_there() -> None:
    seen = status(worker_0=SUBMITTED + EXECUTING)
    assert seen.state is RunState.RUNNING
    assert (seen["worker/0"].state, seen["worker/0"].host) == (TaskState.STARTING, "slot1_1@execute7")


@pytest.mark.parametrize(
    ("how", "state", "code", "signal", "reason"),
    [
        ("Normal termination (return value 0)", RunState.SUCCEEDED, 0, None, ""),
        ("Normal termination (return value 3)", RunState.FAILED, 3, None, "exit code 3"),
        ("Abnormal termination (signal 11)", RunState.FAILED, None, "SIGSEGV", "killed by SIGSEGV"),
        (
            "Normal termination (return value 122)", RunState.FAILED, 122, None,
            "exit code 122: there is no Python 3.11 or newer in the image",
        ),
    ],
)  # fmt: skip
def test_the_end_of_a_job_is_its_tasks(
    how: str, state: RunState, code: int | None, signal: str | None, reason: str
) -> None:
    seen = status(worker_0=SUBMITTED + EXECUTING + terminated(how))
    assert (seen.state, seen["worker/0"].exit_code, seen["worker/0"].signal) == (state, code, signal)
    assert seen["worker/0"].reason == reason
    assert seen.reason == (f"worker/0 failed: {reason}" if reason else "")


def test_an_evicted_job_waits_again_and_its_next_start_is_counted() -> None:
    seen = status(worker_0=SUBMITTED + EXECUTING + EVICTED)
    assert seen["worker/0"].state is TaskState.PENDING
    assert seen["worker/0"].reason == "evicted: it lost its slot and waits for another"
    again = status(worker_0=SUBMITTED + EXECUTING + EVICTED + EXECUTING.replace("19:30:42", "19:31:02"))
    assert (again["worker/0"].state, again["worker/0"].restarts) == (TaskState.STARTING, 1)


def test_a_held_job_says_why_and_what_to_do() -> None:
    seen = status(worker_0=SUBMITTED + EXECUTING + EVICTED + HELD)
    why = (
        "files cannot be brought to the slot: reading from file /share/x.dat: (errno 2) No such file or directory "
        "(is the path right, and may you read it?)"
    )
    assert (seen.state, seen.reason) == (RunState.HELD, f"worker/0 is held: {why}")
    assert (seen["worker/0"].state, seen["worker/0"].reason) == (TaskState.HELD, why)


def test_a_released_job_waits_again() -> None:
    seen = status(worker_0=SUBMITTED + HELD + RELEASED)
    assert (seen.state, seen["worker/0"].state) == (RunState.PENDING, TaskState.PENDING)


def test_a_job_that_somebody_removed_is_cancelled() -> None:
    seen = status(worker_0=SUBMITTED + EXECUTING + ABORTED)
    assert (seen.state, seen["worker/0"].state) == (RunState.CANCELLED, TaskState.STOPPED)
    assert seen.reason == "it was removed from HTCondor's queue: via condor_rm (by user alice)"


def test_a_job_that_htcondor_starts_in_vain_is_hopeless() -> None:
    fold = Fold(["worker/0"]).take({"worker/0": parse(SUBMITTED + 2 * START_ERROR)})
    assert fold.hopeless is None
    fold = Fold(["worker/0"]).take({"worker/0": parse(SUBMITTED + 3 * START_ERROR)})
    assert fold.hopeless == ("worker/0", "Singularity test failed: could not open image /images/none.sif")


def test_a_job_that_was_tried_in_vain_and_then_ran_or_was_released_is_not_hopeless() -> None:
    for between in (EVICTED, HELD + RELEASED):
        fold = Fold(["worker/0"]).take({"worker/0": parse(SUBMITTED + 2 * START_ERROR + between + 2 * START_ERROR)})
        assert fold.hopeless is None


def test_a_job_that_htcondor_holds_since_it_was_started_in_vain_is_hopeless() -> None:
    held = HELD.replace("Code 13 Subcode 2", "Code 3 Subcode 1007")
    hopeless = Fold(["worker/0"]).take({"worker/0": parse(SUBMITTED + held)}).hopeless
    assert hopeless is not None
    assert (hopeless[0], "reading from file /share/x.dat" in hopeless[1]) == ("worker/0", True)
    assert Fold(["worker/0"]).take({"worker/0": parse(SUBMITTED + HELD)}).hopeless is None


# What tasks say


def test_the_leaders_verdict_counts_once_every_task_is_out() -> None:
    ended = said(50, event="task", task="worker/1", state="failed", attempt=[1, 1], exit_code=3, reason="exit code 3")
    verdict = said(51, event="run", state="failed", reason="worker/1 failed: exit code 3", task="worker/1")
    first, second = SUBMITTED + EXECUTING + ended + verdict, SUBMITTED + EXECUTING
    assert status(worker_0=first, worker_1=second).state is RunState.RUNNING
    first += terminated("Normal termination (return value 0)")
    second += terminated("Normal termination (return value 3)")
    seen = status(worker_0=first, worker_1=second)
    assert (seen.state, seen.reason, seen.failed_task) == (RunState.FAILED, "worker/1 failed: exit code 3", "worker/1")


# Nodes of the parallel universe, which have one log


def node(number: int) -> str:
    head = f"014 (012.000.00{number}) 2026-11-15 19:30:41 Node {number} executing on host: <10.1.7.3:9618>"
    return f"{head}\n\tSlotName: slot1_{number}@execute7\n...\n"


def parallel(log: str) -> RunStatus:
    tasks = ("worker/0", "worker/1")
    fold = Fold(tasks, is_parallel=True).take({"worker/0": parse(log)})
    return replay("run", "htcondor", tasks, fold.events)


def test_each_node_of_the_parallel_universe_has_its_slot() -> None:
    seen = parallel(SUBMITTED + node(1) + node(0) + EXECUTING)
    assert [task.host for task in seen.tasks] == ["slot1_0@execute7", "slot1_1@execute7"]
    assert [(task.state, task.restarts) for task in seen.tasks] == [(TaskState.STARTING, 0)] * 2


def test_what_happens_to_a_parallel_job_happens_to_all_its_nodes() -> None:
    seen = parallel(SUBMITTED + node(0) + node(1) + EXECUTING + EVICTED)
    assert {task.state for task in seen.tasks} == {TaskState.PENDING}
    ended = parallel(SUBMITTED + node(0) + node(1) + EXECUTING + terminated("Normal termination (return value 0)"))
    assert (ended.state, {task.state for task in ended.tasks}) == (RunState.SUCCEEDED, {TaskState.SUCCEEDED})


# Workflows, of which DAGMan's own log says when they have ended


def workflow(conductor: str, **logs: str) -> RunStatus:
    tasks = tuple(name.replace("_", "/") for name in logs)
    fold = Fold(tasks, parse(conductor)).take({name.replace("_", "/"): parse(text) for name, text in logs.items()})
    return replay("run", "htcondor", tasks, fold.events)


def test_a_workflow_goes_on_until_dagman_has_ended() -> None:
    good, bad = terminated("Normal termination (return value 0)"), terminated("Normal termination (return value 1)")
    first = SUBMITTED + EXECUTING + good
    assert workflow(SUBMITTED + EXECUTING, worker_0=first, worker_1="").state is RunState.RUNNING
    assert workflow(SUBMITTED + EXECUTING + good, worker_0=first, worker_1=first).state is RunState.SUCCEEDED
    failed = workflow(SUBMITTED + EXECUTING + bad, worker_0=SUBMITTED + EXECUTING + bad, worker_1="")
    assert (failed.state, failed.reason) == (RunState.FAILED, "worker/0 failed: exit code 1")


def test_a_workflow_that_dagman_cannot_start_has_failed() -> None:
    seen = workflow(SUBMITTED + EXECUTING + terminated("Normal termination (return value 1)"), worker_0="")
    assert seen.state is RunState.FAILED
    assert seen.reason == "HTCondor's DAGMan ended with exit code 1; its own log, *.dagman.out, says why"


def test_a_workflow_that_somebody_removed_is_cancelled() -> None:
    seen = workflow(SUBMITTED + EXECUTING + ABORTED, worker_0=SUBMITTED + EXECUTING)
    assert seen.state is RunState.CANCELLED
    assert seen.reason == "it was removed from HTCondor's queue: via condor_rm (by user alice)"


def test_clocks_that_differ_bring_no_task_back_to_life() -> None:
    ended = said(50, event="task", task="worker/1", state="succeeded", attempt=[1, 1], exit_code=0)
    late = said(55, event="task", task="worker/1", state="running", attempt=[1, 1])
    assert status(worker_0=SUBMITTED + ended, worker_1=SUBMITTED + late)["worker/1"].state is TaskState.SUCCEEDED
    next_attempt = said(55, event="task", task="worker/1", state="starting", attempt=[1, 2])
    seen = status(worker_0=SUBMITTED + ended, worker_1=SUBMITTED + next_attempt)
    assert seen["worker/1"].state is TaskState.STARTING


def test_what_a_program_writes_into_the_log_itself_is_left_alone() -> None:
    line = "008 (012.000.000) 2026-11-15 19:30:44 {0}\n...\n"
    for text in ("hello", "gridflow not json", 'gridflow "text"', "gridflow [1]"):
        assert status(worker_0=SUBMITTED + line.format(text)).state is RunState.PENDING


# The log as a file


@given(st.integers(min_value=0, max_value=2000))
def test_a_log_may_be_cut_off_anywhere(length: int) -> None:
    whole = SUBMITTED + EXECUTING + EVICTED + HELD + RELEASED + terminated("Normal termination (return value 0)")
    records = list(parse(whole[:length]))
    assert records == list(parse(whole))[: len(records)]


@given(st.text())
def test_a_log_may_hold_anything(text: str) -> None:
    list(parse(text))


def test_exit_codes_are_explained() -> None:
    assert explain(Exit(code=123)).endswith("the part of Gridflow that travels with it cannot be loaded")
    assert explain(Exit(code=7)) == "exit code 7"
