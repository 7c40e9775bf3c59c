"""The run that a verb is about, shared by `status`, `logs` and `cancel`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import click

from gridflow import settings
from gridflow.errors import UsageError
from gridflow.run import Run


def existing_run(**argument: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add RUN and `--on` to a verb, which gets them as one `run`; the keywords are those of Click's argument."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_run(*, run_id: str, on: str | None, **own: Any) -> Any:
            return function(run=_find(run_id, on), **own)

        option = click.option("--on", metavar="PLATFORM", help="Where it runs, which RUN says as well.")
        return click.argument("run_id", metavar="RUN", **argument)(option(with_run))

    return add


def _find(run_id: str, on: str | None) -> Run:
    run = Run.find(settings.home(os.environ), run_id)
    if on not in (None, run.platform):
        raise UsageError(f"run {run.id} is on {run.platform}, not on {on}", hint="leave --on out: the run knows")
    return run
