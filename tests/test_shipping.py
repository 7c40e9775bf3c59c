from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridflow import shipping
from gridflow.errors import TaskError
from gridflow.job import Job


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's folder, with files in it and beside it."""
    folder = tmp_path / "job"
    (folder / "data" / "deep").mkdir(parents=True)
    for name in ("job/train.py", "job/data/deep/größer 1.csv", "beside.py"):
        (tmp_path / name).write_text(name)
    return folder


def job_of(folder: Path, program: str = "train.py", **table: Any) -> Job:
    return Job.from_table({"program": program, "folder": str(folder), **table})


def arrived(job: Job, folder: Path) -> dict[str, str]:
    """Send a job's files somewhere, and return what is there then."""
    archive, work = folder / "work.tar", folder / "work"
    archive.write_bytes(shipping.pack(job))
    shipping.unpack(archive, work)
    return {str(path.relative_to(work)): path.read_text() for path in work.rglob("*") if path.is_file()}


def test_files_have_the_names_that_they_have_in_the_jobs_folder(folder: Path, tmp_path: Path) -> None:
    job = job_of(folder, files=["data"])
    assert arrived(job, tmp_path) == {
        "train.py": "job/train.py",
        "data/deep/größer 1.csv": "job/data/deep/größer 1.csv",
    }
    assert shipping.shipped(job).program.target == "train.py"


@pytest.mark.parametrize("given", ["../beside.py", "{tmp_path}/beside.py", "data/../../beside.py"])
def test_files_from_elsewhere_have_the_last_part_of_their_names(folder: Path, tmp_path: Path, given: str) -> None:
    job = job_of(folder, given.format(tmp_path=tmp_path))
    assert arrived(job, tmp_path) == {"beside.py": "beside.py"}
    assert shipping.shipped(job).program.target == "beside.py"


def test_a_program_named_by_its_whole_path_keeps_its_place_in_the_jobs_folder(folder: Path, tmp_path: Path) -> None:
    job = job_of(folder, str(folder / "data" / ".." / "train.py"))
    assert arrived(job, tmp_path) == {"train.py": "job/train.py"}
    assert (shipping.shipped(job).program.target, shipping.shipped(job).folder) == ("train.py", ".")


def test_a_module_carries_its_files_alone(folder: Path) -> None:
    job = Job.from_table({"module": "package.train", "files": ["data"], "folder": str(folder)})
    assert shipping.carried(job) == ["data"]
    assert shipping.shipped(job).program == job.program


def test_an_archive_that_is_torn_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "work.tar").write_bytes(shipping.pack(job_of(folder))[:700])
    with pytest.raises(TaskError, match=r"^work\.tar, which came with the task, cannot be unpacked: "):
        shipping.unpack(tmp_path / "work.tar", tmp_path / "work")
