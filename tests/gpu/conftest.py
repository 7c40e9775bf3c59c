"""A host with GPUs, for the tests that ask for one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gpu.hosts import Host, declared_host


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host with two GPUs of 8 GB, for this process too."""
    return declared_host(tmp_path, monkeypatch)
