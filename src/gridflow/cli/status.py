"""`gridflow status`: one run and its tasks."""

from __future__ import annotations

import json

import click

from gridflow.cli.existing_run import existing_run
from gridflow.cli.view import describe
from gridflow.run import Run


@click.command()
@existing_run(default="last")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: Run, as_json: bool) -> None:
    """Show RUN (an id, the beginning of one, or `last`) and its tasks."""
    status = run.status()
    click.echo(json.dumps(status.to_dict(), indent=2) if as_json else describe(run, status))
