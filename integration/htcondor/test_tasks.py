"""What a task finds in its slot, and what becomes of it when the slot is wanted back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from integration.htcondor.pool import Pool
from integration.htcondor.runs import (
    OVER_BINDINGS,
    OVER_TOOLS,
    cluster,
    finish,
    output,
    start,
    succeeded,
    wait_for_output,
)

from gridflow import RunState
from gridflow.state import TaskState

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("reached")]
TOTAL = sum(step * step for step in range(60))


def test_a_task_in_a_container_gets_its_arguments_and_its_output_comes_back(python_image: str) -> None:
    words = ("two words", "it's", '"quoted"', "größer 漢字", "$(Cluster)", "two\nlines", "")
    run = start("show.py", *words, image=python_image, options={"transfer_image": "false"})
    said = succeeded(run)
    assert f"in container {python_image}, Python 3.13" in said
    assert f"arguments {list(words)}" in said
    assert "folder /srv/work" in said
    assert "GPUs: none; TensorFlow: not installed" in said


def test_an_image_travels_with_the_job(pool: Pool, python_image: str) -> None:
    local = pool.folder / "images" / Path(python_image).name
    assert "in container" in succeeded(start("show.py", image=str(local)))


def test_a_task_has_the_gpus_that_htcondor_assigned() -> None:
    said = succeeded(start("show.py", worker={"gpus": 1, "gpu_memory_mb": 2048}))
    assert "[gridflow] GPUs: GPU-" in said
    assert "assigned by HTCondor" in said
    assert '"limits_mb":[2048]' in said


def test_a_task_may_have_several_gpus_of_one_slot() -> None:
    said = succeeded(start("show.py", worker={"gpus": 2}))
    visible = re.search(r"^GPUs (GPU-\w+),(GPU-\w+) ", said, re.MULTILINE)
    assert visible is not None, said
    assert visible[1] != visible[2]


def test_a_task_without_gpus_sees_none() -> None:
    assert "GPUs -1 \n" in succeeded(start("show.py"))


def test_a_machine_without_python_is_named_by_the_wrappers_exit_code(pool: Pool) -> None:
    tools = pool.folder / "share" / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("mkdir", "tr", "sh"):
        (tools / name).unlink(missing_ok=True)
        (tools / name).symlink_to(f"/usr/bin/{name}")
    variables = '"GRIDFLOW_RUN=x GRIDFLOW_TASK=worker/0 PATH=/share/tools"'
    run = start("show.py", options={"submit": {"environment": variables}})
    status = finish(run)
    assert status.reason == "worker/0 failed: exit code 122: there is no Python 3.11 or newer in the image"
    assert "[gridflow] error: there is no Python 3.11 or newer here" in output(run)


def test_a_task_that_is_evicted_goes_on_with_nothing_lost(pool: Pool, python_image: str) -> None:
    options = {"transfer_image": "false"}
    on_sigterm = start("count.py", image=python_image, options=options)
    by_exit_code_85 = start("count.py", "--periodic", image=python_image, options=options)
    wait_for_output(on_sigterm, "starting at step 0")
    pool.tool("condor_vacate_job", cluster(on_sigterm))
    wait_for_output(by_exit_code_85, "starting at step 20")
    pool.tool("condor_vacate_job", cluster(by_exit_code_85))
    for run in (on_sigterm, by_exit_code_85):
        said = succeeded(run)
        assert f"total {TOTAL}\n" in said
        steps = [int(line.rpartition(" ")[2]) for line in said.splitlines() if line.startswith(("starting", "saved"))]
        # Every life begins where the one before has saved.
        assert steps[0] == 0
        assert steps[1::2] == steps[2::2]
        assert "[gridflow] worker/0 loses its slot" in said
        task = run.status()["worker/0"]
        assert (task.state, task.restarts, task.exit_code) == (TaskState.SUCCEEDED, 1, 0)


@OVER_BINDINGS
def test_training_that_is_evicted_ends_with_the_weights_of_training_that_is_not(
    pool: Pool, tensorflow_image: str
) -> None:
    options = {"transfer_image": "false"}
    resources = {"memory": "3 GB"}
    undisturbed, evicted = (
        start("train_long.py", image=tensorflow_image, options=options, worker=resources) for _ in "12"
    )
    wait_for_output(evicted, "epoch 2 ")
    pool.tool("condor_vacate_job", cluster(evicted))
    said = succeeded(evicted)
    assert "restored epoch" in said
    weights = re.search(r"weights (\[.*\])", said)
    assert weights is not None
    assert weights[0] in succeeded(undisturbed)
    assert "restored" not in output(undisturbed)


@OVER_TOOLS
def test_training_with_keras_own_backup_goes_on_after_an_eviction(pool: Pool, tensorflow_image: str) -> None:
    run = start(
        "train_backup.py", image=tensorflow_image, options={"transfer_image": "false"}, worker={"memory": "3 GB"}
    )
    wait_for_output(run, "epoch 3 done")
    pool.tool("condor_vacate_job", cluster(run))
    said = succeeded(run)
    assert "[gridflow] worker/0 loses its slot" in said
    epochs = [int(number) for number in re.findall(r"^epoch (\d+) done", said, re.MULTILINE)]
    # None is lost, none is done twice, and the optimizer has made the steps of all.
    assert epochs == list(range(1, 9))
    assert "steps in all 32\n" in said


def test_a_task_that_fails_is_tried_again_by_htcondor_where_the_job_says_so(tmp_path: Path) -> None:
    (tmp_path / "fail.py").write_text("import os, sys; sys.exit(3 if os.environ['GRIDFLOW_RESTART'] == '0' else 0)")
    run = start("fail.py", folder=str(tmp_path), options={"submit": {"max_retries": "2"}})
    said = succeeded(run)
    assert said.count("has ended: exit code 3") == 1
    assert run.status()["worker/0"].restarts == 1


def test_what_a_program_makes_is_brought_back_and_what_it_does_not_make_is_only_spoken_of(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text("import os; os.mkdir('model'); open('model/weights', 'w').write('1')")
    run = start("make.py", folder=str(tmp_path), options={"outputs": ["model", "nothing.txt"]})
    said = succeeded(run)
    assert (run.folder / "outputs" / "model" / "weights").read_text() == "1"
    assert "the program made no 'nothing.txt', which was to be brought back" in said


def test_a_sweep_has_a_task_for_each_combination_and_one_table(reached: Pool) -> None:
    run = start("tune.py", worker={"memory": 256}, options={"sweep": ["lr=0.5,0.9", "seed=1..3"]})
    status = finish(run)
    assert (status.state, status.reason) == (RunState.FAILED, "worker/3 failed: exit code 3")
    assert (run.folder / "sweep.csv").read_text() == (
        "task,state,exit_code,lr,seed,loss\n"
        "worker/0,succeeded,0,0.5,1,0.5\n"
        "worker/1,succeeded,0,0.5,2,1.0\n"
        "worker/2,succeeded,0,0.5,3,1.5\n"
        "worker/3,failed,3,0.9,1,\n"
        "worker/4,failed,3,0.9,2,\n"
        "worker/5,failed,3,0.9,3,\n"
    )
