"""A job as an HTCondor submit description. Pure.

Every task is a proc of one cluster. What differs between tasks is in the table of the `queue` statement; the rest is a
list of commands, which a template prints. HTCondor reads macros, `$(…)`, everywhere, and has a quoting of its own:

    arguments = "one 'two three' ""four"" 'it''s'"       one | two three | "four" | it's
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gridflow import shipping
from gridflow.errors import JobError, SettingsError
from gridflow.gpu.claims import Claim
from gridflow.gpu.cluster_requests import ClusterRequest, htcondor_request
from gridflow.job import Group, Job, file_stem
from gridflow.platforms.base import RUN_DIR
from gridflow.platforms.htcondor_holds import IN_VAIN
from gridflow.platforms.htcondor_options import Options
from gridflow.platforms.htcondor_variants import Variant
from gridflow.store import ARCHIVE
from gridflow.task import identity
from gridflow.task.htcondor_names import BOARD, CHECKPOINT_EXIT_CODE, FOLDERS, OUTPUTS, VARIANTS

#: Stands in a plan for the run's id, which does not exist before `submit`.
RUN = "{run}"
#: An image that cannot be run is tried for ever. So HTCondor itself holds such a job, also where nobody asks after it:
#: one whose starter has failed (1007), and that has hardly run in all of its lives.
_IN_VAIN = {
    "periodic_hold": "JobStatus == 1 && VacateReasonCode =?= 1007 && NumShadowStarts >= 10"
    " && RemoteWallClockTime < 60 * NumShadowStarts",
    "periodic_hold_reason": "VacateReason",
    "periodic_hold_subcode": str(IN_VAIN),
}
#: A task that says nothing gets this much: what OSG's guide for TensorFlow asks for.
DEFAULT_CPUS = 1
DEFAULT_MEMORY_MB = 2048

_LINE_ENDS = "\n\r\0"
_ONE_LINE = "its values have no line breaks"

WRAPPER = "gridflow-task.sh"
DESCRIPTION = "job.sub"
PACKAGE = "gridflow.zip"
WORKFLOW = "workflow.dag"
_TEMPLATES = Path(__file__).parent / "templates"
TEMPLATE = _TEMPLATES / "htcondor.sub"
WRAPPER_SOURCE = _TEMPLATES / "htcondor_task.sh"


@dataclass(frozen=True)
class Queue:
    """The `queue` statement: rows of a table, or a number."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    count: int = 1


@dataclass(frozen=True)
class Description:
    """A submit description, before it is text."""

    name: str
    commands: Mapping[str, str]
    queue: Queue = field(default_factory=Queue)
    notes: tuple[str, ...] = ()

    def render(self, template: str = "") -> str:
        """Return the text, by the template that is given or by Gridflow's own."""
        import jinja2

        source = template or TEMPLATE.read_text()
        environment = jinja2.Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            undefined=jinja2.StrictUndefined,
            autoescape=False,  # noqa: S701 - it is no page
        )
        try:
            return environment.from_string(source).render(
                name=self.name, commands=self.commands, queue=self.queue, notes=self.notes
            )
        except jinja2.TemplateError as error:
            raise SettingsError(f"the template of the submit description is wrong: {error}") from error


def describe(job: Job, options: Options) -> Description:
    """Return the submit description of a job."""
    description = _plain(job, options) if options.plain else _with_agent(job, options)
    for command, value in description.commands.items():
        if any(character in f"{command}{value}" for character in _LINE_ENDS):
            raise JobError(f"{command} = {value!r} cannot be given to HTCondor", hint=_ONE_LINE)
    return description


def event_log(task: str) -> str:
    """Return the name of a task's job event log."""
    return f"htcondor.{file_stem(task)}.log"


def arguments(words: Sequence[str]) -> str:
    """Quote a command line for `arguments`."""
    return f'"{" ".join(_quote(word) for word in words)}"'


def environment(variables: Mapping[str, str]) -> str:
    """Quote variables for `environment`."""
    return f'"{" ".join(f"{name}={_quote(value)}" for name, value in variables.items())}"'


def escape(text: str) -> str:
    """Keep HTCondor from reading a macro in a text: $(…) when it is submitted, $$(…) when a machine is found."""
    return "$$(DOLLARDOLLAR)".join(part.replace("$", "$(DOLLAR)") for part in text.split("$$"))


def file_list(names: Sequence[str]) -> str:
    """Write names of files for HTCondor, which knows no quotes in a list of them."""
    for name in names:
        if any(character in " \t," for character in name):
            raise JobError(f"HTCondor cannot transfer {name!r}", hint="blanks and commas part the names in its lists")
    return ", ".join(map(escape, names))


def _quote(word: str) -> str:
    if any(character in word for character in _LINE_ENDS):
        raise JobError(f"{word!r} cannot be given to HTCondor", hint=_ONE_LINE)
    quoted = word.replace("'", "''").replace('"', '""')
    if not word or any(character in " \t'" for character in word):
        quoted = f"'{quoted}'"
    return escape(quoted)


