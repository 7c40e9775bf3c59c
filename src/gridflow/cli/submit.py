"""`gridflow submit`: start a job and leave it running."""

from __future__ import annotations

import json

import click

from gridflow.cli.job_options import Request, job_options
from gridflow.launcher import submit


@click.command()
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print the run's status as JSON.")
def command(request: Request, as_json: bool) -> None:
    """Start PROGRAM in the background and print its run id.

    Follow it with `gridflow status`, `gridflow logs -f`, stop it with `gridflow cancel`.
    """
    run = submit(request.job, request.on, request.options, attached=False)
    click.echo(json.dumps(run.status().to_dict(), indent=2) if as_json else run.id)
