"""`gridflow cancel`: stop a run."""

from __future__ import annotations

import json

import click

from gridflow.cli.existing_run import existing_run
from gridflow.run import Run


@click.command()
@existing_run()
@click.option("--json", "as_json", is_flag=True, help="Print the run's final status as JSON.")
def command(run: Run, as_json: bool) -> None:
    """Stop RUN and wait until nothing of it is left; an ended run stays as it is."""
    run.cancel()
    status = run.status()
    click.echo(json.dumps(status.to_dict(), indent=2) if as_json else f"{run.id} {status.state}")
