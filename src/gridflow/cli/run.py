"""`gridflow run`: submit a job, follow it, leave with its exit code."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from gridflow.cli.job_options import Request, job_options
from gridflow.cli.view import open_view
from gridflow.launcher import submit
from gridflow.run import Run
from gridflow.state import RunState, RunStatus


@click.command()
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print nothing but the final status, as JSON.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors, and why a task is held.")
def command(request: Request, as_json: bool, quiet: bool) -> int:
    """Run PROGRAM (a .py file, a job file .toml, or any executable) and follow it to its end.

    \b
    gridflow run train.py --workers 2 -- --epochs 3
    gridflow run gridflow.toml --max-restarts 2
    gridflow run -m package.train --workers 2
    """
    with _signals_as_interrupts():
        run = submit(request.job, request.on, request.options, attached=True)
        try:
            with open_view(run, quiet=quiet or as_json) as view:
                status = view.follow()
        except KeyboardInterrupt:
            click.echo("gridflow: stopping …", err=True)
            run.cancel()
            status = run.status()
    if as_json:
        click.echo(json.dumps(status.to_dict(), indent=2))
    return _conclude(run, status)


def _conclude(run: Run, status: RunStatus) -> int:
    if status.state is not RunState.SUCCEEDED:
        click.echo(f"gridflow: {run.failure(status)}", err=True)
    return status.state.exit_code or 0


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C: the run is stopped before this process is.

    What the caller had this process ignore stays ignored, as with `nohup gridflow run …`.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
