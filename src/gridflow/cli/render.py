"""`gridflow render`: print a plan."""

from __future__ import annotations

import json

import click

from gridflow.cli.job_options import Request, job_options
from gridflow.platforms.base import load_platform


@click.command()
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(request: Request, as_json: bool) -> None:
    """Print what the platform would be asked to do for PROGRAM, and do nothing."""
    request.job.check_files()
    plan = load_platform(request.on, request.options).plan(request.job)
    click.echo(json.dumps(plan.to_dict(), indent=2) if as_json else str(plan))
