from __future__ import annotations

import pytest

from gridflow.platforms.htcondor_holds import HINTS, MEANINGS, Hold


@pytest.mark.parametrize(
    ("hold", "said"),
    [
        (
            Hold(34, 0, "Error from slot1_6@pool: Job has gone over cgroup memory limit of 2048 megabytes. Peak usage: "
                 "2050 megabytes.  Consider resubmitting with a higher request_memory."),
            "it needs more memory than it asked for: Job has gone over cgroup memory limit of 2048 megabytes. Peak "
            "usage: 2050 megabytes.  Consider resubmitting with a higher request_memory. "
            '(ask for more: memory = "3200 MB")',
        ),
        (
            Hold(13, 2, "Transfer input files failure at access point pool while sending files to execution point "
                 "slot1_1@pool. Details: reading from file /images/none.sif: (errno 2) No such file or directory"),
            "files cannot be brought to the slot: reading from file /images/none.sif: (errno 2) No such file or "
            "directory (is the path right, and may you read it?)",
        ),
        (Hold(1), "a person holds it (`condor_release` lets it go on)"),
        (
            Hold(3, 42, "The job attribute PeriodicHold expression 'true' evaluated to TRUE"),
            "the job's own policy holds it: The job attribute PeriodicHold expression 'true' evaluated to TRUE (see "
            "periodic_hold and on_exit_hold in the submit description)",
        ),
        (
            Hold(45, 0, "Error from slot1_1@pool: Singularity test failed: could not open image /images/none.sif"),
            "its image cannot be run: Singularity test failed: could not open image /images/none.sif (does the image "
            "exist, and may the machine read it?)",
        ),
        (
            Hold(46, 0, "The job exceeded allowed job duration of 00:05"),
            "it was on a machine for longer than it may: The job exceeded allowed job duration of 00:05 (raise "
            "allowed_job_duration, or save checkpoints and end with exit code 85)",
        ),
        (
            Hold(999, 0, "novel"),
            "HTCondor's hold code 999: novel (`condor_release` lets it try again, `gridflow cancel` ends it)",
        ),
    ],
)  # fmt: skip
def test_a_hold_says_what_is_wrong_and_what_to_do(hold: Hold, said: str) -> None:
    assert str(hold) == said


def test_files_on_their_way_are_no_trouble() -> None:
    assert Hold(16).is_spooling
    assert not Hold(13).is_spooling


def test_every_hint_belongs_to_a_meaning() -> None:
    assert HINTS.keys() <= MEANINGS.keys()
