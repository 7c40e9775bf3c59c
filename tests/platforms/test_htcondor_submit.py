from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow.errors import JobError, SettingsError
from gridflow.job import Job
from gridflow.platforms import htcondor_submit
from gridflow.platforms.base import load_platform
from gridflow.platforms.htcondor_options import Options

_WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"))


def job(**table: Any) -> Job:
    return Job.from_table({"program": "train.py", "folder": "/home/alice/work", **table})


def commands(job: Job, **options: Any) -> dict[str, str]:
    return dict(htcondor_submit.describe(job, Options(**options)).commands)


# The parallel universe


def test_tasks_of_the_parallel_universe_are_the_nodes_of_one_job() -> None:
    gang = job(worker={"count": 2, "memory": "3 GB", "cpus": 2}, chief={"memory": "3 GB", "cpus": 2})
    described = htcondor_submit.describe(gang, Options(parallel=True, spool=True))
    made = described.commands
    assert (made["universe"], made["machine_count"], made["+ParallelShutdownPolicy"]) == (
        "parallel", "3", '"WAIT_FOR_ALL"',
    )  # fmt: skip
    assert (made["request_cpus"], made["request_memory"], made["log"]) == ("2", "3072", "htcondor.chief-0.log")
    assert "GRIDFLOW_TASKS='chief/0 worker/0 worker/1'" in made["environment"]
    assert "GRIDFLOW_BOARD=board." in made["environment"]
    assert made.keys().isdisjoint({"output", "error"})
    assert described.queue == htcondor_submit.Queue()


def test_tasks_of_the_parallel_universe_ask_for_the_same() -> None:
    with pytest.raises(JobError, match="the groups ask for different resources") as error:
        commands(job(worker={"memory": "3 GB"}, ps={}), parallel=True)
    assert error.value.hint == "in the parallel universe all tasks ask for the same"


def test_the_parallel_universe_takes_images_in_the_older_form_alone() -> None:
    made = commands(job(image="/images/tf.sif"), parallel=True, image_form="singularity")
    assert (made["universe"], made["+SingularityImage"]) == ("parallel", '"/images/tf.sif"')
    with pytest.raises(JobError, match=r"the parallel universe has no containers of its own \(use image_form"):
        commands(job(image="/images/tf.sif"), parallel=True)


def test_the_parallel_universe_is_for_tasks_that_work_together() -> None:
    with pytest.raises(SettingsError, match=r"platform\.htcondor\.parallel is not possible with sweep, plain or then"):
        Options(parallel=True, sweep=("lr=1,2",))


# Quoting


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        (["one", "two three", '"four"', "it's"], """"one 'two three' ""four"" 'it''s'\""""),
        ([""], "\"''\""),
        (["größer", "漢字 ✓"], "\"größer '漢字 ✓'\""),
        (["$(Cluster)", "$HOME"], '"$(DOLLAR)(Cluster) $(DOLLAR)HOME"'),
        (["$$(x)", "$$$"], '"$$(DOLLARDOLLAR)(x) $$(DOLLARDOLLAR)$(DOLLAR)"'),
        ([], '""'),
    ],
)
def test_arguments_are_quoted_as_htcondor_reads_them(words: list[str], quoted: str) -> None:
    assert htcondor_submit.arguments(words) == quoted


@given(st.lists(_WORDS))
def test_arguments_come_out_as_they_went_in(words: list[str]) -> None:
    assert read_arguments(htcondor_submit.arguments(words)) == words


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]*", fullmatch=True), _WORDS))
def test_environment_comes_out_as_it_went_in(variables: dict[str, str]) -> None:
    words = read_arguments(htcondor_submit.environment(variables))
    assert dict(word.split("=", 1) for word in words) == variables


def test_a_line_break_cannot_be_given() -> None:
    with pytest.raises(JobError, match=r"'a\\nb' cannot be given to HTCondor \(its values have no line breaks\)"):
        htcondor_submit.arguments(["a\nb"])


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ({"requirements": "IsBig\nqueue 100"}, "requirements = 'IsBig\\nqueue 100'"),
        ({"submit": {"max_retries": "3\n"}}, "max_retries = '3\\n'"),
        ({"inputs": ("a\rb",)}, "transfer_input_files = 'gridflow.zip, job.json, outputs.json, work.tar, a\\rb'"),
    ],
)
def test_a_value_of_several_lines_cannot_be_given(options: dict[str, Any], command: str) -> None:
    with pytest.raises(JobError) as error:
        commands(job(), **options)
    assert str(error.value) == f"{command} cannot be given to HTCondor (its values have no line breaks)"


