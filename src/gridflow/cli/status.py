"""`gridflow status`: one run and its tasks."""

from __future__ import annotations

import json
import os

import click

from gridflow import settings
from gridflow.cli.view import describe
from gridflow.run import Run


@click.command()
@click.argument("run_id", metavar="RUN", default="last")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run_id: str, as_json: bool) -> None:
    """Show RUN (an id, the beginning of one, or `last`) and its tasks."""
    run = Run.find(settings.home(os.environ), run_id)
    status = run.status()
    click.echo(json.dumps(status.to_dict(), indent=2) if as_json else describe(run, status))
