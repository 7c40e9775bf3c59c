"""Why HTCondor holds jobs, and what to do about it. Pure.

A held job waits for a person. HTCondor says why with a code, a code below that, often an errno, and a text:

    13/2   Transfer input files failure at access point … Details: reading from file /home/alice/x: (errno 2) …
    34/0   … Job has gone over cgroup memory limit of 128 megabytes. Peak usage: 128 megabytes. …
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Hold:
    """Why a job is held, as HTCondor says it."""

    code: int
    subcode: int = 0
    text: str = ""

    @property
    def is_spooling(self) -> bool:
        """Whether the job's files are still on their way to the schedd, so that nothing is wrong."""
        return self.code == SPOOLING

    @property
    def is_in_vain(self) -> bool:
        """Whether HTCondor holds the job at Gridflow's own wish, since it cannot be started."""
        return (self.code, self.subcode) == (POLICY, IN_VAIN)

    @property
    def hint(self) -> str:
        """What to do about it."""
        return _memory_hint(self.text) if self.code == MEMORY else HINTS.get(self.code, _ANY_HINT)

    def __str__(self) -> str:
        what = MEANINGS.get(self.code, f"HTCondor's hold code {self.code}")
        detail = _detail(self.text)
        return f"{what}: {detail} ({self.hint})" if detail else f"{what} ({self.hint})"


POLICY = 3
SPOOLING = 16
MEMORY = 34
#: The subcode of Gridflow's own periodic_hold.
IN_VAIN = 1007
_ANY_HINT = "`condor_release` lets it try again, `gridflow cancel` ends it"
_FILES_HINT = "is the path right, and may you read it?"
_IMAGE_HINT = "does the image exist, and may the machine read it?"
_SIZE_HINT = "transfer less, or use a URL such as osdf://"
_ADMINISTRATOR_HINT = "ask the pool's administrator"

#: HoldReasonCode, in plain words. Numbers that are missing here are of services that Gridflow does not use.
MEANINGS = {
    1: "a person holds it",
    POLICY: "the job's own policy holds it",
    4: "its credentials are not valid",
    5: "an expression of the job's own policy has no value",
    6: "its program cannot be executed",
    7: "its output file cannot be opened",
    8: "its standard input cannot be opened",
    9: "its output stream cannot be opened",
    10: "its input stream cannot be opened",
    11: "HTCondor's file transfer failed",
    12: "files cannot be brought back",
    13: "files cannot be brought to the slot",
    14: "its working folder cannot be used",
    15: "it was submitted on hold",
    SPOOLING: "its files are on their way",
    18: "HTCondor's file transfer failed",
    19: "the execute machine could not prepare it",
    20: "it missed the time at which it was to start",
    21: "the execute machine's policy holds it",
    22: "its event log cannot be written",
    23: "its owner's account cannot be used",
    24: "the submit machine cannot run jobs of its kind",
    25: "its cron settings are not valid",
    26: "the administrator's policy holds it",
    27: "an expression of the administrator's policy has no value",
    32: "what it brings along is more than the pool allows",
    33: "what it brings back is more than the pool allows",
    MEMORY: "it needs more memory than it asked for",
    35: "its Docker image is not valid",
    36: "its checkpoint cannot be kept",
    43: "its script that runs before the program failed",
    44: "its script that runs after the program failed",
    45: "its image cannot be run",
    46: "it was on a machine for longer than it may",
    47: "it ran for longer than it may",
    48: "the submit machine could not prepare it",
}

HINTS = {
    1: "`condor_release` lets it go on",
    POLICY: "see periodic_hold and on_exit_hold in the submit description",
    5: "see periodic_hold, periodic_release and periodic_remove in the submit description",
    6: "is it built for that machine, and does its first line name an interpreter that is there?",
    7: _FILES_HINT,
    8: _FILES_HINT,
    12: "the program has not made a file that is to be brought back, or the disk is full",
    13: _FILES_HINT,
    14: _FILES_HINT,
    SPOOLING: "nothing to do",
    19: _ADMINISTRATOR_HINT,
    21: _ADMINISTRATOR_HINT,
    22: "may you write where `log` is, and is there room?",
    23: _ADMINISTRATOR_HINT,
    26: _ADMINISTRATOR_HINT,
    27: _ADMINISTRATOR_HINT,
    32: _SIZE_HINT,
    33: _SIZE_HINT,
    35: _IMAGE_HINT,
    36: "is there room in the spool folder, and are all files of transfer_checkpoint_files there?",
    45: _IMAGE_HINT,
    46: "raise allowed_job_duration, or save checkpoints and end with exit code 85",
    47: "raise allowed_execute_duration, or save checkpoints and end with exit code 85",
    48: _ADMINISTRATOR_HINT,
}


def _memory_hint(text: str) -> str:
    """Say how much to ask for: half as much again as it was known to need."""
    # … memory limit of 2048 megabytes. Peak usage: 2048 megabytes. …
    figures = [int(figure) for figure in re.findall(r"(\d+) megabytes", text)]
    if not figures:
        return "ask for more memory"
    wanted = math.ceil(max(figures) * 1.5 / 128) * 128
    return f'ask for more: memory = "{wanted} MB"'


def _detail(text: str) -> str:
    """Return what is particular in HTCondor's text."""
    detail = text.partition("Details: ")[2] or text
    return re.sub(r"^Error from [^:]+: ", "", detail).strip()
