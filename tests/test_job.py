from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridflow.errors import JobError, UsageError
from gridflow.job import GROUPS, SERVICE_GROUPS, TRAINING_GROUPS, Group, Job, Program, Resources, Timeouts, merge_tables

TOP_KEYS = (
    "args, checkpoint_dir, chief, data, env, evaluator, evaluator_timeout, files, folder, function, image, log_dir, "
    "max_restarts, module, name, program, ps, serve, start_timeout, stop_timeout, tensorboard, timeout, worker"
)
GROUP_KEYS = "count, cpus, gpu_memory_mb, gpus, memory"
ADD_WORKERS = "add workers: --workers 1, or a [job.worker] table"


def job_of(**values: Any) -> Job:
    return Job.from_table({"program": "train.py", **values})


# Mistakes


#: What a job file says after its program, and the error.
MISTAKES = {
    "workers = 2": f"job.workers is not a known key (did you mean 'worker'? valid keys: {TOP_KEYS})",
    "zebra = 2": f"job.zebra is not a known key (valid keys: {TOP_KEYS})",
    "[job.worker]\ncuont = 2": f"job.worker.cuont is not a known key (did you mean 'count'? valid keys: {GROUP_KEYS})",
    "[job.master]": f"job.master is not a known key (valid keys: {TOP_KEYS})",
    "worker = 2": "job.worker = 2 is not a table (give a table)",
    "[job.worker]\ncount = 0": "group 'worker' has count=0 (ask for at least one task, or leave the group out)",
    '[job.worker]\ncount = "2"': "job.worker.count = '2' is not a whole number (give a whole number)",
    "[job.worker]\ncount = 1.5": "job.worker.count = 1.5 is not a whole number (give a whole number)",
    "[job.chief]\ncount = 2": "group 'chief' has count=2 (a job has one chief at most)",
    "[job.worker]\n[job.evaluator]\ncount = 2": "group 'evaluator' has count=2 (a job has one evaluator at most)",
    "[job.worker]\n[job.tensorboard]\ncount = 2": "group 'tensorboard' has count=2 (a job has one tensorboard at most)",
    "[job.ps]": f"the job has ps tasks but no workers ({ADD_WORKERS})",
    "[job.chief]\n[job.ps]": f"the job has ps tasks but no workers ({ADD_WORKERS})",
    "[job.worker]\nmemory = -4096": 'job.worker.memory = -4096 is not an amount of memory (write "512 MB" or "4 GB")',
    '[job.worker]\nmemory = "12 GBB"': (
        'job.worker.memory = \'12 GBB\' is not an amount of memory (write "512 MB" or "4 GB")'
    ),
    "[job.worker]\ncpus = 0": "job.worker: cpus=0.0 is not possible (give a positive amount, or leave it out)",
    "[job.worker]\ncpus = nan": "job.worker: cpus=nan is not possible (give a positive amount, or leave it out)",
    "[job.worker]\ncpus = inf": "job.worker: cpus=inf is not possible (give a positive amount, or leave it out)",
    "[job.worker]\ngpus = -1": "job.worker: gpus=-1.0 is not possible (give 0 or more)",
    "[job.worker]\ngpus = nan": "job.worker: gpus=nan is not possible (give 0 or more)",
    '[job.worker]\ngpus = "all"': "job.worker.gpus = 'all' is not a number (give a number)",
    "[job.worker]\ngpus = 1\ngpu_memory_mb = -5": (
        "job.worker: gpu_memory_mb=-5 is not possible (give a positive amount, or leave it out)"
    ),
    "[job.worker]\ngpu_memory_mb = 2048": "job.worker: gpu_memory_mb=2048 without gpus (say how many GPUs: gpus = 1)",
    "[job.worker]\n[job.ps]\ngpus = 2": (
        "group 'ps' asks for gpus=2 (a ps task never holds a GPU; ask in the worker group)"
    ),
    "max_restarts = -1": "max_restarts = -1 is not possible (give 0 or more)",
    'max_restarts = "many"': "job.max_restarts = 'many' is not a whole number (give a whole number)",
    'name = "Wide & Deep"': (
        "name = 'Wide & Deep' cannot name a job "
        "(use 1 to 40 lower-case letters, digits and dashes, with no dash at either end)"
    ),
    'args = "--epochs 3"': "job.args = '--epochs 3' is not a list (give a list)",
    'env = ["A=1"]': "job.env = ['A=1'] is not a table (give a table)",
    "env = {A = true}": "job.env.A = True is not a string (put it in quotes)",
    'env = {"A=B" = "c"}': "env.A=B = 'c' is not possible (a variable has a name without '=', and no NUL)",
    'env = {"" = "c"}': "env. = 'c' is not possible (a variable has a name without '=', and no NUL)",
    'env = {A = "b\\u0000"}': "env.A = 'b\\x00' is not possible (a variable has a name without '=', and no NUL)",
    'args = ["a\\u0000"]': "args holds 'a\\x00' (no argument of a process holds a NUL)",
    "[job.worker]\ncount = 999999999999": ("group 'worker' has count=999999999999 (ask for 100000 tasks at most)"),
    'timeout = "soon"': 'job.timeout = \'soon\' is not a duration (write "90s", "10m" or "2h")',
    "stop_timeout = 0": 'job.stop_timeout = 0 is not a duration (write "90s", "10m" or "2h")',
    'serve = ["chief"]': "serve = 'chief' is not possible (only ps and worker tasks can be served)",
    'serve = ["ps"]': "serve = 'ps', but the job has no ps group (add ps tasks)",
    'serve = ["worker"]': "serve = 'worker', but no chief runs the program (add a chief)",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_every_mistake_in_a_job_file_is_one_line_with_key_value_and_remedy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gridflow.toml"
    path.write_text(f'[job]\nprogram = "train.py"\n{text}\n')
    with pytest.raises(UsageError) as caught:
        Job.from_file(path)
    assert str(caught.value) == MISTAKES[text]
    assert caught.value.exit_code == 2
    assert "\n" not in MISTAKES[text]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ({}, "the job has no program"),
        ({"program": ""}, "the job has no program"),
        ({"program": "a.py", "module": "b"}, "the job has program and module"),
        ({"module": "b", "function": "c"}, "the job has module and function"),
    ],
)
def test_a_job_has_exactly_one_program(program: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError) as caught:
        Job.from_table(program)
    assert str(caught.value) == f'{message} (give either program = "train.py" or module = "package.train")'


