"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

# Its asserts are not in a test module, yet their values should be shown when they fail.
pytest.register_assert_rewrite("tests.contract")
pytest_plugins = ["pytester", "tests.leaks"]


@pytest.fixture(autouse=True)
def _runs_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the runs of a test out of the user's own, and out of those of other tests."""
    monkeypatch.setenv("GRIDFLOW_HOME", str(tmp_path / "gridflow-home"))
