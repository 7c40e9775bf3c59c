"""What a program asks of GPUs. A claim checks itself and knows nothing of the devices that there are.

how many      gpus = 2, a fraction of one (0.25), or device_ids
how much      memory_per_gpu_mb or memory_total_mb; a fraction says it by itself
which         min_capability, min_device_mb
with whom     alone, unless `shared` (a fraction always is); `gang`: all of its claims are granted together
when          priority, weight, wait_seconds; preemptible, lease_seconds
and if not    min_gpus, then cpu_fallback, then an error
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gridflow.errors import JobError
from gridflow.job import Resources

DEVICE_CHOICES = ("required", "preferred")


@dataclass(frozen=True)
class Claim:
    """What one process asks of the GPUs of its host."""

    #: How many whole GPUs, or a fraction of one; 1 where nothing is said.
    gpus: float | None = None
    #: Which GPUs, by index or UUID, instead of how many.
    device_ids: tuple[int | str, ...] = ()
    #: Whether other GPUs will do where those of `device_ids` are taken: `preferred`.
    device_choice: str = "required"
    memory_total_mb: float | None = None
    memory_per_gpu_mb: float | None = None
    #: The lowest compute capability that will do, such as 8.0.
    min_capability: float | None = None
    #: The smallest GPU that will do, by its whole memory.
    min_device_mb: float | None = None
    #: Whether others may use the rest of the GPUs.
    shared: bool = False
    #: Whether the program can do without GPUs.
    cpu_fallback: bool = False
    priority: int = 0
    #: How much of the GPUs the owner deserves, where the order is `fair`.
    weight: float = 1.0
    #: Whether a claim of higher priority may have this one's GPUs back; the holder then gets SIGTERM.
    preemptible: bool = False
    #: Claims of one gang are granted together, when `gang_size` of them wait, or not at all.
    gang: str = ""
    gang_size: int = 1
    #: How many GPUs will do when the wait is over.
    min_gpus: int | None = None
    #: Whether TensorFlow takes memory as it needs it, up to the limit.
    growth: bool = False
    #: How many threads TensorFlow may use for the work of one operation, and for operations side by side.
    threads: int | None = None
    #: What the model takes of the memory, by itself and for each sample; the grant then says the largest batch.
    fixed_mb: float = 0.0
    mb_per_sample: float | None = None
    max_batch: int | None = None
    wait_seconds: float = 300.0
    #: How long the GPUs are held without anybody being able to have them back; None means until they are released.
    lease_seconds: float | None = None
    #: Whose claim it is; the user's, where nothing is said.
    owner: str = ""
    #: What it is for, such as `train-1 worker/0`; people see it.
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "device_ids", tuple(self.device_ids))
        self._check_numbers()
        self._check_gpus()
        self._check_memory()
        self._check_gang()

    def _check_numbers(self) -> None:
        positive = (
            "memory_total_mb", "memory_per_gpu_mb", "min_capability", "min_device_mb", "weight", "threads",
            "mb_per_sample", "max_batch", "lease_seconds", "gang_size",
        )  # fmt: skip
        for name in positive:
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0):
                raise JobError(f"{name}={value!r} is not possible", hint="give a positive number, or leave it out")
        for name in ("wait_seconds", "fixed_mb"):
            value = getattr(self, name)
            if not (_is_number(value) and value >= 0):
                raise JobError(f"{name}={value!r} is not possible", hint="give 0 or more")

    def _check_gpus(self) -> None:
        if self.device_choice not in DEVICE_CHOICES:
            valid = " or ".join(DEVICE_CHOICES)
            raise JobError(f"device_choice={self.device_choice!r} is not possible", hint=f"give {valid}")
        if self.gpus is not None and self.device_ids:
            raise JobError(
                f"gpus={self.gpus} and device_ids={list(self.device_ids)} are both given",
                hint="say how many GPUs, or which",
            )
        if len(set(self.device_ids)) < len(self.device_ids):
            raise JobError(f"device_ids={list(self.device_ids)} holds a GPU twice", hint="name each GPU once")
        if self.gpus is None:
            return
        if not _is_number(self.gpus) or self.gpus < 0:
            raise JobError(f"gpus={self.gpus!r} is not possible", hint="give a whole number, or a fraction of one GPU")
        if self.gpus == 0:
            raise JobError("gpus=0 claims nothing", hint="make no claim where no GPU is needed")
        if self.gpus > 1 and self.gpus % 1:
            raise JobError(
                f"gpus={self.gpus:g} is neither whole nor below 1",
                hint=f"ask for {math.ceil(self.gpus)}, or for a fraction of one GPU",
            )

    def _check_memory(self) -> None:
        given = {name: getattr(self, name) for name in ("memory_total_mb", "memory_per_gpu_mb")}
        said = [f"{name}={value:g}" for name, value in given.items() if value is not None]
        if len(said) > 1:
            raise JobError(f"{' and '.join(said)} are both given", hint="say the memory once, in total or on each GPU")
        if said and self.is_fraction:
            raise JobError(
                f"gpus={self.gpus:g} and {said[0]} both say how much of a GPU",
                hint="give the fraction alone, or the memory with gpus=1",
            )
        if self.shared and not said and not self.is_fraction:
            raise JobError(
                "shared=True without saying how much of a GPU",
                hint="give memory_per_gpu_mb, or a fraction such as gpus=0.25",
            )

    def _check_gang(self) -> None:
        if self.gang_size > 1 and not self.gang:
            raise JobError(f"gang_size={self.gang_size} without a gang", hint="name the gang")
        if self.min_gpus is None:
            return
        if not 1 <= self.min_gpus <= self.count:
            raise JobError(
                f"min_gpus={self.min_gpus} of {self.count} GPUs is not possible", hint=f"give 1 to {self.count}"
            )
        if self.gang_size > 1:
            raise JobError(
                f"min_gpus={self.min_gpus} in the gang {self.gang!r}",
                hint="a gang gets all that it claims or nothing; leave min_gpus out",
            )

    @property
    def is_fraction(self) -> bool:
        """Whether a part of one GPU is asked for."""
        return self.gpus is not None and self.gpus < 1

    @property
    def is_shared(self) -> bool:
        """Whether others may use the rest of the GPUs."""
        return self.shared or self.is_fraction

    @property
    def count(self) -> int:
        """How many devices are asked for."""
        return len(self.device_ids) or math.ceil(self.gpus or 1)

    @property
    def least_count(self) -> int:
        """How many devices will do."""
        return self.min_gpus or self.count

    def memory_mb(self, count: int) -> int | None:
        """Return the memory that is asked for on each of `count` devices; None where nothing is said of it."""
        if self.memory_total_mb is not None:
            return math.ceil(self.memory_total_mb / count)
        return None if self.memory_per_gpu_mb is None else math.ceil(self.memory_per_gpu_mb)

    def __str__(self) -> str:
        """Say it for people: `2 GPUs with 4096 MB each, shared`."""
        if self.is_fraction:
            return f"{self.gpus:g} of a GPU"
        what = f"{self.count} GPU{'s' if self.count > 1 else ''}"
        if self.device_ids:
            what += f" ({', '.join(map(str, self.device_ids))})"
        memory = self.memory_mb(self.count)
        if memory is not None:
            what += f" with {memory} MB" + (" each" if self.count > 1 else "")
        return f"{what}, shared" if self.shared else what

    @classmethod
    def of_resources(cls, resources: Resources, **more: Any) -> Claim:
        """Return what each task of a job's group claims that needs GPUs.

        `gpu_memory_mb` is meant on each GPU. A group that gives it says how much it needs, so others may use the rest;
        one that does not gets its GPUs for itself.
        """
        memory = resources.gpu_memory_mb
        return cls(gpus=resources.gpus, memory_per_gpu_mb=memory, shared=memory is not None, **more)

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads: the fields that say something."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Claim:
        """Read what `to_dict` returned."""
        return cls(**values)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
