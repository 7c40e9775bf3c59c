"""`gridflow logs`: a task's output."""

from __future__ import annotations

import json

import click

from gridflow.cli.existing_run import existing_run
from gridflow.run import Run


@click.command()
@existing_run(default="last")
@click.argument("task", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: run, task, log.")
def command(run: Run, task: str | None, follow: bool, as_json: bool) -> None:
    """Print the output of TASK (such as worker/1; default: the first one) of RUN."""
    task = task or run.job.first_task
    pieces = run.logs(task, follow=follow)
    if as_json:
        click.echo(json.dumps({"run": run.id, "task": task, "log": "".join(pieces)}))
        return
    for piece in pieces:
        # Colours are the program's own, so they stay even in a pipe.
        click.echo(piece, nl=False, color=True)
