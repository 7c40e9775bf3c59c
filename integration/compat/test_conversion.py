"""The programs of docs/conversion.md do the same before and after, on a cluster with two workers.

Where the other system can be installed (bench/peers.py), the program that is still written for it runs too, several
times if it must: TensorFlowOnSpark may hang, or look for a model that is still being saved. Hops cannot: it needs
Hopsworks, so its program runs after the conversion only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from integration.spark.standalone import Standalone

ROOT = Path(__file__).parents[2]
RUN_SECONDS = 280
#: For a program of another system, and how often it is tried.
TRY_SECONDS, TRIES = 150, 3
INSTALL_SECONDS = 900
#: What each pair ends with, and the system that it comes from where that can run here.
PAIRS = {
    "hops": ("best: learning_rate 0.3 steps 15", None),
    "pipeline": ("predictions 0.50 0.50", "tensorflowonspark"),
    "spark_tensorflow_distributor": ("weights 2.00 -1.00 0.50", "spark-tensorflow-distributor"),
    "tensorflowonspark": ("2.00 a -1.00 b +0.50", "tensorflowonspark"),
}
BEFORE = sorted(name for name, (_, peer) in PAIRS.items() if peer)


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_a_converted_program_does_its_work(name: str, cluster: Standalone, tmp_path: Path) -> None:
    says, _ = PAIRS[name]
    done = run(Path(sys.executable), name, "after.py", cluster, tmp_path, RUN_SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == says


@pytest.mark.timeout(INSTALL_SECONDS + TRIES * TRY_SECONDS)
@pytest.mark.parametrize("name", BEFORE)
def test_it_did_the_same_before(name: str, cluster: Standalone, tmp_path: Path) -> None:
    says, peer = PAIRS[name]
    assert peer is not None
    python, troubles = peer_python(peer), list[str]()
    while len(troubles) < TRIES:
        folder = tmp_path / f"try-{len(troubles)}"
        folder.mkdir()
        try:
            done = run(python, name, "before.py", cluster, folder, TRY_SECONDS)
        except subprocess.TimeoutExpired as error:
            troubles.append(str(error))
            continue
        if done.returncode == 0:
            assert done.stdout.splitlines()[-1] == says
            return
        troubles.append(done.stderr[-2000:])
    pytest.fail("\n\n".join(troubles), pytrace=False)


def peer_python(peer: str) -> Path:
    """Return an interpreter that has a peer, in an environment that the first use makes."""
    argv = [sys.executable, str(ROOT / "bench" / "peers.py"), peer]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def run(
    python: Path, name: str, program: str, cluster: Standalone, folder: Path, timeout_seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a program of a pair with two executors of one core."""
    settings = cluster.settings() | {
        "spark.master": cluster.url,
        "spark.cores.max": "2",
        "spark.executor.instances": "2",
        "spark.executor.resource.gpu.amount": "0",
    }
    (folder / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    own = {"SPARK_CONF_DIR": str(folder), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)}
    return subprocess.run(
        [str(python), str(ROOT / "examples" / "conversion" / name / program)],
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
