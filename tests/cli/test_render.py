"""`gridflow render`: the plan, and nothing happens."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from tests.cli.terminal import gridflow
from tests.contract import PROGRAMS


def test_plan_is_printed_and_nothing_is_written(tmp_path: Path) -> None:
    done = gridflow("render", PROGRAMS / "hello.py", "--workers", "2", "--memory", "2 GB", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    note, file, *commands = done.stdout.rstrip().split("\n\n# ")
    assert note == "# note: memory is not limited on this machine"
    assert file.startswith('file job.json\n{\n  "name": "hello"')
    agent = shlex.join([sys.executable, "-P", "-m", "gridflow.task"])
    assert commands == [
        f"task {task}\nGRIDFLOW_TASK={task} GRIDFLOW_HOST=127.0.0.1 {agent}" for task in ("worker/0", "worker/1")
    ]
    assert list(tmp_path.iterdir()) == []


def test_json_holds_files_commands_and_notes() -> None:
    done = gridflow("render", "--json", PROGRAMS / "hello.py", "--chief", "--", "{task_index}")
    plan = json.loads(done.stdout)
    assert plan.keys() == {"files", "commands", "notes"}
    (file,) = plan["files"]
    job = json.loads(file["content"])
    assert (job["program"], job["args"], job["chief"]) == (str(PROGRAMS / "hello.py"), ["{task_index}"], {"count": 1})
    assert [command["task"] for command in plan["commands"]] == ["chief/0"]
    assert plan["notes"] == []


def test_program_that_does_not_exist_is_refused_before_anything_else() -> None:
    done = gridflow("render", "gone.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "gone.py' does not exist" in done.stderr


def test_a_template_is_copied_beside_the_job_and_over_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    words = ("render", "train.py", "--on", "htcondor")
    rendered = gridflow(*words, cwd=tmp_path).stdout
    ejected = gridflow(*words, "--eject", cwd=tmp_path)
    template = tmp_path / "htcondor.sub"
    assert ejected.stdout == f'{template}: use it with [platform.htcondor] template = "htcondor.sub"\n'
    assert gridflow(*words, "--option=template=htcondor.sub", cwd=tmp_path).stdout == rendered
    template.write_text(template.read_text() + "# tailored\n")
    again = gridflow(*words, "--eject", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (
        2, f"gridflow: {template} is there already (remove it first, or go on with it)\n",
    )  # fmt: skip
    assert "# tailored\n" in gridflow(*words, "--option=template=htcondor.sub", cwd=tmp_path).stdout


def test_a_platform_without_templates_says_so() -> None:
    done = gridflow("render", PROGRAMS / "hello.py", "--eject")
    assert (done.returncode, done.stderr) == (2, "gridflow: platform local has no templates\n")
