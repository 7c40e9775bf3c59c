"""Claims of real processes: waiting, holding, giving back, being asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest
from tests.gpu.hosts import HOLD, TWO_OF_8_GB, Host, until_waiting

from gridflow import gpu
from gridflow.errors import DeadlineError, PlatformError
from gridflow.gpu import Claim
from gridflow.gpu.grants import Grant
from gridflow.gpu.order import DEFAULT_ORDER
from gridflow.gpu.placement import DEFAULT_PLACEMENT
from gridflow.gpu.tickets import Ticket

BOTH = "{'gpus': 2}"


def test_a_claim_is_held_inside_its_block(host: Host) -> None:
    with gpu.claim(gpus=1) as grant:
        assert (grant.devices, grant.memory, grant.uuids) == ([0], [8192.0], ["0"])
        assert grant.reason == "GPU 0 (T4), alone"
        assert len(host.ledger.read().holdings) == 1
    assert host.ledger.read().holdings == {}


def test_a_whole_claim_can_be_given(host: Host) -> None:
    with gpu.claim(Claim(device_ids=(1,))) as grant:
        assert grant.devices == [1]
    with pytest.raises(TypeError, match="a Claim is given, and priority besides"), gpu.claim(Claim(), priority=1):
        pass


def test_get_my_device_is_as_in_the_proposal(host: Host) -> None:
    first, second = gpu.get_my_device(1, 6144.0), gpu.get_my_device(1, 6144.0)
    assert (first.devices, first.memory) == ([0], [6144.0])
    assert (second.devices, second.memory) == ([1], [6144.0])
    third = gpu.get_my_device(1, 6144.0)
    assert (third.devices, third.memory, third.is_cpu) == ([], [], True)
    assert third.reason.startswith("CPU: 1 GPU with 6144 MB, shared is not free: held by ")
    for grant in (first, second, third):
        gpu.release(grant)
    assert gpu.get_my_device(2).devices == [0, 1]


def test_a_claim_that_can_never_be_met_fails_at_once(host: Host) -> None:
    with pytest.raises(PlatformError) as caught, gpu.claim(gpus=3):
        pass
    assert str(caught.value) == "3 GPUs can never be had here: 2 of 2 GPUs will do (ask for 2 at most)"
    with gpu.claim(gpus=3, cpu_fallback=True, threads=2) as grant:
        assert (grant.is_cpu, grant.threads) == (True, 2)
        assert grant.reason == "CPU: 3 GPUs can never be had here: 2 of 2 GPUs will do"
    assert not host.ledger.folder.exists()


def test_a_wait_ends_at_its_deadline_and_says_who_was_in_the_way(host: Host) -> None:
    with gpu.claim(gpus=2, name="the other"):
        with pytest.raises(DeadlineError) as caught, gpu.claim(gpus=1, wait_seconds=0.2):
            pass
        assert str(caught.value).startswith("1 GPU was not free within 0.2 s: held by the other (")
        assert caught.value.hint == "wait longer, ask for less, or allow cpu_fallback"
        with gpu.claim(gpus=1, wait_seconds=0.2, cpu_fallback=True) as grant:
            assert grant.is_cpu
        with pytest.raises(PlatformError, match="1 GPU is not free: held by the other"), gpu.claim(wait_seconds=0):
            pass
        assert host.ledger.read().waiting == {}


def test_a_wait_ends_with_fewer_gpus_where_they_will_do(host: Host) -> None:
    with gpu.claim(gpus=1), gpu.claim(gpus=2, min_gpus=1, wait_seconds=0.1) as grant:
        assert grant.devices == [1]
        assert grant.reason == "GPU 1 (T4), alone; 1 of 2 GPUs, since no more were to be had"


def test_who_waits_gets_what_is_released(host: Host) -> None:
    with ExitStack() as programs:
        holder = programs.enter_context(host.running(HOLD, BOTH))
        assert holder.line() == "[0, 1]"
        waiter = programs.enter_context(host.running(HOLD, BOTH))
        until_waiting(host.ledger, 1)
        holder.go_on()
        assert holder.line() == "released"
        assert waiter.line() == "[0, 1]"
        waiter.go_on()
        assert waiter.line() == "released"
    assert host.ledger.read().holdings == {}


def test_who_waits_gets_what_a_killed_process_held(host: Host) -> None:
    with ExitStack() as programs:
        holder = programs.enter_context(host.running(HOLD, BOTH))
        assert holder.line() == "[0, 1]"
        waiter = programs.enter_context(host.running(HOLD, "{'gpus': 1}"))
        until_waiting(host.ledger, 1)
        holder.process.kill()
        assert waiter.line() == "[0]"


def test_who_waits_is_not_held_up_by_a_killed_process_before_it(host: Host) -> None:
    with ExitStack() as programs:
        assert programs.enter_context(host.running(HOLD, "{'gpus': 1}")).line() == "[0]"
        large = programs.enter_context(host.running(HOLD, BOTH))
        until_waiting(host.ledger, 1)
        small = programs.enter_context(host.running(HOLD, "{'gpus': 1}"))
        until_waiting(host.ledger, 2)
        large.process.kill()
        assert small.line() == "[1]"


def test_a_gang_of_processes_is_granted_together(host: Host) -> None:
    wishes = "{'gpus': 1, 'gang': 'run', 'gang_size': 2}"
    with host.running(HOLD, wishes) as first:
        until_waiting(host.ledger, 1)
        with host.running(HOLD, wishes) as second:
            assert sorted([first.line(), second.line()]) == ["[0]", "[1]"]


def test_what_is_removed_from_the_ledger_is_an_error_rather_than_an_endless_wait(host: Host) -> None:
    with gpu.claim(gpus=2), Ticket.ask(Claim()) as ticket:
        assert ticket.poll() is None
        host.ledger.file.unlink()
        with pytest.raises(PlatformError, match="the claim is no longer in the ledger"):
            ticket.wait()


# Giving back


def test_a_child_does_not_give_back_what_its_parent_holds(host: Host) -> None:
    code = """
