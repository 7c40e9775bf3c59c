from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow.errors import JobError
from gridflow.gpu.claims import Claim
from gridflow.gpu.cluster_requests import htcondor_request, kubernetes_request, spark_request

REQUESTS = {"spark": spark_request, "htcondor": htcondor_request, "kubernetes": kubernetes_request}


# Spark


@pytest.mark.parametrize(
    ("wishes", "executor", "task"),
    [
        ({"gpus": 2}, "2", "2"),
        ({"gpus": 0.25}, "1", "0.25"),
        ({"gpus": 1, "memory_per_gpu_mb": 4096, "shared": True}, "1", "0.1"),
        ({"gpus": 1, "memory_per_gpu_mb": 4096}, "1", "1"),
        # Two tasks of more than half a GPU do not fit on one.
        ({"gpus": 1, "memory_per_gpu_mb": 20481, "shared": True}, "1", "0.5001"),
    ],
)
def test_spark_packs_tasks_that_share_a_gpu(wishes: dict[str, Any], executor: str, task: str) -> None:
    settings = spark_request(Claim(**wishes), device_mb=40960).settings
    assert settings == {"spark.executor.resource.gpu.amount": executor, "spark.task.resource.gpu.amount": task}


def test_spark_takes_the_numbers_as_a_resource_profile() -> None:
    from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests

    settings = spark_request(Claim(gpus=0.25)).settings
    executor = ExecutorResourceRequests().resource("gpu", int(settings["spark.executor.resource.gpu.amount"]))
    task = TaskResourceRequests().resource("gpu", float(settings["spark.task.resource.gpu.amount"]))
    profile = ResourceProfileBuilder().require(executor).require(task).build
    assert profile.executorResources["gpu"].amount == 1
    assert profile.taskResources["gpu"].amount == 0.25


def test_spark_says_what_it_cannot_do() -> None:
    claim = Claim(gpus=2, min_gpus=1, memory_per_gpu_mb=4096, min_capability=8.0, cpu_fallback=True)
    assert spark_request(claim).notes == (
        "Spark does not choose GPUs by their memory",
        "Spark does not choose GPUs by their compute capability (8)",
        "Spark has no fallback to the CPU: the task waits until a GPU is free",
        "Spark gives 2 GPUs or none: min_gpus=1 is not used",
    )
    with pytest.raises(JobError, match=r"1 GPU with 9000 MB, shared does not fit on GPUs of 8192 MB"):
        spark_request(Claim(memory_per_gpu_mb=9000, shared=True), device_mb=8192)


# HTCondor


def test_htcondor_chooses_gpus_by_memory_and_capability() -> None:
    claim = Claim(gpus=2, memory_per_gpu_mb=4096, min_device_mb=16000, min_capability=8)
    assert htcondor_request(claim).settings == {
        "request_gpus": "2",
        "gpus_minimum_memory": "16000",
        "gpus_minimum_capability": "8.0",
    }


def test_htcondor_can_do_without_a_gpu() -> None:
    request = htcondor_request(Claim(gpus=1, cpu_fallback=True))
    assert request.settings == {
        "request_gpus": "countMatches(RequireGPUs, AvailableGPUs) >= 1 ? 1 : 0",
        "rank": "countMatches(RequireGPUs, AvailableGPUs)",
    }
    assert request.notes == ()


def test_htcondor_gives_whole_gpus() -> None:
    request = htcondor_request(Claim(gpus=0.25))
    assert request.settings == {"request_gpus": "1"}
    assert request.notes == ("HTCondor gives whole GPUs, or slices that its administrator made: 0.25 of a GPU takes 1",)


# Kubernetes


def test_kubernetes_limits_are_whole_gpus() -> None:
    assert kubernetes_request(Claim(gpus=2)).settings == {"resources": {"limits": {"nvidia.com/gpu": 2}}}
    shared = kubernetes_request(Claim(gpus=0.1), resource="nvidia.com/gpu.shared")
    assert shared.settings == {"resources": {"limits": {"nvidia.com/gpu.shared": 1}}}


def test_kubernetes_chooses_nodes_by_the_labels_of_their_gpus() -> None:
    settings = kubernetes_request(Claim(min_device_mb=16384, min_capability=8.6)).settings
    memory = {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["16383"]}
    required = settings["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [
        {"matchExpressions": [memory, {"key": "nvidia.com/gpu.compute.major", "operator": "Gt", "values": ["8"]}]},
        {
            "matchExpressions": [
                memory,
                {"key": "nvidia.com/gpu.compute.major", "operator": "In", "values": ["8"]},
                {"key": "nvidia.com/gpu.compute.minor", "operator": "Gt", "values": ["5"]},
            ]
        },
    ]


# All


@pytest.mark.parametrize("platform", REQUESTS)
def test_gpus_of_one_host_cannot_be_named_on_a_cluster(platform: str) -> None:
    with pytest.raises(JobError) as caught:
        REQUESTS[platform](Claim(device_ids=(0, 1)))
    assert str(caught.value) == "device_ids=[0, 1] are GPUs of one host (on a cluster say how many: gpus=2)"
    REQUESTS[platform](Claim(device_ids=(0, 1), device_choice="preferred"))


@given(st.integers(1, 16) | st.floats(0.001, 0.999), st.integers(1000, 80_000))
def test_no_gpu_ever_gets_more_tasks_than_fit(gpus: float, device_mb: int) -> None:
    claim = Claim(gpus=gpus)
    amount = float(spark_request(claim, device_mb=device_mb).settings["spark.task.resource.gpu.amount"])
    assert amount >= gpus
    assert htcondor_request(claim).settings["request_gpus"] == str(claim.count)
