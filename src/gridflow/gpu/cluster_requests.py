"""A claim in the words of a cluster: the same numbers, as each platform asks for GPUs. Pure.

A cluster gives whole devices, or slices that its administrator has made. What it cannot say is in the notes; inside the
task the claim is made again, in the ledger of the host, and becomes TensorFlow's limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gridflow.errors import JobError
from gridflow.gpu.claims import Claim


@dataclass(frozen=True)
class ClusterRequest:
    """What a platform is asked for."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    #: What it cannot be asked for, for people.
    notes: tuple[str, ...] = ()


def spark_request(claim: Claim, *, device_mb: int | None = None) -> ClusterRequest:
    """Return the resource settings of Spark, for a session or, number by number, for a ResourceProfile.

    `device_mb` is the memory of the cluster's GPUs: with it, tasks that share a GPU by memory are packed onto it.
    """
    _check_choice(claim)
    amount = float(claim.count)
    if claim.is_fraction:
        amount = float(claim.gpus or 1)
    elif claim.shared and device_mb is not None and claim.count == 1:
        amount = (claim.memory_mb(1) or device_mb) / device_mb
        if amount > 1:
            raise JobError(f"{claim} does not fit on GPUs of {device_mb} MB", hint="ask for less memory")
    notes = []
    if _memory_mb(claim) is not None:
        notes.append("Spark does not choose GPUs by their memory")
    if claim.min_capability is not None:
        notes.append(f"Spark does not choose GPUs by their compute capability ({claim.min_capability:g})")
    settings = {
        "spark.executor.resource.gpu.amount": str(claim.count),
        # Rounded up, so that never more tasks are on a GPU than fit.
        "spark.task.resource.gpu.amount": f"{math.ceil(amount * 10_000) / 10_000:g}",
    }
    return ClusterRequest(settings, (*notes, *_notes(claim, "Spark", can_fall_back=False)))


def htcondor_request(claim: Claim) -> ClusterRequest:
    """Return the submit commands of HTCondor."""
    _check_choice(claim)
    settings: dict[str, str] = {"request_gpus": str(claim.count)}
    memory_mb = _memory_mb(claim)
    if memory_mb is not None:
        settings["gpus_minimum_memory"] = str(memory_mb)
    if claim.min_capability is not None:
        settings["gpus_minimum_capability"] = f"{claim.min_capability:.1f}"
    if claim.cpu_fallback:
        available = "countMatches(RequireGPUs, AvailableGPUs)"
        settings["request_gpus"] = f"{available} >= {claim.count} ? {claim.count} : 0"
        settings["rank"] = available
    return ClusterRequest(settings, _notes(claim, "HTCondor", can_fall_back=True))


def kubernetes_request(claim: Claim, *, resource: str = "nvidia.com/gpu") -> ClusterRequest:
    """Return the parts of a pod's specification: `resources` of its container, and `affinity`.

    `resource` is what the cluster's device plugin offers, such as `nvidia.com/gpu.shared`. The affinity goes by the
    labels of NVIDIA's GPU feature discovery.
    """
    _check_choice(claim)
    settings: dict[str, Any] = {"resources": {"limits": {resource: claim.count}}}
    memory = []
    memory_mb = _memory_mb(claim)
    if memory_mb is not None:
        memory = [_more_than("nvidia.com/gpu.memory", memory_mb - 1)]
    # The terms are alternatives, the expressions within one hold together.
    terms = [[*memory, *capability] for capability in _capabilities(claim.min_capability)]
    if any(terms):
        settings["affinity"] = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": term} for term in terms]
                }
            }
        }
    return ClusterRequest(settings, _notes(claim, "Kubernetes", can_fall_back=False))


def _capabilities(least: float | None) -> list[list[dict[str, Any]]]:
    """Return the ways in which a node's labels can say that its GPUs have a compute capability."""
    if least is None:
        return [[]]
    major, minor = (int(part) for part in f"{least:.1f}".split("."))
    name = "nvidia.com/gpu.compute"
    same_major = {"key": f"{name}.major", "operator": "In", "values": [str(major)]}
    return [[_more_than(f"{name}.major", major)], [same_major, _more_than(f"{name}.minor", minor - 1)]]


def _more_than(label: str, value: int) -> dict[str, Any]:
    return {"key": label, "operator": "Gt", "values": [str(value)]}


def _memory_mb(claim: Claim) -> int | None:
    """Return the memory that each device must have at least."""
    wanted = [memory for memory in (claim.memory_mb(claim.count), claim.min_device_mb) if memory is not None]
    return math.ceil(max(wanted)) if wanted else None


def _check_choice(claim: Claim) -> None:
    if claim.device_ids and claim.device_choice == "required":
        raise JobError(
            f"device_ids={list(claim.device_ids)} are GPUs of one host",
            hint=f"on a cluster say how many: gpus={claim.count}",
        )


def _notes(claim: Claim, platform: str, *, can_fall_back: bool) -> tuple[str, ...]:
    notes = []
    if claim.is_shared and platform != "Spark":
        notes.append(f"{platform} gives whole GPUs, or slices that its administrator made: {claim} takes {claim.count}")
    if claim.cpu_fallback and not can_fall_back:
        notes.append(f"{platform} has no fallback to the CPU: the task waits until a GPU is free")
    if claim.least_count < claim.count:
        notes.append(f"{platform} gives {claim.count} GPUs or none: min_gpus={claim.min_gpus} is not used")
    return tuple(notes)
