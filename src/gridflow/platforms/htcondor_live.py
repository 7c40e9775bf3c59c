"""The output of a running proc that has no agent to send it: condor_tail's copy, in the run's folder until the end."""

from __future__ import annotations

from gridflow.errors import PlatformError
from gridflow.platforms.htcondor_access import MOST_PEEKED_BYTES, RUNNING, Access
from gridflow.store import RunFolder, write_whole


def look(access: Access, folder: RunFolder, cluster: int, task: str) -> str:
    """Bring the copy of a task's output up to date; return why that cannot be done, where it runs."""
    copy, proc = folder.log_file(task), int(task.partition("/")[2])
    if not _is_running(access, cluster, proc):
        # What it has written is where the description has it, or is lost with its slot.
        copy.unlink(missing_ok=True)
        return ""
    try:
        said = access.peek(cluster, proc)
    except PlatformError as error:
        # It may have ended meanwhile.
        return str(error) if _is_running(access, cluster, proc) else ""
    if said is not None and len(said) < MOST_PEEKED_BYTES:
        write_whole(copy, said)
    return ""


def has_begun_anew(folder: RunFolder, task: str, position: int) -> bool:
    """Say whether there is less than somebody has read already, as there is of a task that was evicted."""
    try:
        return folder.log_file(task).stat().st_size < position
    except FileNotFoundError:
        return False


def _is_running(access: Access, cluster: int, proc: int) -> bool:
    return bool(access.query(cluster).get(proc, {}).get("JobStatus") == RUNNING)
