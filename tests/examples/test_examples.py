"""Every example does what `examples/README.md` promises, by the command shown there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"
RUN_SECONDS = 240


@dataclass(frozen=True)
class Finished:
    """A run that has succeeded, as the command line tells of it."""

    status: dict[str, Any]
    folder: Path

    @property
    def states(self) -> dict[str, str]:
        return {task["task"]: task["state"] for task in self.status["tasks"]}

    def log(self, task: str) -> str:
        return _gridflow("logs", self.status["run"], task).stdout

    def number(self, pattern: str, task: str) -> float:
        """Find the one number of a task's log that the pattern's group names."""
        (found,) = re.findall(pattern, self.log(task))
        return float(found)


def _gridflow(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gridflow", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def run(command: str) -> Finished:
    """Run a command line of the README from the repository's root, which must succeed."""
    _, verb, *words = shlex.split(command)
    done = _gridflow(verb, "--json", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    status = json.loads(done.stdout)
    assert status["state"] == "succeeded"
    return Finished(status, Path(os.environ["GRIDFLOW_HOME"], "runs", status["run"]))


def test_digits_learns_with_keras_fit_on_two_workers() -> None:
    finished = run("gridflow run examples/digits/gridflow.toml")
    assert finished.number(r"test accuracy ([\d.]+) after 10 epochs on 2 worker", "worker/0") > 0.93
    assert re.findall(r"^Epoch (\d+)/10$", finished.log("worker/0"), re.MULTILINE) == [str(n) for n in range(1, 11)]
    assert "Epoch" not in finished.log("worker/1")
    for kind in ("train", "validation"):
        assert list((finished.folder / "tensorboard" / kind).glob("events.out.tfevents.*"))


def test_digits_runs_from_flags_with_tensorboard_and_arguments() -> None:
    finished = run("gridflow run examples/digits/digits.py --workers 2 --tensorboard -- --epochs 3")
    assert finished.number(r"test accuracy ([\d.]+) after 3 epochs on 2 worker", "worker/0") > 0.9
    assert finished.states == {"worker/0": "succeeded", "worker/1": "succeeded", "tensorboard/0": "stopped"}


@pytest.mark.parametrize(
    "command",
    [
        "gridflow run examples/parameter_server/gridflow.toml",
        "gridflow run examples/parameter_server/train.py --chief --workers 2 --ps 1 --serve ps,worker",
    ],
)
def test_parameter_servers_learn_whoever_runs_the_servers(command: str) -> None:
    finished = run(command)
    assert "the weights are kept in 2 parts" in finished.log("chief/0")
    assert finished.number(r"(?m)^1000 steps, mean loss ([\d.]+)$", "chief/0") < 0.4
    assert finished.number(r"final loss ([\d.]+), test accuracy", "chief/0") < 0.3
    assert finished.number(r"test accuracy ([\d.]+)", "chief/0") > 0.93
    assert (finished.folder / "checkpoints" / "ckpt-4.index").exists()
    assert finished.states == {"chief/0": "succeeded", "worker/0": "stopped", "worker/1": "stopped", "ps/0": "stopped"}


def test_a_flag_style_program_gets_its_cluster_through_its_arguments() -> None:
    finished = run("gridflow run examples/between_graph/gridflow.toml")
    workers = ("worker/0", "worker/1")
    assert sum(finished.number(r"did (\d+) of 1000 steps", task) for task in workers) >= 1000
    assert finished.number(r"of 1000 steps, mean loss ([\d.]+)", "worker/0") < 0.4
    assert list((finished.folder / "checkpoints").glob("model.ckpt-10*.index"))
    assert finished.states == {"worker/0": "succeeded", "worker/1": "succeeded", "ps/0": "stopped"}


def test_the_evaluator_judges_every_checkpoint_and_ends() -> None:
    finished = run("gridflow run examples/evaluator/gridflow.toml")
    accuracies = json.loads((finished.folder / "accuracies.json").read_text())
    assert list(accuracies) == [f"ckpt-{epoch}" for epoch in range(1, 7)]
    assert accuracies["ckpt-6"] > 0.93
    assert finished.number(r"ckpt-6: accuracy ([\d.]+)", "evaluator/0") == pytest.approx(accuracies["ckpt-6"], abs=1e-4)
    assert set(finished.states.values()) == {"succeeded"}


def test_dtensor_splits_a_model_over_two_tasks_and_computes_the_same() -> None:
    finished = run("gridflow run examples/dtensor/gridflow.toml")
    for task in ("worker/0", "worker/1"):
        assert "this task holds [[8, 8], [8, 8]] of the first layer [8, 32]" in finished.log(task)
        split = finished.number(r"split over 4 devices of 2 tasks: loss ([\d.]+)", task)
        assert split == pytest.approx(finished.number(r"without splitting: loss ([\d.]+)", task), abs=2e-5)


def test_the_data_service_gives_each_element_to_one_worker() -> None:
    finished = run("gridflow run examples/data_service/gridflow.toml")
    workers = ("worker/0", "worker/1")
    assert sum(finished.number(r"this worker read (\d+) of 600 elements", task) for task in workers) == 600
    for task in workers:
        assert "every element was read exactly once" in finished.log(task)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("digits/digits.py --epochs 2", "after 2 epochs on 1 worker"),
        ("evaluator/train.py --epochs 2", "Epoch 2/2"),
        ("dtensor/train.py", "split over 2 devices of 1 tasks: loss 0.32040"),
        ("data_service/train.py", "this worker read 600 of 600 elements\nevery element was read exactly once"),
    ],
)
def test_an_example_also_runs_alone(command: str, says: str, tmp_path: Path) -> None:
    program, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


def test_parameter_servers_alone_say_how_to_start_them() -> None:
    command = [sys.executable, str(EXAMPLES / "parameter_server" / "train.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert done.returncode == 2
    assert "start this with `gridflow run --chief --workers 2 --ps 1`" in done.stderr


def test_every_command_of_the_readme_is_run_here() -> None:
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^gridflow run .+$", readme, re.MULTILINE)
    assert [command for command in commands if f'"{command}"' not in Path(__file__).read_text(encoding="utf-8")] == []
    folders = {path.parent.name for path in EXAMPLES.glob("*/*.py")}
    assert folders == {shlex.split(command)[2].split("/")[1] for command in commands}
