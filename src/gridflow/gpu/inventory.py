"""Which GPUs this host has, from one of three sources, and which of them may be claimed from here.

    a grant in the environment   inside a task: the task's own share, to be divided further
    gpus.toml with [[gpu]]       declared.py: what a person wrote
    NVML                         nvml.py: the driver's library, through nvidia-ml-py
    nvidia-smi                   nvidia_smi.py: the driver's command

The first that has an answer is taken. `CUDA_VISIBLE_DEVICES`, as HTCondor, Slurm or a person sets it, then leaves some
of the devices, and `gpus.toml` reserves others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridflow.gpu.order import DEFAULT_ORDER
from gridflow.gpu.variables import DECLARED, GRANT, VISIBLE
from gridflow.settings import home

if TYPE_CHECKING:
    from gridflow.gpu.declared import Declaration

HOST_FILE = Path("/etc/gridflow/gpus.toml")


@dataclass(frozen=True)
class Device:
    """One GPU, or a task's share of one."""

    index: int
    memory_mb: int
    uuid: str = ""
    name: str = "GPU"
    capability: float | None = None
    #: What CUDA takes of the memory for each process, besides what TensorFlow allocates.
    overhead_mb: int = 0
    #: The grant that this is a share of, where it is not a whole GPU.
    part_of: str = ""

    @property
    def cuda_name(self) -> str:
        """The name for `CUDA_VISIBLE_DEVICES`; an index is only right in the order of the PCI bus."""
        return self.uuid or str(self.index)

    @property
    def key(self) -> str:
        """The name in the ledger."""
        return f"{self.part_of}/{self.cuda_name}" if self.part_of else self.cuda_name

    def is_called(self, name: int | str) -> bool:
        """Say whether an index, a UUID or the beginning of one means this device, as CUDA reads it."""
        if isinstance(name, int) or name.isdigit():
            return self.index == int(name)
        return bool(name) and self.uuid.startswith(name)

    def to_dict(self) -> dict[str, Any]:
        """Return what `Device(**…)` takes."""
        return dict(vars(self))


@dataclass(frozen=True)
class Inventory:
    """The GPUs of a host, as they are seen from here."""

    devices: tuple[Device, ...] = ()
    #: Where they were found, for people.
    source: str = "no GPU was found"
    #: Whether somebody only said that they are there.
    is_declared: bool = False
    reserved: tuple[str, ...] = ()
    #: What `CUDA_VISIBLE_DEVICES` leaves; None where it says nothing.
    visible: tuple[str, ...] | None = None
    order: str = DEFAULT_ORDER
    placement: str = ""

    @property
    def usable(self) -> tuple[Device, ...]:
        """The devices that may be claimed from here."""
        return tuple(device for device in self.devices if self.why_not(device) == "")

    def why_not(self, device: Device) -> str:
        """Say why a device may not be claimed from here; nothing where it may."""
        if any(device.is_called(name) for name in self.reserved):
            return "reserved"
        if self.visible is not None and not any(device.is_called(name) for name in self.visible):
            return "not visible"
        return ""


#: A source returns the devices in the order of the PCI bus, or None where it has no answer.
Source = Callable[[Mapping[str, str]], tuple[Device, ...] | None]


def take_inventory(environ: Mapping[str, str], sources: Mapping[str, Source] | None = None) -> Inventory:
    """Find the GPUs that this process may claim."""
    declaration = _find_declaration(environ)
    policies: dict[str, Any] = {}
    if declaration is not None:
        policies = {name: getattr(declaration, name) for name in ("order", "placement")}
    if environ.get(GRANT):
        from gridflow.gpu.grants import Grant

        grant = Grant.read(environ)
        return Inventory(grant.shares(), f"the grant of this task ({grant.reason})", grant.is_declared, **policies)
    policies["reserved"] = declaration.reserved if declaration is not None else ()
    policies["visible"] = _visible(environ)
    if declaration is not None and declaration.devices:
        return Inventory(declaration.devices, f"declared in {declaration.path}", is_declared=True, **policies)
    for name, source in (_sources() if sources is None else sources).items():
        devices = source(environ)
        if devices is not None:
            return Inventory(devices, f"found by {name}", **policies)
    return Inventory(**policies)


def _sources() -> dict[str, Source]:
    from gridflow.gpu import nvidia_smi, nvml

    return {"NVML": nvml.detect, "nvidia-smi": nvidia_smi.detect}


def _find_declaration(environ: Mapping[str, str]) -> Declaration | None:
    from gridflow.gpu import declared

    if environ.get(DECLARED):
        return declared.read(Path(environ[DECLARED]))
    for path in (home(environ) / "gpus.toml", HOST_FILE):
        if path.exists():
            return declared.read(path)
    return None


def _visible(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    # '0,2', 'GPU-5d1a…,GPU-77…', '' and '-1' for none
    text = environ.get(VISIBLE)
    if text is None:
        return None
    return tuple(name for part in text.split(",") if (name := part.strip()) not in ("", "-1"))