def read_arguments(text: str) -> list[str]:
    """Read HTCondor's new syntax as its manual says: blanks part words, '' within '…' is one, and "" is one."""
    inner = text[1:-1].replace("$(DOLLAR)", "$").replace("$$(DOLLARDOLLAR)", "$$").replace('""', '"')
    words: list[str] = []
    word: str | None = None
    is_quoted = False
    position = 0
    while position < len(inner):
        character = inner[position]
        if character == "'":
            if is_quoted and inner[position : position + 2] == "''":
                word = f"{word}'"
                position += 1
            else:
                is_quoted = not is_quoted
                word = word or ""
        elif character in " \t" and not is_quoted:
            if word is not None:
                words.append(word)
            word = None
        else:
            word = f"{word or ''}{character}"
        position += 1
    return words if word is None else [*words, word]


# The whole


def test_the_description_of_a_typical_job_is_this() -> None:
    typical = job(image="tensorflow.sif", worker={"count": 2, "cpus": 2, "memory": "4 GB", "gpus": 1}, ps={})
    text = htcondor_submit.describe(typical, Options(submit={"+JobDurationCategory": '"Long"'})).render()
    assert text == TYPICAL


TYPICAL = """\
# train: an HTCondor submit description, made by Gridflow
universe = container
container_image = /home/alice/work/tensorflow.sif
transfer_executable = true
executable = {run_dir}/gridflow-task.sh
initialdir = {run_dir}
environment = "GRIDFLOW_RUN={run} GRIDFLOW_TASK=$(task) GRIDFLOW_BOARD=board."
output = htcondor.$(file_stem).out
error = htcondor.$(file_stem).err
log = htcondor.$(file_stem).log
should_transfer_files = YES
when_to_transfer_output = ON_EXIT_OR_EVICT
transfer_input_files = gridflow.zip, job.json, outputs.json, work.tar
transfer_output_files = logs, results, checkpoints, tensorboard, outputs
checkpoint_exit_code = 85
transfer_checkpoint_files = logs, results, checkpoints, tensorboard, outputs
want_io_proxy = true
batch_name = train
+GridflowRun = "{run}"
request_cpus = $(cpus)
request_memory = $(memory_mb)
request_disk = 4096MB
request_gpus = $(gpus)
periodic_hold = JobStatus == 1 && VacateReasonCode =?= 1007 && NumShadowStarts >= 10 \
&& RemoteWallClockTime < 60 * NumShadowStarts
periodic_hold_reason = VacateReason
periodic_hold_subcode = 1007
+JobDurationCategory = "Long"
queue task, file_stem, cpus, memory_mb, gpus from (
    worker/0, worker-0, 2, 4096, 1
    worker/1, worker-1, 2, 4096, 1
    ps/0, ps-0, 1, 2048, 0
)
"""


# Images, GPUs, requirements


def test_an_image_of_the_older_form_is_quoted_and_asks_for_singularity() -> None:
    asked = commands(job(image="/cvmfs/x/tensorflow:latest"), image_form="singularity")
    assert asked["universe"] == "vanilla"
    assert asked["+SingularityImage"] == '"/cvmfs/x/tensorflow:latest"'
    assert asked["requirements"] == "HAS_SINGULARITY == True"
    odd = commands(job(image='/images/größe "漢字" $(x).sif'), image_form="singularity")
    assert odd["+SingularityImage"] == r'"/images/größe \"漢字\" $(DOLLAR)(x).sif"'


def test_requirements_of_the_user_come_with_those_of_the_image() -> None:
    asked = commands(job(image="/cvmfs/x"), image_form="singularity", requirements="CUDACapability >= 3 || IsBig")
    assert asked["requirements"] == "HAS_SINGULARITY == True && (CUDACapability >= 3 || IsBig)"
    assert commands(job(), requirements="IsBig")["requirements"] == "IsBig"


def test_an_image_that_every_machine_has_is_not_transferred() -> None:
    assert commands(job(image="/cvmfs/x"))["transfer_container"] == "false"
    assert "transfer_container" not in commands(job(image="x.sif"))
    assert commands(job(image="x.sif"), transfer_image=False)["transfer_container"] == "false"


def test_gpus_are_asked_for_by_memory_and_capability() -> None:
    asked = commands(job(worker={"gpus": 2, "gpu_memory_mb": 8000}), gpus_minimum_capability=7.5)
    assert asked["request_gpus"] == "$(gpus)"
    assert asked["gpus_minimum_memory"] == "8000"
    assert asked["gpus_minimum_capability"] == "7.5"


