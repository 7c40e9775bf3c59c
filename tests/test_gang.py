from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gridflow.gang import MAX_PORT_RETRIES, Finish, Gang, Instruction, Launch, Stop
from gridflow.job import GROUPS, Group, Job, Program, Timeouts
from gridflow.state import Exit, RunState, TaskState

SUCCESS = Exit(code=0)
FAILURE = Exit(code=1)
TERMINATED = Exit(signal="SIGTERM")
KILLED = Exit(signal="SIGKILL")

TIMEOUTS = Timeouts(start_seconds=20, evaluator_seconds=30)


def job_of(max_restarts: int = 0, serve: tuple[str, ...] = (), run_seconds: float | None = None, **counts: int) -> Job:
    timeouts = Timeouts(run_seconds, TIMEOUTS.start_seconds, evaluator_seconds=TIMEOUTS.evaluator_seconds)
    groups = tuple(Group(name, counts[name]) for name in GROUPS if counts.get(name))
    return Job("x", Program("module", "x"), groups, max_restarts=max_restarts, serve=serve, timeouts=timeouts)


def running(job: Job, unjoined: Iterable[str] = ()) -> Gang:
    """Return a gang that started at 0, whose tasks have joined."""
    gang = Gang(job)
    gang.start(0)
    for task in job.tasks:
        if task not in unjoined:
            gang.joined(task)
    return gang


def end_all(gang: Gang, *tasks: str, exit_: Exit = TERMINATED, now: float = 1) -> list[Instruction]:
    """Let tasks end one after the other and return what is to be done after the last."""
    instructions: list[Instruction] = []
    for task in tasks:
        assert instructions == []
        instructions = gang.ended(task, exit_, now)
    return instructions


def test_a_run_starts_with_all_tasks() -> None:
    gang = Gang(job_of(chief=1, worker=2, ps=1))
    assert gang.start(0) == [Launch(("chief/0", "worker/0", "worker/1", "ps/0"))]
    assert set(gang.states.values()) == {TaskState.PENDING}
    gang.joined("ps/0")
    assert gang.states["ps/0"] is TaskState.RUNNING


# When the work is done


def test_a_run_succeeds_when_its_workers_have() -> None:
    gang = running(job_of(worker=2))
    assert gang.ended("worker/1", SUCCESS, 1) == []
    assert gang.ended("worker/0", SUCCESS, 2) == [Finish(RunState.SUCCEEDED)]


def test_chief_and_workers_decide_together() -> None:
    gang = running(job_of(chief=1, worker=1))
    assert gang.ended("chief/0", SUCCESS, 1) == []
    assert gang.ended("worker/0", SUCCESS, 2) == [Finish(RunState.SUCCEEDED)]


@pytest.mark.parametrize(
    "job", [job_of(chief=1, worker=2, ps=1), job_of(chief=1, worker=2, serve=("worker",))], ids=["ps", "served workers"]
)
def test_a_chief_that_drives_servers_decides_alone(job: Job) -> None:
    gang = running(job)
    servers = job.tasks[1:]
    assert gang.ended("chief/0", SUCCESS, 1) == [Stop(servers, "training has ended")]
    assert end_all(gang, *servers) == [Finish(RunState.SUCCEEDED)]


def test_services_are_stopped_when_training_has_ended() -> None:
    gang = running(job_of(worker=1, ps=2, data=1, tensorboard=1))
    services = ("ps/0", "ps/1", "data/0", "tensorboard/0")
    assert gang.ended("worker/0", SUCCESS, 1) == [Stop(services, "training has ended")]
    assert gang.tick(2) == []
    assert end_all(gang, *services) == [Finish(RunState.SUCCEEDED)]
    assert {gang.states[task] for task in services} == {TaskState.STOPPED}


def test_a_service_that_obeys_with_exit_code_0_was_stopped_all_the_same() -> None:
    gang = running(job_of(worker=1, ps=1))
    gang.ended("worker/0", SUCCESS, 1)
    assert gang.ended("ps/0", SUCCESS, 2) == [Finish(RunState.SUCCEEDED)]
    assert gang.states["ps/0"] is TaskState.STOPPED


