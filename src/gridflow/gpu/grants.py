"""What a claim got: devices and memory, as a program and as TensorFlow need to know it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gridflow.errors import TaskError
from gridflow.gpu.claims import Claim
from gridflow.gpu.inventory import Device
from gridflow.gpu.variables import GRANT, NO_DEVICE, VISIBLE


@dataclass(frozen=True)
class Grant:
    """The part of a host's GPUs that a program has; without devices it has the CPU alone."""

    #: The indices of the GPUs on this host; empty means CPU.
    devices: list[int] = field(default_factory=list)
    #: The memory on each of them, in MB.
    memory: list[float] = field(default_factory=list)
    #: The names of the GPUs for CUDA: UUIDs where they are known.
    uuids: list[str] = field(default_factory=list)
    #: What TensorFlow may allocate on each, in MB: the memory less what CUDA itself takes. Empty: all that there is.
    limits_mb: list[int] = field(default_factory=list)
    #: What CUDA itself takes on each.
    overhead_mb: int = 0
    #: The largest batch that fits, where the claim said what a sample takes.
    max_batch: int | None = None
    growth: bool = False
    threads: int | None = None
    #: Why it is so, in plain words.
    reason: str = ""
    #: The claim's name in the ledger.
    id: str = ""
    #: Whether nobody has checked that the devices are there.
    is_declared: bool = False

    @classmethod
    def cpu(cls, reason: str) -> Grant:
        """Return a grant of no GPU."""
        return cls(reason=reason)

    @classmethod
    def of(cls, claim: Claim, devices: Sequence[Device], memory_mb: Sequence[int], **more: Any) -> Grant:
        """Return what the ledger has set aside for a claim, as its program needs to know it."""
        is_limited = claim.is_shared or claim.memory_mb(claim.count) is not None
        limits = [memory - device.overhead_mb for device, memory in zip(devices, memory_mb, strict=True)]
        return cls(
            devices=[device.index for device in devices],
            memory=[float(memory) for memory in memory_mb],
            uuids=[device.cuda_name for device in devices],
            limits_mb=limits if is_limited else [],
            overhead_mb=max((device.overhead_mb for device in devices), default=0),
            max_batch=_max_batch(claim, limits),
            growth=claim.growth,
            threads=claim.threads,
            **more,
        )

    @property
    def is_cpu(self) -> bool:
        """Whether there is no GPU in it."""
        return not self.devices

    @property
    def logical_names(self) -> list[str]:
        """TensorFlow's names of the devices, in a program that has this grant alone."""
        return [f"/GPU:{position}" for position in range(len(self.devices))] or ["/CPU:0"]

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make CUDA and TensorFlow obey, as far as variables can; `apply` does the rest."""
        variables = {
            VISIBLE: ",".join(self.uuids) or NO_DEVICE,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            GRANT: json.dumps(self.to_dict(), separators=(",", ":")),
        }
        if self.growth:
            # Beside a limit on a logical device this is the only way to let memory grow up to it.
            variables["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        if self.threads:
            names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
            variables.update(dict.fromkeys(names, str(self.threads)))
        return variables

    def limits_mb_on(self, uuid: str) -> list[int]:
        """Return the limit on one of the devices: none, or one."""
        return [limit for name, limit in zip(self.uuids, self.limits_mb, strict=False) if name == uuid]

    def shares(self) -> tuple[Device, ...]:
        """Return the granted devices as something that can be claimed in turn, by parts of the program."""
        return tuple(
            # CUDA takes its own part once for each process, however many claims it makes.
            Device(index, math.floor(memory) - self.overhead_mb, uuid, part_of=self.id)
            for index, memory, uuid in zip(self.devices, self.memory, self.uuids, strict=True)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what `Grant(**…)` takes."""
        return dict(vars(self))

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Grant:
        """Return the grant of the task that this environment belongs to."""
        text = environ.get(GRANT)
        if not text:
            return cls.cpu("no GPU was claimed")
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise TaskError(f"{GRANT}={text!r} is not a grant: {error}", hint="leave the variable alone") from error


def _max_batch(claim: Claim, limits_mb: Sequence[int]) -> int | None:
    if claim.mb_per_sample is None or not limits_mb:
        return claim.max_batch
    fits = max(0, math.floor((min(limits_mb) - claim.fixed_mb) / claim.mb_per_sample))
    return fits if claim.max_batch is None else min(fits, claim.max_batch)