def test_a_program_is_a_string() -> None:
    with pytest.raises(UsageError) as caught:
        Job.from_table({"program": 3})
    assert str(caught.value) == "job.program = 3 is not a string (give a string)"


@pytest.mark.parametrize("text", ["", "[jobs]\n", "job = 3\n"])
def test_a_file_without_a_job_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gridflow.toml"
    path.write_text(text)
    with pytest.raises(JobError) as caught:
        Job.from_file(path)
    assert str(caught.value) == f'{path} has no [job] table (start it with [job] and program = "train.py")'


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(JobError) as caught:
        Group("master")
    assert str(caught.value) == (
        "there is no group 'master' (valid groups: chief, worker, ps, evaluator, data, tensorboard)"
    )


def test_an_unknown_kind_of_program_is_refused() -> None:
    with pytest.raises(JobError) as caught:
        Program("jar", "train.jar")
    assert str(caught.value) == "a program cannot be a 'jar' (valid kinds: script, module, function, command, request)"


def test_a_group_given_twice_is_refused() -> None:
    with pytest.raises(JobError) as caught:
        Job("x", Program("module", "x"), (Group("worker"), Group("worker", 2)))
    assert str(caught.value) == "group 'worker' is given twice (give it once, with the sum of the counts)"


def test_a_job_without_training_tasks_is_refused() -> None:
    with pytest.raises(JobError) as caught:
        Job("x", Program("module", "x"), (Group("evaluator"),))
    assert str(caught.value) == f"the job has neither a chief nor workers ({ADD_WORKERS})"


