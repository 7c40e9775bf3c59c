"""A job on its way to where its files are not: program and files in one archive, by the names that they have there.

where it is submitted   pack(job)    ─▶ work.tar ─▶   unpack(…)      in the task's working folder
                        shipped(job) ─▶ the job as its tasks see it: all it names is in that folder
"""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

from gridflow.errors import TaskError
from gridflow.job import Job


def carried(job: Job) -> list[str]:
    """Return the paths of what has to travel, as the job names them."""
    program = [job.program.target] if job.program.kind in ("script", "command") else []
    return [*program, *job.files]


def shipped(job: Job) -> Job:
    """Return the job as its tasks see it: the program is in their working folder."""
    program = job.program
    if program.kind in ("script", "command"):
        program = replace(program, target=_name(job, program.target))
    return replace(job, program=program, folder=".")


def pack(job: Job) -> bytes:
    """Pack the program and its files."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path in carried(job):
            archive.add(Path(job.folder, path), arcname=_name(job, path))
    return content.getvalue()


def unpack(archive: Path, folder: Path) -> None:
    """Unpack what was packed into a working folder."""
    try:
        with tarfile.open(archive, "r:") as packed:
            packed.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise TaskError(f"{archive.name}, which came with the task, cannot be unpacked: {error}") from error


def _name(job: Job, path: str) -> str:
    """Return a file's name in the working folder: as it is in the job's folder, or its last part if it is elsewhere."""
    inside = os.path.relpath(os.path.join(job.folder, path), job.folder)
    return os.path.basename(inside) if inside.split(os.sep)[0] == os.pardir else inside
