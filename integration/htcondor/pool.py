"""The pool as tests see it: what to reach it by, and what can be done to it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = Path(__file__).with_name("htcondor-pool")
_END_SECONDS = 60
_COMMAND_SECONDS = 120
_IMAGE_SECONDS = 1800

#: The images of OSG's guide for TensorFlow, by their names there.
OSG_IMAGES = "/cvmfs/singularity.opensciencegrid.org/opensciencegrid"


@dataclass(frozen=True)
class Pool:
    """A pool that runs."""

    folder: Path

    @property
    def exports(self) -> dict[str, str]:
        """What its users on this machine have in their environment."""
        return {"CONDOR_CONFIG": str(self.folder / "client" / "condor_config")}

    @property
    def tools(self) -> Path:
        """The folder of HTCondor's tools, for this machine."""
        return self.folder / "client" / "bin"

    @property
    def home(self) -> Path:
        """The home of alice, who is logged in inside the pool."""
        return self.folder / "root" / "home" / "alice"

    def run(self, *argv: str, user: str = "alice", cwd: str = "/home/alice", check: bool = True) -> str:
        """Run a command inside the pool, as somebody who is logged in there."""
        command = [str(_SCRIPT), "exec", str(self.folder), user, cwd, *argv]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
        assert done.returncode == 0 or not check, f"{argv} failed: {done.stdout}{done.stderr}"
        return done.stdout

    def tool(self, *argv: str, check: bool = True) -> str:
        """Run one of HTCondor's tools on this machine."""
        command = [str(self.tools / argv[0]), *argv[1:]]
        environment = {**os.environ, **self.exports}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False, env=environment
        )
        assert done.returncode == 0 or not check, f"{argv} failed: {done.stdout}{done.stderr}"
        return done.stdout


@contextmanager
def running(folder: Path, cache: Path) -> Iterator[Pool]:
    """Have a pool, from when it is ready until nothing of it is left."""
    argv = [str(_SCRIPT), "run", str(folder)]
    log = folder / "start.log"
    with log.open("w") as errors:
        # In a session of its own, since Ctrl-C at the terminal is for pytest; it ends with pytest all the same.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env={**os.environ, "HTCONDOR_POOL_CACHE": str(cache)},
        )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n", f"the pool did not start:\n{log.read_text()}"
            yield Pool(folder)
        finally:
            process.stdin.close()
            process.wait(_END_SECONDS)


def image(pool: Pool, cache: Path, name: str, *requirements: str) -> str:
    """Return the path of an image inside the pool, which is built unless it is in the cache."""
    kept = cache / f"{name}.sif"
    target = pool.folder / "images" / kept.name
    if not kept.exists():
        argv = [str(_SCRIPT), "image", str(pool.folder), name, *requirements]
        environment = {**os.environ, "HTCONDOR_POOL_CACHE": str(cache)}
        subprocess.run(argv, check=True, timeout=_IMAGE_SECONDS, env=environment, stdin=subprocess.DEVNULL)
        _copy(target, kept)
    elif not target.exists():
        _copy(kept, target)
    return f"/images/{kept.name}"


def _copy(source: Path, target: Path) -> None:
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    subprocess.run(["cp", "--reflink=auto", str(source), str(aside)], check=True, timeout=_COMMAND_SECONDS)
    aside.rename(target)


def serve_osg_image(pool: Pool, name: str, image_path: str) -> str:
    """Have an image under the name that the Open Science Grid gives it, and return that."""
    target = pool.folder / "root" / OSG_IMAGES.lstrip("/") / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink():
        target.symlink_to(image_path)
    return f"{OSG_IMAGES}/{name}"