@pytest.mark.parametrize("name", ["run_seconds", "start_seconds", "stop_seconds", "evaluator_seconds"])
def test_a_timeout_that_is_no_time_is_refused(name: str) -> None:
    for value in (0, -1.5, float("nan")):
        with pytest.raises(JobError) as caught:
            Timeouts(**{name: value})
        assert str(caught.value) == f"{name}={value} is not possible (give a positive number of seconds)"


def test_negative_memory_is_refused_in_python_too() -> None:
    with pytest.raises(JobError) as caught:
        Resources(memory_mb=-1)
    assert str(caught.value) == "memory_mb=-1 is not possible (give a positive amount, or leave it out)"


def test_a_missing_program_is_named_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        job_of(folder=str(tmp_path)).check_files()
    assert str(caught.value) == f"program {str(tmp_path / 'train.py')!r} does not exist (check its path)"


def test_a_folder_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").mkdir()
    with pytest.raises(JobError, match=r"train.py' does not exist \(check its path\)$"):
        job_of(folder=str(tmp_path)).check_files()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "data").mkdir()
    job_of(folder=str(tmp_path), files=["data"]).check_files()
    with pytest.raises(JobError) as caught:
        job_of(folder=str(tmp_path), files=["data", "words.txt"]).check_files()
    assert str(caught.value) == f"files holds 'words.txt', which does not exist in {tmp_path} (check its path)"


def test_a_function_in_a_job_file_is_only_a_name(tmp_path: Path) -> None:
    path = tmp_path / "gridflow.toml"
    path.write_text('[job]\nfunction = "train"\n')
    with pytest.raises(JobError) as caught:
        Job.from_file(path).check_files()
    assert str(caught.value) == "function 'train' is only a name (call gridflow.launch(function))"
    Job.from_table({"function": "train"}, b"a pickled call").check_files()


def test_a_module_needs_no_file(tmp_path: Path) -> None:
    Job.from_table({"module": "package.train", "folder": str(tmp_path)}).check_files()


# What a job is


def test_a_job_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "gridflow.toml"
    path.write_text(
        """
        [job]
        program = "train.py"
        name = "wide-and-deep"
        args = ["--epochs", 3]
        env = { SEED = "1" }
        files = ["vocabulary.txt"]
        image = "tensorflow.sif"
        max_restarts = 2
        timeout = "12h"
        start_timeout = "5m"
        stop_timeout = "10s"
        evaluator_timeout = "10m"
        serve = ["ps"]
        checkpoint_dir = "checkpoints"
        log_dir = "logs"
        [job.chief]
        [job.worker]
        count = 4
        cpus = 2
        memory = "8 GB"
        gpus = 1
        gpu_memory_mb = 4096
        [job.ps]
        count = 2
        """
    )
    assert Job.from_file(path) == Job(
        name="wide-and-deep",
        program=Program("script", "train.py"),
        groups=(
            Group("chief"),
            Group("worker", 4, Resources(cpus=2, memory_mb=8192, gpus=1, gpu_memory_mb=4096)),
            Group("ps", 2),
        ),
        args=("--epochs", "3"),
        env={"SEED": "1"},
        files=("vocabulary.txt",),
        image="tensorflow.sif",
        max_restarts=2,
        timeouts=Timeouts(run_seconds=43200, start_seconds=300, stop_seconds=10, evaluator_seconds=600),
        serve=("ps",),
        folder=str(tmp_path),
        checkpoint_dir="checkpoints",
        log_dir="logs",
    )