def test_a_service_that_ends_by_itself_before_training_does_no_harm() -> None:
    gang = running(job_of(worker=1, ps=1))
    assert gang.ended("ps/0", SUCCESS, 1) == []
    assert gang.ended("worker/0", SUCCESS, 2) == [Finish(RunState.SUCCEEDED)]


def test_the_evaluator_may_finish_and_then_the_services_are_stopped() -> None:
    gang = running(job_of(worker=1, ps=1, evaluator=1))
    assert gang.ended("worker/0", SUCCESS, 10) == []
    assert gang.tick(39) == []
    assert gang.ended("evaluator/0", SUCCESS, 39) == [Stop(("ps/0",), "training has ended")]
    assert gang.ended("ps/0", TERMINATED, 40) == [Finish(RunState.SUCCEEDED)]


def test_the_evaluator_is_stopped_when_its_time_is_up() -> None:
    gang = running(job_of(worker=1, ps=1, evaluator=1))
    gang.ended("worker/0", SUCCESS, 10)
    assert gang.tick(40) == [Stop(("ps/0", "evaluator/0"), "training has ended")]
    assert gang.tick(41) == []
    assert end_all(gang, "evaluator/0", "ps/0") == [Finish(RunState.SUCCEEDED)]


@pytest.mark.parametrize("task", ["ps/0", "worker/0", "tensorboard/0"])
@pytest.mark.parametrize("exit_", [KILLED, FAILURE], ids=str)
def test_a_server_that_fails_after_training_has_ended_does_not_matter(task: str, exit_: Exit) -> None:
    gang = running(job_of(chief=1, worker=1, ps=1, evaluator=1, tensorboard=1, max_restarts=3))
    gang.ended("chief/0", SUCCESS, 1)
    assert gang.ended(task, exit_, 2) == []
    others = tuple(other for other in ("worker/0", "ps/0", "tensorboard/0") if other != task)
    assert gang.ended("evaluator/0", SUCCESS, 3) == [Stop(others, "training has ended")]
    assert end_all(gang, *others) == [Finish(RunState.SUCCEEDED)]


def test_an_evaluator_that_fails_after_training_has_ended_fails_the_run() -> None:
    gang = running(job_of(worker=1, evaluator=1))
    gang.ended("worker/0", SUCCESS, 1)
    assert gang.ended("evaluator/0", FAILURE, 2) == [
        Finish(RunState.FAILED, "evaluator/0 failed: exit code 1", "evaluator/0")
    ]


# When a deciding task fails


def test_a_deciding_task_that_fails_ends_the_attempt() -> None:
    gang = running(job_of(worker=3, ps=1))
    reason = "worker/1 failed: exit code 1"
    assert gang.ended("worker/1", FAILURE, 1) == [Stop(("worker/0", "worker/2", "ps/0"), reason, is_patient=False)]
    assert end_all(gang, "worker/0", "worker/2", "ps/0") == [Finish(RunState.FAILED, reason, "worker/1")]
    assert gang.states == {
        "worker/0": TaskState.STOPPED,
        "worker/1": TaskState.FAILED,
        "worker/2": TaskState.STOPPED,
        "ps/0": TaskState.STOPPED,
    }


def test_a_task_without_company_fails_at_once() -> None:
    gang = running(job_of(worker=1))
    assert gang.ended("worker/0", KILLED, 1) == [
        Finish(
            RunState.FAILED,
            "worker/0 failed: killed by SIGKILL (by a person, or by the system when memory ran out)",
            "worker/0",
        )
    ]


def test_how_a_task_failed_is_said_in_more_words_where_they_are_known() -> None:
    gang = running(job_of(worker=1))
    assert gang.ended("worker/0", FAILURE, 1, how="ValueError: no data") == [
        Finish(RunState.FAILED, "worker/0 failed: ValueError: no data", "worker/0")
    ]


def test_the_first_to_say_that_it_fails_is_named_whoever_ends_first() -> None:
    gang = running(job_of(worker=3))
    reason = "worker/2 failed: ValueError: no data"
    assert gang.failing("worker/2", "ValueError: no data", 1) == [
        Stop(("worker/0", "worker/1"), reason, is_patient=False)
    ]
    assert gang.failing("worker/0", "UnavailableError: worker/2 is gone", 2) == []
    assert gang.ended("worker/0", FAILURE, 3) == []
    assert gang.ended("worker/1", TERMINATED, 4) == []
    assert gang.ended("worker/2", FAILURE, 5) == [Finish(RunState.FAILED, reason, "worker/2")]
    assert gang.states["worker/2"] is TaskState.FAILED


