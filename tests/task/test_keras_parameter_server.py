from __future__ import annotations

from pathlib import Path

import pytest
from tests.task.clusters import run_cluster

from gridflow.task import keras_multiworker

CLUSTER = {"chief": 1, "worker": 2, "ps": 1}


@pytest.mark.timeout(900)
def test_fit_trains_on_parameter_servers(tmp_path: Path) -> None:
    chief = run_cluster(tmp_path, "keras_on_parameter_servers.py", cluster=CLUSTER)["chief-0"]
    assert chief.exit_code == 0, chief.output
    history = chief.result["history"]
    assert len(history["loss"]) == len(history["val_mae"]) == 12
    assert history["val_loss"][-1] < 0.25 * history["val_loss"][0]
    assert chief.result["iterations"] == 12 * 8, "no step was lost or counted twice"
    assert chief.result["predicted"] == [64, 1]
    assert chief.result["evaluated"] == pytest.approx(chief.result["expected"], rel=1e-4)
    assert chief.result["refusal"] == (
        "`fit` on parameter servers got a generator, or data of unknown length without `steps_per_epoch` "
        "(give it arrays or a tf.data.Dataset, and `steps_per_epoch`)"
    )


@pytest.mark.timeout(900)
def test_keras_left_as_it_is_fails_on_parameter_servers_or_has_mended_the_fault(tmp_path: Path) -> None:
    environ = {keras_multiworker.SWITCH: "0"}
    chief = run_cluster(tmp_path, "keras_on_parameter_servers.py", cluster=CLUSTER, environ=environ)["chief-0"]
    if chief.exit_code == 0:
        pytest.skip("this Keras trains on parameter servers without correction")
    assert "you need to pass this dataset to ClusterCoordinator.create_per_worker_dataset." in chief.output