def _with_agent(job: Job, options: Options) -> Description:
    """Describe a job whose tasks are run by Gridflow's agent."""
    which = {"GRIDFLOW_TASKS": " ".join(job.tasks)} if options.parallel else {identity.TASK: "{task}"}
    variables = {
        identity.RUN: RUN,
        **which,
        **({"GRIDFLOW_PYTHON": options.python} if options.python else {}),
        BOARD: "{board}",
    }
    # Macros of the queue's table, which must not be escaped.
    quoted = environment(variables).replace("{task}", "$(task)").replace("{board}", _board(job, options))
    folders = ", ".join(FOLDERS)
    request, notes = _requests(job, options)
    commands = {
        **_universe(job, options),
        "executable": f"{RUN_DIR}/{WRAPPER}",
        "initialdir": RUN_DIR,
        "environment": quoted,
        "output": "htcondor.$(file_stem).out",
        "error": "htcondor.$(file_stem).err",
        "log": "htcondor.$(file_stem).log",
        "should_transfer_files": "YES",
        # What a task has saved when it loses its slot goes with it to the next one.
        "when_to_transfer_output": "ON_EXIT_OR_EVICT",
        "transfer_input_files": file_list(_inputs(job, options)),
        "transfer_output_files": folders,
        "checkpoint_exit_code": str(CHECKPOINT_EXIT_CODE),
        "transfer_checkpoint_files": folders,
        "want_io_proxy": "true",
        "batch_name": escape(job.name),
        "+GridflowRun": f'"{RUN}"',
        **_requirements(job, options),
        **request,
        **(_IN_VAIN if job.image else {}),
        **dict(options.submit),
    }
    columns: tuple[str, ...] = ("task", "file_stem", "cpus", "memory_mb")
    rows = tuple(_row(job.group_of(task), task) for task in job.tasks)
    if any(group.resources.gpus for group in job.groups):
        columns = (*columns, "gpus")
        rows = tuple((*row, _gpus(job.group_of(task), options)) for row, task in zip(rows, job.tasks, strict=True))
    if options.then:
        # DAGMan gives each stage its row.
        return Description(job.name, commands, Queue(), notes)
    if options.parallel:
        commands = _all_at_once(job, commands, dict(zip(columns, rows[0], strict=True)))
        return Description(job.name, commands, Queue(), notes)
    return Description(job.name, commands, Queue(columns, rows), notes)


def _inputs(job: Job, options: Options) -> list[str]:
    """Return the files that a task's slot is given."""
    inputs = [PACKAGE, "job.json", OUTPUTS]
    if shipping.carried(job):
        inputs.append(ARCHIVE)
    if job.program.kind == "function":
        inputs.append("function.pickle")
    if options.sweep or options.then:
        inputs.append(VARIANTS)
    if options.then:
        # What the stages before have made.
        inputs += [folder for folder in FOLDERS if folder != "logs"]
    return [*inputs, *options.inputs]


def _all_at_once(job: Job, commands: Mapping[str, str], row: Mapping[str, str]) -> dict[str, str]:
    """Return the commands that make the tasks one job of the parallel universe, a node each."""
    if len({group.resources for group in job.groups}) > 1:
        raise JobError(
            "the groups ask for different resources", hint="in the parallel universe all tasks ask for the same"
        )
    changed = {
        **commands,
        "machine_count": str(len(job.tasks)),
        "+ParallelShutdownPolicy": '"WAIT_FOR_ALL"',
        "log": event_log(job.first_task),
        # When one loses its slot all do.
        "when_to_transfer_output": "ON_EXIT",
        "request_cpus": row["cpus"],
        "request_memory": row["memory_mb"],
    }
    if "gpus" in row:
        changed["request_gpus"] = row["gpus"]
    # Of these there is one for all nodes, and each has its own log besides.
    return {name: value for name, value in changed.items() if name not in ("output", "error")}


def workflow(job: Job, variants: Sequence[Variant]) -> str:
    """Return a DAGMan file: the stages one after the other, each with its row of the queue's table.

    JOB evaluate job.sub
    VARS evaluate task="worker/1" file_stem="worker-1" …
    PARENT train CHILD evaluate
    """
    lines = [f"# {job.name}: a workflow of HTCondor's DAGMan, made by Gridflow"]
    for stage, task in zip(variants, job.tasks, strict=True):
        task_name, stem, cpus, memory_mb = _row(job.group_of(task), task)
        gpus = str(math.ceil(job.group_of(task).resources.gpus))
        row = {"task": task_name, "file_stem": stem, "cpus": cpus, "memory_mb": memory_mb, "gpus": gpus}
        lines.append(f"JOB {stage.name} {DESCRIPTION}")
        lines.append(f"VARS {stage.name} " + " ".join(f'{name}="{value}"' for name, value in row.items()))
        if stage.retries:
            lines.append(f"RETRY {stage.name} {stage.retries}")
    names = [stage.name for stage in variants]
    lines += [f"PARENT {before} CHILD {after}" for before, after in itertools.pairwise(names)]
    return "\n".join(lines) + "\n"