def test_a_task_that_somebody_killed_was_first_even_if_a_peer_is_heard_of_before() -> None:
    gang = running(job_of(worker=3))
    gang.failing("worker/0", "UnavailableError: worker/1 is gone", 1)
    assert gang.failing("worker/1", "killed by SIGKILL", 2, was_killed=True) == []
    assert gang.failing("worker/2", "killed by SIGKILL", 3, was_killed=True) == []
    assert end_all(gang, "worker/0", "worker/1", exit_=KILLED) == []
    assert gang.ended("worker/2", TERMINATED, 4) == [
        Finish(RunState.FAILED, "worker/1 failed: killed by SIGKILL", "worker/1")
    ]
    assert gang.states["worker/1"] is TaskState.FAILED


def test_a_task_that_is_killed_while_the_run_is_cancelled_is_not_blamed() -> None:
    gang = running(job_of(worker=2))
    gang.cancel("it was cancelled", 1)
    assert gang.failing("worker/0", "killed by SIGKILL", 2, was_killed=True) == []
    assert end_all(gang, "worker/0", "worker/1") == [Finish(RunState.CANCELLED, "it was cancelled")]


def test_all_start_again_after_a_failure_up_to_max_restarts_times() -> None:
    job = job_of(worker=2, ps=1, max_restarts=2)
    gang = running(job)
    for restart in (1, 2):
        reason = "worker/0 failed: exit code 1"
        assert gang.ended("worker/0", FAILURE, 1) == [Stop(("worker/1", "ps/0"), reason, is_patient=False)]
        assert end_all(gang, "worker/1", "ps/0") == [Launch(job.tasks, reason=reason)]
        assert (gang.restarts, gang.restarts_of("ps/0")) == (restart, restart)
        assert set(gang.states.values()) == {TaskState.PENDING}
        for task in job.tasks:
            gang.joined(task)
    gang.ended("worker/1", KILLED, 2)
    [finish] = end_all(gang, "worker/0", "ps/0")
    assert isinstance(finish, Finish)
    assert (finish.state, finish.task, gang.restarts) == (RunState.FAILED, "worker/1", 2)


def test_a_restarted_run_can_succeed() -> None:
    gang = running(job_of(worker=1, max_restarts=1))
    assert gang.ended("worker/0", FAILURE, 1) == [Launch(("worker/0",), reason="worker/0 failed: exit code 1")]
    gang.joined("worker/0")
    assert gang.ended("worker/0", SUCCESS, 2) == [Finish(RunState.SUCCEEDED)]


def test_a_run_whose_worker_failed_after_another_succeeded_has_not_succeeded() -> None:
    gang = running(job_of(worker=2))
    gang.ended("worker/0", SUCCESS, 1)
    assert gang.ended("worker/1", FAILURE, 2) == [Finish(RunState.FAILED, "worker/1 failed: exit code 1", "worker/1")]


# When any other task fails


@pytest.mark.parametrize("task", ["ps/0", "data/0", "evaluator/0", "tensorboard/0", "worker/1"])
def test_any_other_task_starts_again_alone_at_its_address(task: str) -> None:
    gang = running(job_of(chief=1, worker=2, ps=1, data=1, evaluator=1, tensorboard=1, max_restarts=2))
    for restart in (1, 2):
        assert gang.failing(task, "OSError", 1) == []
        assert gang.ended(task, FAILURE, 2) == [
            Launch((task,), keep_address=True, reason=f"{task} failed: exit code 1")
        ]
        assert (gang.restarts, gang.restarts_of(task), gang.restarts_of("chief/0")) == (0, restart, 0)
        assert gang.states[task] is TaskState.PENDING
        gang.joined(task)
    assert gang.states["chief/0"] is TaskState.RUNNING


