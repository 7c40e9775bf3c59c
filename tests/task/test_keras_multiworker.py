from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.task.clusters import Worker, differences, run_cluster

from gridflow.task import keras_multiworker

TWO_WORKERS = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}})
ALL_CASES: list[str] = []
SOME_CASES = [
    "sequential_with_momentum_and_schedule",
    "functional_with_dicts_two_outputs_and_global_clipping",
    "embeddings_with_class_weights_and_several_steps_per_execution",
    "last_batch_is_evaluated_whole",
    "rows_seen_under_each_way_of_sharding",
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    worker = run_cluster(tmp_path_factory.mktemp("alone"), "keras_cases.py", cluster={"worker": 1})["worker-0"]
    assert worker.exit_code == 0, worker.output
    assert "gridflow corrected" not in worker.output
    return worker.result


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("count", "cases"), [(2, ALL_CASES), (3, SOME_CASES)])
def test_every_worker_gets_the_weights_metrics_and_predictions_of_a_single_process(
    count: int, cases: list[str], alone: Any, tmp_path: Path
) -> None:
    workers = run_cluster(tmp_path, "keras_cases.py", *cases, cluster={"worker": count})
    for name, worker in workers.items():
        assert worker.exit_code == 0, worker.output
        assert worker.output.count("gridflow corrected Keras") == 1
        expected = {case: alone[case] for case in cases or alone}
        assert list(differences(expected, worker.result)) == [], name


@pytest.mark.timeout(900)
def test_keras_left_as_it_is_fails_or_has_mended_the_fault(tmp_path: Path) -> None:
    case = "sequential_with_momentum_and_schedule"
    workers = run_cluster(
        tmp_path, "keras_cases.py", case, cluster={"worker": 2}, environ={keras_multiworker.SWITCH: "off"}
    )
    assert not any("gridflow corrected" in worker.output for worker in workers.values())
    if all(worker.exit_code == 0 for worker in workers.values()):
        pytest.skip("this Keras trains across workers without correction")
    assert any("Attempt to convert a value (PerReplica" in worker.output for worker in workers.values())


@pytest.mark.timeout(900)
def test_training_resumes_from_a_shared_backup_after_a_worker_was_killed(tmp_path: Path) -> None:
    def run(folder: str, backups: str, last_epoch: int) -> dict[str, Worker]:
        (tmp_path / backups).mkdir(exist_ok=True)
        program = ("keras_backup.py", str(tmp_path / backups), str(last_epoch))
        return run_cluster(tmp_path / folder, *program, cluster={"worker": 2})

    killed = run("killed", "shared", last_epoch=2)
    assert killed["worker-1"].exit_code == -signal.SIGKILL, killed["worker-1"].output
    assert (tmp_path / "shared/backup/latest.weights.h5").exists()

    resumed = run("resumed", "shared", last_epoch=-1)
    undisturbed = run("undisturbed", "other", last_epoch=-1)
    for name, worker in resumed.items():
        assert worker.exit_code == 0, worker.output
        assert worker.result["epochs"] == [2, 3, 4, 5]
        assert list(differences(undisturbed[name].result["weights"], worker.result["weights"])) == []
    saved = sorted(path.name for path in (tmp_path / "shared").iterdir())
    assert saved == ["best.weights.h5", "latest.keras"], "the backup is gone, and nothing half written is left"


IMPORTS = """
import importlib.util, json, os, sys
from gridflow.task import keras_multiworker
before = list(sys.meta_path)
keras_multiworker.install()
installed = [finder for finder in sys.meta_path if finder not in before]
loaded_early = "keras" in sys.modules or "tensorflow" in sys.modules
only_looked = importlib.util.find_spec("keras").name
import colorsys, keras
print(json.dumps({
    "installed": len(installed),
    "loaded early": loaded_early,
    "gone": not any(finder in sys.meta_path for finder in installed),
    "loader": type(keras.__spec__.loader).__name__,
    "trainer": keras.src.backend.tensorflow.trainer.reduce_per_replica.__module__,
}))
"""