def _board(job: Job, options: Options) -> str:
    """Return where the tasks meet: beside the run's files; spooled tasks, with a folder each, in the first one's."""
    if len(job.tasks) == 1 or options.sweep or options.then:
        return ""
    return "spool:" if options.spool and not options.parallel else "board."


def _row(group: Group, task: str) -> tuple[str, ...]:
    resources = group.resources
    cpus = max(1, round(resources.cpus)) if resources.cpus else DEFAULT_CPUS
    return (task, file_stem(task), str(cpus), str(resources.memory_mb or DEFAULT_MEMORY_MB))


def _gpus(group: Group, options: Options) -> str:
    return _gpu_request(group, options).settings["request_gpus"] if group.resources.gpus else "0"


def _gpu_request(group: Group, options: Options) -> ClusterRequest:
    claim = Claim.of_resources(group.resources, min_capability=options.gpus_minimum_capability)
    return htcondor_request(claim)


def _requests(job: Job, options: Options) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return what is asked of a slot, with the macros of the queue's table."""
    commands = {
        "request_cpus": "$(cpus)",
        "request_memory": "$(memory_mb)",
        "request_disk": f"{options.disk_mb}MB",
    }
    notes: list[str] = []
    if job.checkpoint_dir or job.log_dir:
        notes.append("checkpoint_dir and log_dir are not used: HTCondor carries those folders, and brings them back")
    for group in job.groups:
        if group.resources.gpus:
            request = _gpu_request(group, options)
            commands |= {**request.settings, "request_gpus": "$(gpus)"}
            notes += request.notes
    return commands, tuple(notes)


def _universe(job: Job, options: Options) -> dict[str, str]:
    universe = "parallel" if options.parallel else "vanilla"
    if not job.image:
        return {"universe": universe}
    if options.image_form == "singularity":
        return {"universe": universe, "+SingularityImage": escape(json.dumps(job.image, ensure_ascii=False))}
    if options.parallel:
        raise JobError("the parallel universe has no containers of its own", hint='use image_form = "singularity"')
    is_relative = "://" not in job.image and not job.image.startswith("/")
    image = os.path.join(os.path.abspath(job.folder), job.image) if is_relative else job.image
    # Some versions take a program with a whole path for one that is in the image.
    commands = {"universe": "container", "container_image": escape(image), "transfer_executable": "true"}
    transfers = options.transfer_image
    if transfers is None and job.image.startswith("/cvmfs/"):
        transfers = False  # it is on every machine already
    if transfers is not None:
        commands["transfer_container"] = str(transfers).lower()
    return commands


def _requirements(job: Job, options: Options) -> dict[str, str]:
    needs_singularity = bool(job.image) and options.image_form == "singularity"
    wanted = ["HAS_SINGULARITY == True"] if needs_singularity else []
    if options.requirements:
        binds_less = wanted and any(operator in options.requirements for operator in ("||", "?"))
        wanted.append(f"({options.requirements})" if binds_less else options.requirements)
    return {"requirements": " && ".join(wanted)} if wanted else {}


def _plain(job: Job, options: Options) -> Description:
    """Describe a job whose program is HTCondor's own executable."""
    if len(job.tasks) != 1 or job.program.kind not in ("script", "command"):
        raise JobError(
            f"plain = true, but the job has {len(job.tasks)} tasks and is a {job.program.kind}",
            hint="a plain job is one program file in one task; leave `plain` out for anything else",
        )
    task = job.first_task
    resources = job.group_of(task).resources
    commands = {
        **_universe(job, options),
        **_requirements(job, options),
        "request_cpus": _row(job.group_of(task), task)[2],
        "request_memory": f"{resources.memory_mb or DEFAULT_MEMORY_MB}MB",
        "request_disk": f"{options.disk_mb}MB",
    }
    notes: tuple[str, ...] = ()
    if resources.gpus:
        request = _gpu_request(job.group_of(task), options)
        commands |= dict(request.settings)
        notes = request.notes
    folder = Path(job.folder).absolute()
    commands["executable"] = escape(str(folder / job.program.target))
    if job.args:
        commands["arguments"] = arguments(job.args)
    commands["initialdir"] = RUN_DIR
    inputs = [*(os.path.join(folder, name) for name in job.files), *options.inputs]
    if inputs:
        commands["transfer_input_files"] = file_list(inputs)
    if options.outputs:
        commands["transfer_output_files"] = file_list(options.outputs)
    if job.env:
        commands["environment"] = environment(job.env)
    commands |= {name: f"$(Cluster).$(Process).{name}" for name in ("error", "output", "log")}
    commands |= {"should_transfer_files": "YES", "when_to_transfer_output": "ON_EXIT"}
    commands |= _IN_VAIN if job.image else {}
    return Description(job.name, {**commands, **dict(options.submit)}, Queue(), notes)