@pytest.mark.parametrize("task", ["ps/0", "data/0", "evaluator/0"])
def test_any_other_task_fails_the_run_when_it_may_not_start_again(task: str) -> None:
    gang = running(job_of(worker=1, ps=1, data=1, evaluator=1))
    reason = f"{task} failed: exit code 1"
    others = tuple(other for other in gang.job.tasks if other != task)
    assert gang.ended(task, FAILURE, 1) == [Stop(others, reason, is_patient=False)]
    assert end_all(gang, *others) == [Finish(RunState.FAILED, reason, task)]


def test_tensorboard_never_fails_a_run() -> None:
    gang = running(job_of(worker=1, tensorboard=1))
    assert gang.ended("tensorboard/0", FAILURE, 1) == []
    assert gang.states["tensorboard/0"] is TaskState.FAILED


def test_tensorboard_whose_host_is_lost_is_let_go() -> None:
    gang = running(job_of(worker=1, tensorboard=1, max_restarts=3))
    assert gang.ended("tensorboard/0", FAILURE, 1, is_host_lost=True) == []
    assert gang.states["tensorboard/0"] is TaskState.FAILED
    assert gang.states["worker/0"] is TaskState.RUNNING
    assert gang.ended("worker/0", SUCCESS, 2) == [Finish(RunState.SUCCEEDED)]


@pytest.mark.parametrize("task", ["ps/0", "tensorboard/0"])
def test_any_task_that_fails_before_it_has_joined_ends_the_attempt_since_all_wait_for_it(task: str) -> None:
    job = job_of(worker=1, ps=1, tensorboard=1, max_restarts=1)
    gang = running(job, unjoined=[task])
    others = tuple(other for other in job.tasks if other != task)
    reason = f"{task} failed: exit code 1"
    assert gang.ended(task, FAILURE, 1) == [Stop(others, reason, is_patient=False)]
    assert end_all(gang, *others) == [Launch(job.tasks, reason=reason)]
    assert gang.restarts == 1
    assert gang.ended(task, FAILURE, 2) == [Stop(others, reason, is_patient=False)]
    assert end_all(gang, *others) == [Finish(RunState.FAILED, reason, task)]


# Ports


@pytest.mark.parametrize("task", ["worker/0", "ps/0"])
def test_a_port_that_somebody_took_costs_nobody_a_restart(task: str) -> None:
    job = job_of(worker=1, ps=1)
    gang = running(job)
    (other,) = set(job.tasks) - {task}
    for _ in range(MAX_PORT_RETRIES):
        reason = f"{task} failed: port taken"
        assert gang.ended(task, FAILURE, 1, how="port taken", port_taken=True) == [
            Stop((other,), reason, is_patient=False)
        ]
        assert gang.ended(other, TERMINATED, 2) == [Launch(job.tasks, reason=reason)]
        assert (gang.restarts, gang.restarts_of(task)) == (0, 0)
        for each in job.tasks:
            gang.joined(each)
    gang.ended(task, FAILURE, 3, how="port taken", port_taken=True)
    assert gang.ended(other, TERMINATED, 4) == [Finish(RunState.FAILED, f"{task} failed: port taken", task)]


def test_evictions_cost_nobody_a_restart_however_many_there_are() -> None:
    job = job_of(worker=2)
    gang = running(job)
    reason = "worker/1 failed: it was evicted"
    for _ in range(MAX_PORT_RETRIES * 3):
        assert gang.evicted("worker/1", "it was evicted", 1) == [Stop(("worker/0",), reason, is_patient=False)]
        assert gang.ended("worker/0", TERMINATED, 2) == [Launch(job.tasks, reason=reason)]
        assert gang.restarts == 0
        for task in job.tasks:
            gang.joined(task)


def test_a_task_that_fails_for_lack_of_one_that_was_evicted_is_not_to_blame() -> None:
    job = job_of(worker=2)
    gang = running(job)
    gang.failing("worker/0", "UnavailableError: connection reset", 1)
    gang.ended("worker/0", FAILURE, 2)
    [launch] = gang.evicted("worker/1", "it was evicted", 3)
    assert launch == Launch(job.tasks, reason="worker/1 failed: it was evicted")


