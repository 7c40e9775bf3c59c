"""What TensorFlow is told to obey. Where a GPU would be needed, logical devices of the CPU stand in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.gpu.hosts import TWO_OF_8_GB, Host, devices_of

from gridflow.errors import TaskError
from gridflow.gpu.claims import Claim
from gridflow.gpu.grants import Grant
from gridflow.gpu.limits import Plan

DEVICES = devices_of(8192, 8192, overhead_mb=512)


def grant_of(*memory_mb: int, **wishes: Any) -> Grant:
    """Return a grant of the first devices, with this much memory on each."""
    return Grant.of(Claim(**wishes), DEVICES[: len(memory_mb)], memory_mb)


# The grant


def test_a_grant_says_what_cuda_and_tensorflow_are_to_do() -> None:
    grant = grant_of(2048, memory_per_gpu_mb=2048, shared=True, growth=True, threads=3)
    variables = grant.environment
    assert Grant(**json.loads(variables.pop("GRIDFLOW_GRANT"))) == grant
    assert variables == {
        "CUDA_VISIBLE_DEVICES": "GPU-0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_NUM_INTRAOP_THREADS": "3",
        "TF_NUM_INTEROP_THREADS": "3",
    }
    assert (grant.memory, grant.limits_mb, grant.logical_names) == ([2048.0], [1536], ["/GPU:0"])


def test_gpus_alone_and_without_a_memory_have_no_limit() -> None:
    assert grant_of(8192, 8192, gpus=2).limits_mb == []
    assert grant_of(4096, memory_per_gpu_mb=4096).limits_mb == [3584]


def test_a_grant_of_the_cpu_shows_no_gpu() -> None:
    grant = Grant.cpu("none was free")
    assert (grant.devices, grant.memory, grant.logical_names) == ([], [], ["/CPU:0"])
    assert grant.environment["CUDA_VISIBLE_DEVICES"] == "-1"


def test_the_largest_batch_follows_from_what_a_sample_takes() -> None:
    sizes = {"memory_per_gpu_mb": 2048, "shared": True, "fixed_mb": 36, "mb_per_sample": 10}
    assert grant_of(2048, **sizes).max_batch == 150
    assert grant_of(2048, **sizes, max_batch=64).max_batch == 64
    assert grant_of(2048, memory_per_gpu_mb=2048, shared=True).max_batch is None


def test_a_grant_that_was_tampered_with_is_refused() -> None:
    with pytest.raises(TaskError) as caught:
        Grant.read({"GRIDFLOW_GRANT": '{"gpus": 1}'})
    assert str(caught.value).startswith("""GRIDFLOW_GRANT='{"gpus": 1}' is not a grant: """)
    assert Grant.read({}) == Grant.cpu("no GPU was claimed")


# Grants of one process beside each other


def test_several_grants_on_one_gpu_become_as_many_logical_devices() -> None:
    small = grant_of(1024, memory_per_gpu_mb=1024, shared=True)
    wide = grant_of(2048, 2048, gpus=2, memory_per_gpu_mb=2048, shared=True)
    plan = Plan.of([small, Grant.cpu("none was free"), wide])
    assert plan.visible == ("GPU-0", "GPU-1")
    assert plan.limits_mb == ((512, 1536), (1536,))
    assert plan.names == (("/GPU:0",), ("/CPU:0",), ("/GPU:1", "/GPU:2"))
    assert plan.variables == {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_a_gpu_alone_stays_as_it_is() -> None:
    plan = Plan.of([grant_of(8192, threads=2)])
    assert (plan.visible, plan.limits_mb, plan.names, plan.threads) == (("GPU-0",), ((),), (("/GPU:0",),), 2)


# With TensorFlow

#: One process does it all, since TensorFlow takes seconds to load.
IN_TENSORFLOW = """
import json, os
from gridflow import gpu
from gridflow.errors import TaskError
from gridflow.gpu.limits import divide, limit_threads

def refused(function, *arguments):
    try:
        function(*arguments)
    except TaskError as error:
        return str(error)

first, second, third = gpu.get_my_device(1, 2048.), gpu.get_my_device(1, 1024.), gpu.get_my_device(1, 7000.)
report = {"names": gpu.apply(first, second)}
import tensorflow as tf
report["visible"] = os.environ["CUDA_VISIBLE_DEVICES"]
report["sees"] = len(tf.config.list_physical_devices("GPU"))
report["again"] = refused(gpu.apply, first, second)
report["too many"] = refused(gpu.apply, third, first)
report["blind"] = refused(gpu.apply, gpu.Grant(devices=[0], memory=[8192.], uuids=["0"]))

cpus = tf.config.list_physical_devices("CPU")
divide(cpus, [[None, None]])
limit_threads(2)
report["logical"] = [device.name for device in tf.config.list_logical_devices("CPU")]
with tf.device("/CPU:1"):
    total = tf.reduce_sum(tf.ones([10]))
report["total"] = [total.device.rpartition("/")[2], float(total)]
threading = tf.config.threading
report["threads"] = [threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()]
report["the same"] = refused(divide, cpus, [[None, None]])
report["late"] = [refused(divide, cpus, [[None, None, None]]), refused(limit_threads, 3)]
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program has seen on a host whose GPUs are only declared."""
    host = Host(tmp_path_factory.mktemp("host"))
    host.declare(TWO_OF_8_GB)
    found: dict[str, Any] = json.loads(host.run(IN_TENSORFLOW, variables={"TF_CPP_MIN_LOG_LEVEL": "3"}))
    return found


def test_all_grants_of_a_process_are_applied_together(report: dict[str, Any]) -> None:
    assert report["names"] == [["/GPU:0"], ["/GPU:1"]]
    assert report["visible"] == "0"


def test_gpus_that_are_only_declared_need_not_be_there_but_those_that_were_found_must(report: dict[str, Any]) -> None:
    assert report["sees"] == 0
    assert report["blind"] == (
        "TensorFlow sees 0 of the 1 GPUs that were granted: 0 "
        "(is this a TensorFlow with CUDA? pip install 'tensorflow[and-cuda]')"
    )


def test_grants_cannot_change_after_tensorflow_has_looked_for_gpus(report: dict[str, Any]) -> None:
    assert report["again"] is None
    assert report["too many"] == (
        "CUDA_VISIBLE_DEVICES=1,0 comes too late: TensorFlow has started already "
        "(apply the grant before TensorFlow's first use)"
    )


def test_tensorflow_computes_on_logical_devices_with_the_threads_that_it_has(report: dict[str, Any]) -> None:
    assert report["logical"] == ["/device:CPU:0", "/device:CPU:1"]
    assert (report["total"], report["threads"]) == (["device:CPU:1", 10.0], [2, 2])


def test_limits_cannot_change_after_tensorflow_has_started(report: dict[str, Any]) -> None:
    assert report["the same"] is None
    assert report["late"] == [
        "limits of [None, None, None] MB on /physical_device:CPU:0 comes too late: TensorFlow has started already "
        "(apply the grant before TensorFlow's first use)",
        "a limit of 3 threads comes too late: TensorFlow has started already "
        "(apply the grant before TensorFlow's first use)",
    ]