def test_paths_start_in_the_folder_of_the_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "train.py").touch()
    (tmp_path / "deep" / "gridflow.toml").write_text('[job]\nprogram = "train.py"\n')
    monkeypatch.chdir(tmp_path)
    job = Job.from_file("deep/gridflow.toml")
    assert job.folder == str(tmp_path / "deep")
    job.check_files()


def test_a_job_that_says_nothing_has_one_worker() -> None:
    assert job_of().groups == (Group("worker"),)
    assert job_of(tensorboard={}).tasks == ("worker/0", "tensorboard/0")
    assert job_of(evaluator={}, data={"count": 2}).tasks == ("worker/0", "evaluator/0", "data/0", "data/1")
    assert job_of(chief={}).tasks == ("chief/0",)


def test_tasks_are_listed_group_by_group() -> None:
    groups = (Group("tensorboard"), Group("ps", 2), Group("worker", 2), Group("chief"))
    job = Job("x", Program("module", "x"), groups)
    assert job.tasks == ("chief/0", "worker/0", "worker/1", "ps/0", "ps/1", "tensorboard/0")
    assert job.first_task == "chief/0"
    assert job_of(ps={}, worker={}).first_task == "worker/0"


def test_a_task_belongs_to_a_group() -> None:
    job = job_of(worker={"count": 2})
    assert job.group_of("worker/1") == job.group("worker")
    assert job.group("ps") is None
    for task in ("worker/2", "ps/0", "worker", "worker/01"):
        with pytest.raises(JobError) as caught:
            job.group_of(task)
        assert str(caught.value) == f"the job has no task {task!r} (its tasks: worker/0, worker/1)"


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        job_of().name = "other"  # type: ignore[misc]


def test_groups_are_known_by_what_they_do() -> None:
    assert set(TRAINING_GROUPS) | set(SERVICE_GROUPS) | {"evaluator"} == set(GROUPS)
    assert not set(TRAINING_GROUPS) & set(SERVICE_GROUPS)


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("dir/Train_MNIST.py", "train-mnist"),
        ("./run.sh", "run"),
        ("größe.py", "gr-e"),
        ("--.py", "job"),
        ("x" * 60 + ".py", "x" * 40),
        ("x" * 39 + "-y.py", "x" * 39),
    ],
)
def test_a_job_is_named_after_its_program(program: str, name: str) -> None:
    assert job_of(program=program).name == name


def test_a_job_is_named_after_its_module_or_function() -> None:
    assert Job.from_table({"module": "package.deep_train"}).name == "deep-train"
    assert Job.from_table({"function": "make.<locals>.train"}).name == "train"


def test_python_runs_python_files_and_everything_else_is_executed() -> None:
    assert Program.from_path("a/train.py").kind == "script"
    assert Program.from_path("train.sh").kind == "command"
    assert Program.from_path("train").kind == "command"


# Round trips

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
variables = words.filter(lambda name: name and "=" not in name)
amounts = st.floats(1e-3, 1e6)
resources = st.builds(
    Resources,
    cpus=st.none() | amounts,
    memory_mb=st.none() | st.integers(1, 2**53),
    gpus=amounts,
    gpu_memory_mb=st.none() | st.integers(1, 2**31),
) | st.builds(Resources, cpus=st.none() | amounts, memory_mb=st.none() | st.integers(1, 2**53))
cpu_resources = st.builds(Resources, cpus=st.none() | amounts)
seconds = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
programs = (
    st.builds(Program.from_path, words.filter(bool))
    | st.builds(Program, st.just("module"), words.filter(bool))
    | st.builds(Program, st.just("function"), words.filter(bool), st.binary(min_size=1, max_size=8))
)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    names = draw(st.sets(st.sampled_from(GROUPS)))
    if "ps" in names or not names & {"chief", "worker"}:
        names.add("worker")
    single, cpu_only = ("chief", "evaluator", "tensorboard"), SERVICE_GROUPS
    groups = tuple(
        Group(
            name,
            1 if name in single else draw(st.integers(1, 5)),
            draw(cpu_resources if name in cpu_only else resources),
        )
        for name in GROUPS
        if name in names
    )
    can_serve = [name for name in ("ps", "worker") if name in names and (name == "ps" or "chief" in names)]
    return Job(
        name=draw(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True)),
        program=draw(programs),
        groups=groups,
        args=tuple(draw(st.lists(words))),
        env=draw(st.dictionaries(variables, words)),
        files=tuple(draw(st.lists(words))),
        image=draw(words),
        max_restarts=draw(st.integers(0, 10)),
        timeouts=draw(st.builds(Timeouts, st.none() | seconds, seconds, seconds, seconds)),
        serve=tuple(draw(st.lists(st.sampled_from(can_serve), unique=True))) if can_serve else (),
        folder=draw(words.filter(bool)),
        checkpoint_dir=draw(words),
        log_dir=draw(words),
    )