def test_a_service_that_is_evicted_after_the_work_is_not_needed() -> None:
    gang = running(job_of(worker=1, ps=2))
    gang.ended("worker/0", SUCCESS, 1)
    assert gang.evicted("ps/0", "it was evicted", 2) == []
    assert gang.ended("ps/1", TERMINATED, 3) == [Finish(RunState.SUCCEEDED)]


def test_a_run_that_is_cancelled_does_not_start_again_for_an_eviction() -> None:
    gang = running(job_of(worker=1))
    gang.cancel("it was cancelled", 1)
    assert gang.evicted("worker/0", "it was evicted", 2) == [Finish(RunState.CANCELLED, "it was cancelled")]


def test_a_port_that_is_always_taken_counts_as_a_failure_in_the_end() -> None:
    gang = running(job_of(worker=1, max_restarts=1))
    for _ in range(MAX_PORT_RETRIES):
        gang.ended("worker/0", FAILURE, 1, port_taken=True)
    assert gang.restarts == 0
    gang.ended("worker/0", FAILURE, 1, port_taken=True)
    assert gang.restarts == 1


def test_a_program_may_complain_of_its_port_before_it_ends() -> None:
    job = job_of(worker=2)
    gang = running(job)
    gang.failing("worker/1", "UnknownError: Could not start gRPC server", 1)
    assert gang.ended("worker/0", TERMINATED, 2) == []
    [launch] = gang.ended("worker/1", FAILURE, 3, port_taken=True)
    assert isinstance(launch, Launch)
    assert (launch.tasks, gang.restarts) == (job.tasks, 0)


def test_after_new_ports_the_work_is_not_done_until_it_is_done_again() -> None:
    job = job_of(worker=1, evaluator=1, ps=1)
    gang = running(job)
    gang.ended("worker/0", SUCCESS, 1)
    gang.ended("evaluator/0", FAILURE, 2, port_taken=True)
    assert gang.ended("ps/0", TERMINATED, 3) == [Launch(job.tasks, reason="evaluator/0 failed: exit code 1")]
    for task in job.tasks:
        gang.joined(task)
    reason = "ps/0 failed: exit code 1"
    assert gang.ended("ps/0", FAILURE, 4) == [Stop(("worker/0", "evaluator/0"), reason, is_patient=False)]


def test_the_port_of_a_task_that_was_stopped_is_nobodys_concern() -> None:
    gang = running(job_of(worker=2))
    gang.ended("worker/0", FAILURE, 1)
    assert gang.ended("worker/1", FAILURE, 2, port_taken=True) == [
        Finish(RunState.FAILED, "worker/0 failed: exit code 1", "worker/0")
    ]


def test_a_run_that_timed_out_does_not_start_again_for_a_port() -> None:
    gang = running(job_of(worker=1), unjoined=["worker/0"])
    gang.tick(20)
    assert gang.ended("worker/0", FAILURE, 21, port_taken=True) == [
        Finish(RunState.TIMED_OUT, "worker/0 never joined within 20 s", "worker/0")
    ]


# Cancelling


def test_a_cancelled_run_stops_all_and_ends_when_they_are_gone() -> None:
    gang = running(job_of(worker=2, ps=1, max_restarts=3))
    assert gang.cancel("it was cancelled", 1) == [Stop(("worker/0", "worker/1", "ps/0"), "it was cancelled")]
    assert gang.tick(100) == []
    assert gang.failing("worker/0", "KeyboardInterrupt", 101) == []
    assert end_all(gang, "worker/0", exit_=FAILURE) == []
    assert end_all(gang, "worker/1", "ps/0") == [Finish(RunState.CANCELLED, "it was cancelled")]


def test_cancelling_wins_over_a_restart_that_was_to_come() -> None:
    gang = running(job_of(worker=2, max_restarts=3))
    gang.ended("worker/0", FAILURE, 1)
    assert gang.cancel("it was cancelled", 2) == []
    assert gang.ended("worker/1", TERMINATED, 3) == [Finish(RunState.CANCELLED, "it was cancelled")]


def test_cancelling_stops_a_task_that_takes_its_time_to_fail() -> None:
    gang = running(job_of(worker=2))
    gang.failing("worker/0", "ValueError", 1)
    assert gang.cancel("it was cancelled", 2) == [Stop(("worker/0",), "it was cancelled")]
    assert gang.cancel("it was cancelled", 3) == []
    assert end_all(gang, "worker/0", "worker/1") == [Finish(RunState.CANCELLED, "it was cancelled")]


