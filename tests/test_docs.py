"""The README and the docs say what is so: their programs, job files and commands are run."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gridflow import RunState, TaskState
from gridflow.cli.main import VERBS
from gridflow.job import GROUPS, Job
from gridflow.platforms.base import PLATFORMS
from gridflow.platforms.htcondor_options import Options
from gridflow.state import Exit, RunStatus, TaskStatus
from gridflow.task import tf_config

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs/job-file.md"], ids=lambda page: page.name)
def test_every_job_file_shown_is_valid(page: Path) -> None:
    shown = blocks(page, "toml")
    assert shown
    for text in shown:
        Job.from_table(tomllib.loads(text)["job"])


def test_the_job_file_page_names_every_key_group_and_placeholder() -> None:
    text = (ROOT / "docs/job-file.md").read_text()
    job = Job.from_table(tomllib.loads(blocks(ROOT / "docs/job-file.md", "toml")[0])["job"])
    keys = set(job.to_table()) | {"checkpoint_dir", "log_dir"}
    assert [key for key in sorted(keys - {"folder"}) if key not in text] == []
    assert [group for group in GROUPS if f"`{group}`" not in text] == []
    placeholders = [f"{{{name}_hosts}}" for name in tf_config.CLUSTER_GROUPS] + ["{job_name}", "{task_index}"]
    assert [name for name in placeholders if name not in text] == []


def test_the_htcondor_page_names_every_option_and_its_job_files_can_be_rendered(tmp_path: Path) -> None:
    page = ROOT / "docs/htcondor.md"
    missing = [
        field.name
        for field in dataclasses.fields(Options)
        if f"`{field.name.removesuffix('_mb')}`" not in page.read_text()
    ]
    assert missing == []
    for name in ("train.py", "evaluate.py", "export.py", "tune.py"):
        (tmp_path / name).touch()
    (tmp_path / "job.submit").write_text("executable = /bin/true\nlog = $(Cluster).log\nqueue 1\n")
    first, workflow = blocks(page, "toml")
    for text in (first, workflow):
        (tmp_path / "gridflow.toml").write_text(text)
        done = run([sys.executable, "-m", "gridflow", "render", "gridflow.toml", "--on", "htcondor"], tmp_path)
        assert "universe = " in done
    assert "RETRY export 1\nPARENT train CHILD evaluate\nPARENT evaluate CHILD export\n" in done
    sweep, request = (block.strip() for block in blocks(page, "console"))
    swept = run([sys.executable, "-m", *shlex.split(sweep.replace("submit", "render", 1))], tmp_path)
    assert "worker/19, worker-19" in swept
    assert "worker/20" not in swept
    shown = run([sys.executable, "-m", *shlex.split(request.replace("submit", "render", 1))], tmp_path)
    assert "executable = /bin/true" in shown
    assert re.search(r"condor_submit .*/job\.submit", shown)


def test_the_command_line_page_names_every_verb_state_and_exit_code() -> None:
    text = (ROOT / "docs/command-line.md").read_text()
    assert [verb for verb in VERBS if f"`gridflow {verb}" not in text] == []
    assert [state for state in (*RunState, *TaskState) if f"`{state}`" not in text] == []
    codes = [state.exit_code for state in RunState if state.exit_code is not None] + [2, 3]
    assert [code for code in codes if f"| {code} |" not in text] == []


def test_the_json_shown_has_the_shape_that_is_printed() -> None:
    shown = json.loads(blocks(ROOT / "docs/command-line.md", "json")[0])
    status = RunStatus("run", "local", RunState.PENDING, (TaskStatus("worker/0"),)).to_dict()
    assert list(shown) == list(status)
    assert [list(task) for task in shown["tasks"]] == [list(status["tasks"][0])] * len(shown["tasks"])
    assert shown["reason"] == f"worker/1 failed: {Exit(code=3)}"


def test_the_readme_lists_every_platform_that_works() -> None:
    working = re.findall(r"^\| `(\w+)` \|.*\| works \|$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert working == list(PLATFORMS)


def test_what_the_readme_shows_runs_as_it_says(tmp_path: Path) -> None:
    program, function = blocks(ROOT / "README.md", "python")
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "function.py").write_text(function)
    (job_file,) = blocks(ROOT / "README.md", "toml")
    (tmp_path / "gridflow.toml").write_text(job_file)

    lines = [line for text in blocks(ROOT / "README.md", "console") for line in text.splitlines()]
    commands = [line for line in lines if line.startswith("gridflow ")]
    assert len(commands) + len(["make demo", "make test"]) == len(lines)
    printed = {command: run([sys.executable, "-m", *shlex.split(command)], tmp_path) for command in commands}
    assert re.search(r"final loss \d+\.\d+ on 2 workers", printed["gridflow run train.py --workers 2 -- --epochs 3"])
    assert "final loss" in printed["gridflow run gridflow.toml --workers 3"]
    assert "on 3 workers" in printed["gridflow run gridflow.toml --workers 3"]
    assert "cancelled" in printed["gridflow cancel last"]

    said = re.search(r"print\(run.result\(\)\)  # (.*)", function)
    assert said is not None
    assert run([sys.executable, "function.py"], tmp_path).strip() == said[1]


def test_what_the_tfrecord_page_shows_runs(tmp_path: Path) -> None:
    page = ROOT / "docs/tfrecord.md"
    (shown,) = (block for block in blocks(page, "python") if "spark" not in block)
    prepared = """
import pyarrow as pa
from gridflow import tfrecord

table = pa.table({"label": [1, 2], "image": [[0.5, 1.5], [2.5, 3.5]]})
for path in ("data.tfrecord", "data/a.tfrecord.gz"):
    tfrecord.write(table, path)
schema = table.schema
"""
    (tmp_path / "data").mkdir()
    (tmp_path / "shown.py").write_text(f"{prepared}{shown}\nprint(next(iter(dataset))['label'].numpy(), spec)\n")
    assert run([sys.executable, "shown.py"], tmp_path).startswith("[1 2] {'image': RaggedFeature(")
    commands = blocks(page, "console")[0].splitlines()
    printed = [run([sys.executable, "-m", *shlex.split(command)], tmp_path) for command in commands]
    assert printed[2] == "2\n"
    assert "data/a.tfrecord.gz: sound, 2 records, " in printed[3]
    assert printed[4] == "data.parquet: 2 records\n"


def run(argv: list[str], folder: Path) -> str:
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{argv}: {done.stdout}\n{done.stderr}"
    return done.stdout
