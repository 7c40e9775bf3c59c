"""A job as HTCondor is asked for it: the files of a run, and the command that submits them. It reads files, no more."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gridflow.errors import JobError
from gridflow.job import Job
from gridflow.platforms import htcondor_submit as submission
from gridflow.platforms.base import RUN_DIR, Command, File, Plan, job_files, job_record
from gridflow.platforms.htcondor_options import Options
from gridflow.platforms.htcondor_package import package
from gridflow.platforms.htcondor_variants import expand
from gridflow.task.htcondor_names import OUTPUTS, VARIANTS


def plan(job: Job, options: Options) -> Plan:
    """Return the submit description and what travels with the tasks."""
    if job.program.kind == "request":
        return _plan_request(job, options)
    text = (Path(job.folder) / options.template).read_text() if options.template else ""
    variants = options.variants(job)
    job = expand(job, variants)
    description = submission.describe(job, options)
    files = [*job_files(job), File(submission.DESCRIPTION, description.render(text).encode())]
    if not options.plain:
        files += [
            File(submission.WRAPPER, submission.WRAPPER_SOURCE.read_bytes()),
            File(submission.PACKAGE, package()),
            File(OUTPUTS, json.dumps(options.outputs).encode()),
        ]
    if variants:
        files.append(File(VARIANTS, json.dumps([each.to_dict() for each in variants], indent=1).encode()))
    command = _submit_command(f"{RUN_DIR}/{submission.DESCRIPTION}", options)
    if options.then:
        files.append(File(submission.WORKFLOW, submission.workflow(job, variants).encode()))
        command = Command(("condor_submit_dag", f"{RUN_DIR}/{submission.WORKFLOW}"))
    return Plan(tuple(files), (command,), description.notes)


def _plan_request(job: Job, options: Options) -> Plan:
    """Return a description that a person has written, as it is."""
    path = Path(job.folder, job.program.target)
    text = path.read_text()
    if not re.search(r"(?mi)^\s*log\s*=", text):
        raise JobError(
            f"{path} has no log, so nobody could follow the run", hint="add: log = $(Cluster).$(Process).log"
        )
    files = (job_record(job), File(submission.DESCRIPTION, text.encode()))
    return Plan(files, (_submit_command(str(path), options),))


def _submit_command(path: str, options: Options) -> Command:
    return Command(("condor_submit", *(("-spool",) if options.spool else ()), path))