def test_a_cancelled_run_stays_cancelled_when_its_deadline_passes() -> None:
    gang = running(job_of(worker=1, run_seconds=60))
    gang.cancel("it was cancelled", 59)
    assert gang.tick(60) == []
    assert gang.ended("worker/0", TERMINATED, 61) == [Finish(RunState.CANCELLED, "it was cancelled")]


# Deadlines


def test_a_task_that_never_joins_is_named_when_the_deadline_has_passed() -> None:
    gang = running(job_of(worker=3, max_restarts=3), unjoined=["worker/1", "worker/2"])
    assert gang.tick(19.9) == []
    reason = "worker/1, worker/2 never joined within 20 s"
    assert gang.tick(20) == [Stop(("worker/0", "worker/1", "worker/2"), reason)]
    assert end_all(gang, "worker/0", "worker/1", "worker/2") == [Finish(RunState.TIMED_OUT, reason, "worker/1")]


def test_many_tasks_that_never_joined_are_counted() -> None:
    gang = running(job_of(worker=8), unjoined=[f"worker/{index}" for index in range(8)])
    [stop] = gang.tick(20)
    assert isinstance(stop, Stop)
    assert stop.reason == ("worker/0, worker/1, worker/2, worker/3, worker/4 and 3 more never joined within 20 s")


def test_a_task_that_came_back_alone_must_join_in_time_too() -> None:
    gang = running(job_of(worker=1, ps=1, max_restarts=1))
    gang.ended("ps/0", FAILURE, 100)
    assert gang.tick(119) == []
    [stop] = gang.tick(120)
    assert isinstance(stop, Stop)
    assert stop.reason == "ps/0 never joined within 20 s"


def test_a_task_that_is_being_stopped_need_not_join_any_more() -> None:
    gang = running(job_of(worker=1, ps=1, max_restarts=1))
    gang.ended("ps/0", FAILURE, 100)
    gang.ended("worker/0", SUCCESS, 110)
    assert gang.tick(120) == []
    assert gang.ended("ps/0", TERMINATED, 121) == [Finish(RunState.SUCCEEDED)]


def test_every_attempt_has_its_own_time_to_join() -> None:
    gang = running(job_of(worker=1, max_restarts=1))
    gang.ended("worker/0", FAILURE, 100)
    assert gang.tick(119) == []
    assert len(gang.tick(120)) == 1


def test_the_deadline_of_the_run_names_who_still_ran() -> None:
    gang = running(job_of(worker=2, run_seconds=60, max_restarts=3))
    gang.ended("worker/1", SUCCESS, 10)
    assert gang.tick(59) == []
    reason = "the deadline of 60 s passed while worker/0 still ran"
    assert gang.tick(60) == [Stop(("worker/0",), reason)]
    assert gang.tick(61) == []
    assert gang.ended("worker/0", TERMINATED, 62) == [Finish(RunState.TIMED_OUT, reason)]


def test_the_deadline_of_the_run_holds_across_restarts() -> None:
    gang = running(job_of(worker=2, run_seconds=60, max_restarts=3))
    gang.ended("worker/0", FAILURE, 59)
    assert gang.tick(60) == []
    [finish] = gang.ended("worker/1", TERMINATED, 61)
    reason = "the deadline of 60 s passed after worker/0 failed: exit code 1"
    assert finish == Finish(RunState.TIMED_OUT, reason, "worker/0")


def test_a_deadline_that_passes_while_a_failed_run_winds_down_does_not_hide_the_failure() -> None:
    gang = running(job_of(worker=2, run_seconds=60))
    gang.ended("worker/0", FAILURE, 59)
    assert gang.tick(60) == []
    assert gang.ended("worker/1", TERMINATED, 61) == [
        Finish(RunState.FAILED, "worker/0 failed: exit code 1", "worker/0")
    ]