def test_a_job_without_an_image_is_not_held_for_want_of_it() -> None:
    assert "periodic_hold" not in commands(job())
    assert "periodic_hold" in commands(job(program="x.sh", image="/cvmfs/x"), plain=True)


def test_a_line_that_the_user_gives_wins() -> None:
    assert commands(job(), submit={"want_io_proxy": "false"})["want_io_proxy"] == "false"


# Plain jobs


def test_a_plain_job_has_nothing_of_gridflow_in_it() -> None:
    plain = job(program="job-wrapper.sh", files=["test.py"], args=["a b"], env={"SEED": "1"})
    asked = commands(plain, plain=True)
    assert asked["executable"] == "/home/alice/work/job-wrapper.sh"
    assert asked["transfer_input_files"] == "/home/alice/work/test.py"
    assert asked["arguments"] == "\"'a b'\""
    assert asked["environment"] == '"SEED=1"'
    assert (asked["output"], asked["log"]) == ("$(Cluster).$(Process).output", "$(Cluster).$(Process).log")
    assert not [value for value in asked.values() if "gridflow" in value.lower()]


@pytest.mark.parametrize("name", ["two words.txt", "a,b.txt"])
def test_a_name_that_htcondor_takes_for_several_is_refused(name: str) -> None:
    with pytest.raises(JobError) as error:
        commands(job(program="x.sh", files=[name]), plain=True)
    assert str(error.value) == (
        f"HTCondor cannot transfer '/home/alice/work/{name}' (blanks and commas part the names in its lists)"
    )
    with pytest.raises(JobError, match="HTCondor cannot transfer"):
        commands(job(), inputs=(name,))


def test_a_plain_job_has_one_task() -> None:
    with pytest.raises(JobError, match=r"plain = true, but the job has 2 tasks and is a script"):
        commands(job(worker={"count": 2}), plain=True)


# Templates and options


def test_a_template_of_the_user_is_taken(tmp_path: Path) -> None:
    (tmp_path / "my.sub").write_text("# mine\nexecutable = {{ commands.executable }}\nqueue 1\n")
    (tmp_path / "train.py").touch()
    plan = load_platform("htcondor", {"template": "my.sub"}).plan(job(folder=str(tmp_path)))
    (text,) = [file.content.decode() for file in plan.files if file.name == "job.sub"]
    assert text == "# mine\nexecutable = {run_dir}/gridflow-task.sh\nqueue 1\n"


def test_a_template_with_a_mistake_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.sub").write_text("executable = {{ comands }}\n")
    with pytest.raises(SettingsError, match="the template of the submit description is wrong: 'comands' is undefined"):
        load_platform("htcondor", {"template": "my.sub"}).plan(job(folder=str(tmp_path)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"image_form": "docker"},
            "platform.htcondor.image_form = 'docker' is not known (one of: container, singularity)",
        ),
        ({"access": "ssh"}, "platform.htcondor.access = 'ssh' is not known (one of: auto, bindings, tools)"),
        ({"spool": "maybe"}, "platform.htcondor.spool = 'maybe' is not true or false (give true or false)"),
    ],
)
def test_an_option_that_is_not_possible_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_platform("htcondor", options)
    assert str(error.value) == message


def test_folders_that_htcondor_carries_are_not_elsewhere() -> None:
    plan = load_platform("htcondor").plan(job(checkpoint_dir="/shared/checkpoints"))
    note = "checkpoint_dir and log_dir are not used: HTCondor carries those folders, and brings them back"
    assert note in plan.notes


# What a person has written


def test_a_description_of_a_persons_own_is_submitted_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "job.sub").write_text("executable = /bin/date\nLog = date.log\nqueue\n")
    plan = load_platform("htcondor", {"spool": True}).plan(job(program="job.sub", folder=str(tmp_path)))
    assert [command.argv for command in plan.commands] == [("condor_submit", "-spool", str(tmp_path / "job.sub"))]


def test_a_description_without_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.sub").write_text("executable = /bin/date\nqueue\n")
    with pytest.raises(JobError) as error:
        load_platform("htcondor").plan(job(program="job.sub", folder=str(tmp_path)))
    assert str(error.value) == (
        f"{tmp_path}/job.sub has no log, so nobody could follow the run (add: log = $(Cluster).$(Process).log)"
    )
