"""A real HTCondor pool with Apptainer, in namespaces of its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.htcondor.pool import Pool, image, running
from integration.system import require

#: Debian's release and the versions of what matters: a change here builds the cache anew.
VERSION = "htcondor-23.9-trixie"
TENSORFLOW = "tensorflow-cpu==2.21.0"
#: What the pool needs of the system, and Debian's package with it.
PACKAGES = {"mmdebstrap": "mmdebstrap", "nsenter": "util-linux", "setpriv": "util-linux"}
WAYS = ("bindings", "tools")


@pytest.fixture(scope="session")
def cache() -> Path:
    """Where what was built is kept."""
    folder = Path(os.environ.get("GRIDFLOW_TEST_CACHE", "~/.cache/gridflow-test")).expanduser() / VERSION
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def pool(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """The pool; there is one for all tests."""
    if os.geteuid() != 0:
        pytest.fail("the pool needs namespaces and cgroups: run the tests as root", pytrace=False)
    require(PACKAGES)
    folder = tmp_path_factory.mktemp("pool")
    try:
        with running(folder, cache) as started:
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """The way to the schedd."""
    return str(request.param)


@pytest.fixture
def reached(pool: Pool, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    """The pool, reached from this process and its children over a token, in one of the ways."""
    monkeypatch.setenv("GRIDFLOW_HOME", str(tmp_path / "gridflow-home"))
    for name, value in pool.exports.items():
        monkeypatch.setenv(name, value)
    # The pool is there for this alone, so it may be asked more often.
    monkeypatch.setattr("gridflow.platforms.htcondor._ASK_SECONDS", 0.5)
    if way == "tools":
        monkeypatch.setenv("PATH", f"{pool.tools}{os.pathsep}{os.environ['PATH']}")
        hide_bindings(tmp_path, monkeypatch)
    return pool


def hide_bindings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it that HTCondor's Python bindings are not installed, here and in processes that are started."""
    monkeypatch.setitem(sys.modules, "htcondor2", None)
    startup = folder / "without-bindings"
    startup.mkdir()
    (startup / "sitecustomize.py").write_text("import sys\nsys.modules['htcondor2'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(startup), prepend=os.pathsep)


@pytest.fixture(scope="session")
def python_image(pool: Pool, cache: Path) -> str:
    """A small image with Python alone."""
    return image(pool, cache, "python")


@pytest.fixture(scope="session")
def tensorflow_image(pool: Pool, cache: Path) -> str:
    """An image with TensorFlow."""
    return image(pool, cache, "tensorflow", TENSORFLOW)


@pytest.fixture(autouse=True)
def _no_job_is_left(pool: Pool) -> Iterator[None]:
    """Remove what a test leaves in the queue, so that the next one has all slots."""
    yield
    if pool.tool("condor_q", "-all", "-af", "ClusterId").strip():
        # What was on its way out may be gone by now.
        pool.tool("condor_rm", "-all", check=False)