def fake_keras(folder: Path) -> None:
    """Write a package with Keras' names that needs no TensorFlow and shows one fault: a reduction along an axis."""
    sources = {
        "__init__.py": "import keras.src.backend.tensorflow.trainer\n__version__ = '3.99'",
        "src/__init__.py": "",
        "src/backend/__init__.py": "",
        "src/backend/tensorflow/__init__.py": "from . import optimizer",
        "src/backend/tensorflow/optimizer.py": "class TFOptimizer:\n    def _backend_update_step(self): pass",
        "src/backend/tensorflow/trainer.py": (
            "from types import SimpleNamespace\n"
            "class Strategy: pass\n"
            "tf = SimpleNamespace(distribute=SimpleNamespace(MultiWorkerMirroredStrategy=Strategy))\n"
            "class TensorFlowTrainer: pass\n"
            "def reduce_per_replica(values, strategy, reduction): return strategy.reduce('MEAN', values, axis=0)\n"
        ),
    }
    for name, source in sources.items():
        path = folder / "keras" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)


def import_fake_keras(folder: Path, **environ: str) -> tuple[dict[str, Any], str]:
    fake_keras(folder)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        env={**os.environ, "PYTHONPATH": str(folder), "TF_CONFIG": TWO_WORKERS, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


def test_the_correction_waits_for_the_import_of_keras_and_leaves_no_trace_of_itself(tmp_path: Path) -> None:
    result, log = import_fake_keras(tmp_path)
    assert result == {
        "installed": 1,
        "loaded early": False,
        "gone": True,
        "loader": "SourceFileLoader",
        "trainer": "keras.src.backend.tensorflow.trainer",
    }
    assert log == (
        "gridflow corrected Keras 3.99 for training across workers (keras#20585), which fails without: "
        "reduce_per_replica; set GRIDFLOW_KERAS_PATCH=0 to leave Keras as it is\n"
    )


@pytest.mark.parametrize(
    "environ",
    [
        {"GRIDFLOW_KERAS_PATCH": "0"},
        {"GRIDFLOW_KERAS_PATCH": "Off"},
        {"GRIDFLOW_KERAS_PATCH": "false"},
        {"TF_CONFIG": ""},
        {"TF_CONFIG": "no json"},
        {"TF_CONFIG": "[]"},
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'},
        {"TF_CONFIG": '{"cluster": {"chief": ["a:1"], "ps": ["b:1"]}, "task": {"type": "chief", "index": 0}}'},
    ],
    ids=str,
)
def test_nothing_is_installed_if_switched_off_or_there_are_no_other_workers(
    environ: dict[str, str], tmp_path: Path
) -> None:
    result, log = import_fake_keras(tmp_path, **environ)
    assert result["installed"] == 0
    assert log == ""


def test_a_chief_counts_as_a_worker(tmp_path: Path) -> None:
    config = {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "chief", "index": 0}}
    result, log = import_fake_keras(tmp_path, TF_CONFIG=json.dumps(config))
    assert result["installed"] == 1
    assert "reduce_per_replica" in log


def test_a_trainer_without_faults_is_left_alone() -> None:
    class Trainer:
        def _maybe_symbolic_build(self, iterator: Any = None) -> None:
            """Build from the local part of a batch."""

        def _make_function(self, step_function: Any) -> Any:
            return step_function

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        return strategy.reduce(reduction, values, axis=None)

    tf = SimpleNamespace(distribute=SimpleNamespace(MultiWorkerMirroredStrategy=object))
    module = SimpleNamespace(tf=tf, TensorFlowTrainer=Trainer, reduce_per_replica=reduce_per_replica)
    before = dict(vars(Trainer))
    assert keras_multiworker.correct(module) == []
    assert module.reduce_per_replica is reduce_per_replica
    assert dict(vars(Trainer)) == before


def test_a_trainer_that_is_not_recognised_is_left_alone() -> None:
    class Trainer:
        """A Keras to come."""

    def reduce_per_replica(values: Any) -> Any:
        return values

    tf = SimpleNamespace(distribute=SimpleNamespace(MultiWorkerMirroredStrategy=object))
    module = SimpleNamespace(tf=tf, TensorFlowTrainer=Trainer, reduce_per_replica=reduce_per_replica)
    assert keras_multiworker.correct(module) == []
