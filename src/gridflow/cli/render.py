"""`gridflow render`: print a plan."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gridflow.cli.job_options import Request, job_options
from gridflow.errors import UsageError
from gridflow.platforms.base import Platform, load_platform


@click.command()
@job_options
@click.option("--eject", is_flag=True, help="Copy the platform's templates beside the job, to be tailored.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(request: Request, as_json: bool, eject: bool) -> None:
    """Print what the platform would be asked to do for PROGRAM, and do nothing."""
    request.job.check_files()
    platform = load_platform(request.on, request.options)
    if eject:
        _eject(platform, Path(request.job.folder))
        return
    plan = platform.plan(request.job)
    click.echo(json.dumps(plan.to_dict(), indent=2) if as_json else str(plan))


def _eject(platform: Platform, folder: Path) -> None:
    """Copy a platform's templates, but over nothing that is there."""
    templates = platform.templates()
    if not templates:
        raise UsageError(f"platform {platform.name} has no templates")
    for template in templates:
        path = folder / template.name
        if path.exists():
            raise UsageError(f"{path} is there already", hint="remove it first, or go on with it")
        path.write_bytes(template.content)
        click.echo(f'{path}: use it with [platform.{platform.name}] template = "{template.name}"')
