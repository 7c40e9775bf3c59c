"""The two submit files that OSG's guide for TensorFlow taught: made from job files, and taken as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from integration.htcondor.pool import Pool, serve_osg_image
from integration.htcondor.runs import OVER_TOOLS, PROGRAMS, output
from tests.cli.terminal import gridflow

from gridflow import Job, Run, RunState, settings
from gridflow.launcher import submit

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("reached")]

CONVERSION = Path(__file__).parents[2] / "examples" / "conversion" / "htcondor"
CPU_WRAPPER = "#!/bin/bash\npwd\npython test.py\n"
GPU_WRAPPER = "#!/bin/bash\nset -e\npwd\npython test.py gpu 1500\n"

CPU_JOB = """\
[job]
program = "job-wrapper.sh"
files = ["test.py"]
image = "/cvmfs/singularity.opensciencegrid.org/opensciencegrid/tensorflow:latest"
[platform.htcondor]
plain = true
image_form = "singularity"
"""
GPU_JOB = """\
[job]
program = "job-wrapper.sh"
files = ["test.py"]
image = "/cvmfs/singularity.opensciencegrid.org/opensciencegrid/tensorflow-gpu:latest"
worker.gpus = 1
[platform.htcondor]
plain = true
image_form = "singularity"
requirements = "CUDACapability >= 3"
"""
CPU_SUBMIT = """\
Universe = vanilla
Requirements = HAS_SINGULARITY == True
request_cpus = 1
request_memory = 2 GB
request_disk = 4 GB
+SingularityImage = "/cvmfs/singularity.opensciencegrid.org/opensciencegrid/tensorflow:latest"
Executable = job-wrapper.sh
Arguments =
should_transfer_files = IF_NEEDED
when_to_transfer_output = ON_EXIT
transfer_input_files = test.py
Error = $(Cluster).$(Process).error
Output = $(Cluster).$(Process).output
Log = $(Cluster).$(Process).log
Queue 1
"""
GPU_SUBMIT = CPU_SUBMIT.replace("tensorflow:latest", "tensorflow-gpu:latest").replace(
    "HAS_SINGULARITY == True\n", "HAS_SINGULARITY == True && CUDACapability >= 3\nrequest_gpus = 1\n"
)


@pytest.fixture
def folder(pool: Pool, tensorflow_image: str, tmp_path: Path) -> Path:
    for name in ("tensorflow:latest", "tensorflow-gpu:latest"):
        serve_osg_image(pool, name, tensorflow_image)
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(PROGRAMS / "test.py", work)
    return work


def write_wrapper(folder: Path, text: str) -> None:
    (folder / "job-wrapper.sh").write_text(text)
    (folder / "job-wrapper.sh").chmod(0o755)


def submitted(folder: Path, name: str) -> Run:
    import os

    done = gridflow("submit", name, "--on", "htcondor", "--option", "spool=true", cwd=folder)
    assert done.returncode == 0, done.stderr
    return Run.find(settings.home(os.environ), done.stdout.strip())


@OVER_TOOLS
def test_what_the_guide_teaches_runs(folder: Path) -> None:
    cases = {
        "cpu-job-file": (CPU_WRAPPER, "gridflow.toml", CPU_JOB, "/cpu:0"),
        "cpu-submit-file": (CPU_WRAPPER, "job.submit", CPU_SUBMIT, "/cpu:0"),
        "gpu-job-file": (GPU_WRAPPER, "gridflow.toml", GPU_JOB, "/gpu:0"),
        "gpu-submit-file": (GPU_WRAPPER, "job.submit", GPU_SUBMIT, "/gpu:0"),
    }
    runs = {}
    for case, (wrapper, name, text, _) in cases.items():
        work = shutil.copytree(folder, folder.with_name(case))
        write_wrapper(work, wrapper)
        (work / name).write_text(text)
        runs[case] = submitted(work, name)
    for case, run in runs.items():
        status = run.wait(600)
        said = output(run)
        assert status.state is RunState.SUCCEEDED, f"{case}: {said}"
        assert said.startswith("/srv\n")
        assert f"Device: {cases[case][3]}" in said


def test_arguments_and_variables_of_a_plain_job_come_as_they_were_given(tmp_path: Path) -> None:
    words = ["two words", "it's", '"quoted"', "größer 漢字", "$(Cluster)", "$$(Name) $$$", "a\\b", "tab\there", ""]
    (tmp_path / "show.sh").write_text('#!/bin/sh\nprintf "[%s]\\n" "$@" "$SEED"\n')
    (tmp_path / "show.sh").chmod(0o755)
    table = {"program": "show.sh", "args": words, "env": {"SEED": "'1' $$(x)"}, "folder": str(tmp_path)}
    run = submit(Job.from_table(table), "htcondor", {"plain": True, "spool": True}, attached=False)
    assert run.wait(600).state is RunState.SUCCEEDED
    assert output(run) == "".join(f"[{word}]\n" for word in [*words, "'1' $$(x)"])
    assert run.log_file("worker/0").read_text() == output(run)


def test_a_hand_written_submit_file_and_its_conversion_do_the_same(folder: Path) -> None:
    work = shutil.copytree(CONVERSION, folder.with_name("conversion"))
    runs = [submitted(work, name) for name in ("before.submit", "after.toml")]
    for run in runs:
        status = run.wait(600)
        assert status.state is RunState.SUCCEEDED, output(run)
        assert "weights 2.00 -1.00 0.50\n" in output(run)


def test_each_proc_of_a_submit_file_is_a_task(tmp_path: Path) -> None:
    (tmp_path / "two.sub").write_text(
        "executable = /bin/echo\ntransfer_executable = false\narguments = proc $(Process)\n"
        "output = $(Process).out\nlog = two.log\nqueue 2\n"
    )
    run = submitted(tmp_path, "two.sub")
    assert [task.task for task in run.wait(600).tasks] == ["worker/0", "worker/1"]
    assert (output(run), output(run, "worker/1")) == ("proc 0\n", "proc 1\n")


@pytest.mark.parametrize(("job", "submit"), [(CPU_JOB, CPU_SUBMIT), (GPU_JOB, GPU_SUBMIT)], ids=["cpu", "gpu"])
def test_a_short_job_file_gives_the_guides_submit_file(folder: Path, job: str, submit: str) -> None:
    write_wrapper(folder, CPU_WRAPPER)
    (folder / "gridflow.toml").write_text(job)
    shown = gridflow("render", "gridflow.toml", "--on", "htcondor", cwd=folder).stdout
    made = commands(shown.partition("# file job.sub\n")[2].partition("\n\n")[0])
    wanted = commands(submit)
    names = ("universe", "requirements", "+singularityimage", "request_cpus", "request_gpus", "error", "output", "log")
    for name in names:
        assert made.get(name) == wanted.get(name)
    assert (made["request_memory"], made["request_disk"]) == ("2048MB", "4096MB")
    assert made["executable"].endswith("/job-wrapper.sh")
    assert made["transfer_input_files"].endswith("/test.py")


def commands(text: str) -> dict[str, str]:
    lines = [line.partition("=") for line in text.splitlines() if "=" in line]
    return {name.strip().lower(): value.strip() for name, _, value in lines}
