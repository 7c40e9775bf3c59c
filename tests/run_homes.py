"""A pytest plugin: every test has a home of its own for the runs it starts."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _runs_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the runs of a test out of the user's own, and out of those of other tests."""
    monkeypatch.setenv("GRIDFLOW_HOME", str(tmp_path / "gridflow-home"))