@settings(deadline=None)
@given(jobs())
def test_a_job_is_equal_after_its_way_through_job_json(job: Job) -> None:
    assert Job.from_table(json.loads(json.dumps(job.to_table())), job.program.payload) == job


def test_a_job_of_defaults_is_a_short_table() -> None:
    assert job_of().to_table() == {
        "name": "train",
        "program": "train.py",
        "max_restarts": 0,
        "start_timeout": 300,
        "stop_timeout": 10,
        "evaluator_timeout": 600,
        "folder": ".",
        "worker": {"count": 1},
    }


# Flags over file


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gridflow.toml"
    path.write_text(
        '[job]\nprogram = "train.py"\nname = "from-file"\nargs = ["--epochs", "3"]\nmax_restarts = 1\n'
        'env = {SEED = "1", MODE = "fast"}\n[job.worker]\ncount = 2\ncpus = 4\n'
    )
    flags = {
        "name": None,
        "args": ["--epochs", "5"],
        "max_restarts": 0,
        "env": {"SEED": "2"},
        "worker": {"count": 3},
        "ps": {"count": 1},
    }
    job = Job.from_file(path, flags)
    assert job.name == "from-file"
    assert job.args == ("--epochs", "5")
    assert job.max_restarts == 0
    assert job.env == {"SEED": "2", "MODE": "fast"}
    assert job.groups == (Group("worker", 3, Resources(cpus=4)), Group("ps"))


@pytest.mark.parametrize("below", [{"program": "train.py"}, {"module": "package.train"}, {}])
def test_a_program_on_top_replaces_the_one_below_whatever_its_kind(below: Mapping[str, str]) -> None:
    assert merge_tables(below, {"module": "package.other"}) == {"module": "package.other"}
    assert merge_tables(below, {"program": "other.py", "module": None}) == {"program": "other.py"}


tables = st.recursive(
    st.dictionaries(st.sampled_from(["program", "module", "args", "worker", "x"]), st.integers() | words | st.none()),
    lambda inner: st.dictionaries(st.sampled_from(["worker", "env", "x"]), inner | st.integers()),
    max_leaves=8,
)


@settings(deadline=None)
@given(tables, tables)
def test_what_is_given_on_top_wins_and_what_is_not_stays(below: dict[str, Any], above: dict[str, Any]) -> None:
    before = json.dumps([below, above])
    merged = merge_tables(below, above)
    assert json.dumps([below, above]) == before
    replaced = {"program", "module"} if above.get("program") or above.get("module") else set()
    for key in below.keys() | above.keys():
        low, high = below.get(key), above.get(key)
        if isinstance(low, dict) and isinstance(high, dict):
            assert merged[key] == merge_tables(low, high)
        elif high is not None and not (key in replaced and not high):
            assert merged[key] == high
        elif key in replaced:
            assert key not in merged
        else:
            assert merged.get(key) == low


@settings(deadline=None)
@given(tables)
def test_nothing_on_top_changes_nothing(below: dict[str, Any]) -> None:
    assert merge_tables(below, {}) == below