# Anything in any order


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    counts = {
        "chief": draw(st.integers(0, 1)),
        "worker": draw(st.integers(0, 3)),
        "ps": draw(st.integers(0, 2)),
        "evaluator": draw(st.integers(0, 1)),
        "data": draw(st.integers(0, 2)),
        "tensorboard": draw(st.integers(0, 1)),
    }
    if counts["ps"] or not counts["chief"]:
        counts["worker"] = max(1, counts["worker"])
    can_serve = [name for name in ("ps", "worker") if counts[name] and (name == "ps" or counts["chief"])]
    return job_of(
        max_restarts=draw(st.integers(0, 2)),
        serve=tuple(draw(st.sets(st.sampled_from(can_serve)))) if can_serve else (),
        run_seconds=draw(st.none() | st.just(60.0)),
        **counts,
    )


class GangInAFakeWorld(RuleBasedStateMachine):
    """Performs what the gang asks for, lets anything happen to the tasks, and watches the gang's promises."""

    def __init__(self) -> None:
        super().__init__()
        self.finish: Finish | None = Finish(RunState.SUCCEEDED)

    @initialize(job=jobs())
    def start(self, job: Job) -> None:
        self.job = job
        self.gang = Gang(job)
        self.now = 0.0
        self.finish = None
        self.is_cancelled = False
        self.gang_launches = 0
        self.lone_launches = dict.fromkeys(job.tasks, 0)
        chief_decides = job.group("chief") and (job.group("ps") or "worker" in job.serve)
        self.deciding = {
            task
            for task in job.tasks
            if task.startswith("chief/") or (task.startswith("worker/") and not chief_decides)
        }
        self.alive: set[str] = set()
        self._new_attempt()
        self.perform(self.gang.start(self.now))

    def _new_attempt(self) -> None:
        self.joined: set[str] = set()
        self.awaited = set(self.job.tasks)
        self.missing: set[str] = set()
        self.stopping: set[str] = set()
        self.succeeded: set[str] = set()
        self.has_been_left_alone: str | None = None
        self.first_failure: str | None = None
        self.first_was_killed = False

    def perform(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            assert self.finish is None
            match instruction:
                case Launch(tasks, keep_address):
                    assert not self.alive & set(tasks)
                    if keep_address:
                        assert len(tasks) == 1
                        assert set(tasks) <= self.joined, "it has no address to keep"
                        assert not self.is_cancelled
                        self.lone_launches[tasks[0]] += 1
                        self.awaited.update(tasks)
                    else:
                        assert tasks == self.job.tasks
                        assert not self.alive
                        assert not self.is_cancelled
                        self.gang_launches += 1
                        self._new_attempt()
                    self.alive.update(tasks)
                case Stop(tasks):
                    assert tasks
                    assert set(tasks) <= self.alive
                    assert not self.stopping & set(tasks), "stopped twice"
                    self.stopping.update(tasks)
                case Finish():
                    self.finish = instruction
                    self._check_finish(instruction)

    def _check_finish(self, finish: Finish) -> None:
        assert not self.alive
        assert finish.state.is_ended
        assert (finish.state is RunState.CANCELLED) == self.is_cancelled
        match finish.state:
            case RunState.SUCCEEDED:
                assert self.deciding <= self.succeeded
                assert finish == Finish(RunState.SUCCEEDED)
            case RunState.FAILED:
                assert finish.task == self.first_failure
                assert finish.reason.startswith(f"{finish.task} failed: ")
                assert finish.task != "tensorboard/0" or finish.task not in self.joined
            case RunState.TIMED_OUT:
                assert finish.task in {None, self.first_failure, *self.missing}

    @rule(job=jobs())
    @precondition(lambda self: self.finish is not None)
    def start_another_run(self, job: Job) -> None:
        self.start(job)

    def _draw_task(self, data: st.DataObject, tasks: Iterable[str]) -> str:
        return data.draw(st.sampled_from(sorted(tasks)), label="task")

    @rule(data=st.data())
    @precondition(lambda self: self.finish is None and self.alive & self.awaited)
    def join(self, data: st.DataObject) -> None:
        self._join(self._draw_task(data, self.alive & self.awaited))

    @rule()
    @precondition(lambda self: self.finish is None and self.alive & self.awaited)
    def all_join(self) -> None:
        for task in sorted(self.alive & self.awaited):
            self._join(task)

    def _join(self, task: str) -> None:
        self.awaited.remove(task)
        self.joined.add(task)
        self.gang.joined(task)

    @rule(data=st.data(), was_killed=st.booleans())
    @precondition(lambda self: self.finish is None and self.alive)
    def say_that_it_fails(self, data: st.DataObject, was_killed: bool) -> None:
        task = self._draw_task(data, self.alive)
        instructions = self.gang.failing(task, "ValueError", self.now, was_killed=was_killed)
        if self.first_failure is None and task in self.deciding and task not in self.stopping:
            self.first_failure = self.has_been_left_alone = task
            self.first_was_killed = was_killed
        elif {task, self.first_failure} <= self.deciding and was_killed and not self.first_was_killed:
            self.first_failure = task
            self.first_was_killed = True
        self.perform(instructions)

    @rule(data=st.data(), exit_=st.sampled_from([SUCCESS, FAILURE, TERMINATED, KILLED]), port_taken=st.booleans())
    @precondition(lambda self: self.finish is None and self.alive)
    def end(self, data: st.DataObject, exit_: Exit, port_taken: bool) -> None:
        self._end(self._draw_task(data, self.alive), exit_, port_taken=port_taken and not exit_.is_success)

    def _end(self, task: str, exit_: Exit, *, port_taken: bool = False) -> None:
        self.alive.remove(task)
        was_stopped = task in self.stopping
        self.stopping.discard(task)
        work_was_done = self.deciding <= self.succeeded
        instructions = self.gang.ended(task, exit_, self.now, port_taken=port_taken)
        if exit_.is_success and not was_stopped:
            self.succeeded.add(task)
        elif not was_stopped and self.first_failure is None:
            comes_back = any(isinstance(each, Launch) and each.keep_address for each in instructions)
            is_let_go = task == "tensorboard/0" and task in self.joined
            is_needed_no_more = work_was_done and task != "evaluator/0"
            if not (comes_back or is_let_go or is_needed_no_more):
                self.first_failure = task
        self.perform(instructions)

    @rule(data=st.data())
    @precondition(lambda self: self.finish is None and self.stopping)
    def obey(self, data: st.DataObject) -> None:
        self._end(self._draw_task(data, self.stopping), TERMINATED)

    @rule(seconds=st.sampled_from([1.0, 15.0, 40.0]))
    @precondition(lambda self: self.finish is None)
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        missing = (self.alive & self.awaited) - self.stopping
        instructions = self.gang.tick(self.now)
        if any(isinstance(each, Stop) and "never joined" in each.reason for each in instructions):
            self.missing = missing
        self.perform(instructions)

    @rule()
    @precondition(lambda self: self.finish is None)
    def cancel(self) -> None:
        self.is_cancelled = True
        self.perform(self.gang.cancel("it was cancelled", self.now))

    @invariant()
    def the_gang_knows_who_lives(self) -> None:
        assert {task for task, state in self.gang.states.items() if not state.is_ended} == self.alive

    @invariant()
    def a_run_goes_on_as_long_as_a_task_lives_and_no_longer(self) -> None:
        assert bool(self.alive) == (self.finish is None)

    @invariant()
    def restarts_are_bounded(self) -> None:
        assert self.gang.restarts <= self.job.max_restarts
        assert self.gang_launches <= 1 + self.gang.restarts + MAX_PORT_RETRIES
        assert all(count <= self.job.max_restarts for count in self.lone_launches.values())
        for task in self.job.tasks:
            assert self.gang.restarts_of(task) == self.gang.restarts + self.lone_launches[task]

    @invariant()
    def all_others_are_stopped_once_a_task_has_failed(self) -> None:
        if self.first_failure:
            assert self.alive - self.stopping <= {self.has_been_left_alone}

    def teardown(self) -> None:
        # Whatever has happened: with tasks that obey or succeed, and with time, the run comes to its end.
        for _ in range(200):
            if self.finish is not None:
                return
            if self.stopping:
                self._end(min(self.stopping), TERMINATED)
            elif self.alive & self.deciding:
                self._end(min(self.alive & self.deciding), SUCCESS)
            else:
                self.let_time_pass(40.0)
        raise AssertionError(f"the run has not ended: {self.gang.states}")


TestAnythingInAnyOrder = GangInAFakeWorld.TestCase
TestAnythingInAnyOrder.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
