"""What a task claims of the GPUs of its host. Loaded only in tasks that need one."""

from __future__ import annotations

from dataclasses import replace

from gridflow.gpu.claims import Claim
from gridflow.job import Job
from gridflow.rendezvous.roster import Roster
from gridflow.task.identity import TaskIdentity


def claim_of(job: Job, roster: Roster, identity: TaskIdentity) -> Claim:
    """Return the claim of a task that needs GPUs.

    It is granted together with those of the run's other tasks on the same host. Otherwise two runs could each hold half
    of what they need, and wait for each other.
    """
    neighbours = [
        task
        for task in job.tasks
        if job.group_of(task).resources.gpus and roster[task].host == roster[identity.task].host
    ]
    # A task that comes back alone, to the port that it had, finds the others at work.
    is_alone = identity.port is not None or len(neighbours) == 1
    claim = Claim.of_resources(
        job.group_of(identity.task).resources,
        name=f"{identity.run} {identity.task}",
        wait_seconds=job.timeouts.start_seconds,
        gang="" if is_alone else identity.run,
        gang_size=1 if is_alone else len(neighbours),
    )
    if not identity.devices or claim.is_fraction:
        return claim
    chosen = tuple(int(name) if name.isdigit() else name for name in identity.devices)
    return replace(claim, gpus=None, device_ids=chosen)
