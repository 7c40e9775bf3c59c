"""`gridflow list`: all runs."""

from __future__ import annotations

import json
import os
import time

import click

from gridflow import settings
from gridflow.errors import GridflowError
from gridflow.run import Run
from gridflow.store import list_runs


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of runs.")
def command(as_json: bool) -> None:
    """List all runs, the newest last."""
    home = settings.home(os.environ)
    rows = []
    for folder in list_runs(home):
        try:
            status = Run.find(home, folder.run).status()
        except GridflowError as error:
            click.echo(f"gridflow: {error}", err=True)
            continue
        created = folder.record()["created"]
        rows.append({"run": folder.run, "state": status.state, "platform": status.platform, "created": created})
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["created"]))
        click.echo(f"{created}  {row['state']:<10} {row['platform']:<10} {row['run']}")
    if not rows:
        click.echo(f"no runs yet in {home}; start one with `gridflow run train.py`")
