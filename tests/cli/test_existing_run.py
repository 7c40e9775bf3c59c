"""RUN and `--on`, as `status`, `logs` and `cancel` take them."""

from __future__ import annotations

import pytest
from tests.cli.records import record_run
from tests.cli.terminal import gridflow


@pytest.mark.parametrize("verb", ["status", "logs", "cancel"])
def test_the_platform_may_be_named_but_only_the_one_that_the_run_is_on(verb: str) -> None:
    folder = record_run()
    assert gridflow(verb, folder.run, "--on", "local").stdout == gridflow(verb, folder.run).stdout != ""
    done = gridflow(verb, folder.run, "--on", "htcondor")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gridflow: run {folder.run} is on local, not on htcondor (leave --on out: the run knows)\n"