import os
from gridflow import gpu
with gpu.claim(1):
    child = os.fork()
if child:
    os.waitpid(child, 0)
    print("both have left the block")
else:
    os._exit(0)
"""
    assert host.run(code) == "both have left the block\n"
    code = """
import os
from gridflow import gpu
from gridflow.gpu.ledger import Ledger, ledger_folder
with gpu.claim(1):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print(len(Ledger(ledger_folder(os.environ)).read().holdings))
"""
    assert host.run(code) == "1\n"


def test_what_another_process_uses_as_well_is_held_until_that_has_ended(host: Host) -> None:
    code = """
import os, subprocess, sys
from gridflow.gpu.claims import Claim
from gridflow.gpu.tickets import Ticket
ticket = Ticket.ask(Claim(gpus=2))
program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=0)
ticket.include(program.pid)
print(program.pid, flush=True)
os._exit(0)
"""
    with host.running(code) as program:
        pid = int(program.line())
        program.process.wait(60)
        assert len(host.ledger.read().holdings) == 1
        os.kill(pid, signal.SIGKILL)
        with gpu.claim(gpus=2) as grant:
            assert grant.devices == [0, 1]


def test_a_process_that_has_ended_cannot_be_included_and_does_no_harm(host: Host) -> None:
    with Ticket.ask(Claim()) as ticket, subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        ticket.include(child.pid)
        (holding,) = host.ledger.read().holdings.values()
        assert [process.pid for process in holding.request.processes] == [os.getpid()]


# Being asked to give back


def test_a_preempted_process_gets_sigterm_and_its_gpus_go_to_the_higher_priority(host: Host) -> None:
    with host.running(HOLD, "{'gpus': 2, 'preemptible': True}") as low:
        assert low.line() == "[0, 1]"
        with gpu.claim(gpus=1, priority=1) as grant:
            assert grant.devices == [0]
        assert low.process.wait(60) == -signal.SIGTERM


def test_a_preempted_process_may_save_its_work_first(host: Host) -> None:
    code = """
import os, signal, sys
from gridflow import gpu

def save(number, frame):
    # Python forbids a print that interrupts another one.
    os.write(1, b"saved\\n")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
with gpu.claim(gpus=2, preemptible=True):
    print("at work", flush=True)
    while True:
        signal.pause()
"""
    with host.running(code) as low:
        assert low.line() == "at work"
        with gpu.claim(gpus=1, priority=1):
            assert low.line() == "saved"
        assert low.process.wait(60) == 0


def test_a_lease_that_ends_while_somebody_waits_is_ended(host: Host) -> None:
    with host.running(HOLD, "{'gpus': 2, 'priority': 5, 'lease_seconds': 2}") as holder:
        assert holder.line() == "[0, 1]"
        with gpu.claim(gpus=1):
            assert holder.process.wait(60) == -signal.SIGTERM


def test_a_process_that_nobody_wants_to_go_keeps_what_it_has(host: Host) -> None:
    with host.running(HOLD, "{'gpus': 2, 'preemptible': True, 'priority': 1}") as holder:
        assert holder.line() == "[0, 1]"
        with pytest.raises(DeadlineError), gpu.claim(gpus=1, priority=1, wait_seconds=0.2):
            pass
        holder.go_on()
        assert holder.line() == "released"


# Inside a task


def test_claims_inside_a_task_divide_its_grant(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpu.claim(gpus=1, memory_per_gpu_mb=4096, shared=True) as grant, monkeypatch.context() as task:
        for name, value in grant.environment.items():
            task.setenv(name, value)
        first, second = gpu.get_my_device(1, 3000.0), gpu.get_my_device(1, 3000.0)
        assert (first.devices, first.memory, second.devices) == ([0], [3000.0], [])
        assert first.uuids == grant.uuids
        assert gpu.get_my_device(1, 1000.0).memory == [1000.0]


def test_policies_are_those_of_the_declaration(host: Host) -> None:
    host.declare('order = "fair"\nplacement = "spread"\n' + TWO_OF_8_GB)
    with gpu.claim(1):
        shares = host.ledger.read()
    assert (shares.order, shares.placement) == ("fair", "spread")
    first, second = gpu.get_my_device(1, 1000.0), gpu.get_my_device(1, 1000.0)
    assert sorted([first.devices, second.devices]) == [[0], [1]]


def test_policies_of_the_declaration_hold_for_claims_inside_a_task_and_end_with_it(host: Host) -> None:
    host.declare('order = "fair"\nplacement = "spread"\n' + TWO_OF_8_GB)
    with gpu.claim(1) as grant, pytest.MonkeyPatch.context() as task:
        for name, value in grant.environment.items():
            task.setenv(name, value)
        with gpu.claim(gpus=0.5):
            shares = host.ledger.read()
    assert (shares.order, shares.placement) == ("fair", "spread")
    host.declare(TWO_OF_8_GB)
    with gpu.claim(1):
        shares = host.ledger.read()
    assert (shares.order, shares.placement) == (DEFAULT_ORDER, DEFAULT_PLACEMENT)


def test_a_grant_survives_its_way_through_the_environment(host: Host) -> None:
    with gpu.claim(gpus=0.5, growth=True, mb_per_sample=10, fixed_mb=96) as grant:
        assert Grant.read(grant.environment) == grant
        assert grant.max_batch == 400
