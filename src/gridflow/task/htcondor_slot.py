"""What a task finds out about the slot that it is in: machine, container, GPUs, TensorFlow.

HTCondor describes the slot in `$_CONDOR_MACHINE_AD`, one attribute a line:

    Name = "slot1_3@execute7.example.org"
    MyAddress = "<10.1.7.3:9618?addrs=10.1.7.3-9618&…>"
    AssignedGPUs = "GPU-a0223334, GPU-b1223334"
    GPUs_GPU_a0223334 = [ Id = "GPU-a0223334"; Capability = 8.0; GlobalMemoryMb = 47661; …
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gridflow.errors import RendezvousError, TaskError

if TYPE_CHECKING:
    from gridflow.gpu.grants import Grant
    from gridflow.job import Resources
    from gridflow.rendezvous.chirp import Chirp

MACHINE_AD = "_CONDOR_MACHINE_AD"
#: What HTCondor gives to a job without GPUs on a machine that has some.
_NO_GPU = "10000"


def machine_ad(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the slot's attributes, as HTCondor writes them."""
    path = Path(environ.get(MACHINE_AD) or ".machine.ad")
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value for name, is_there, value in (line.partition(" = ") for line in lines) if is_there}


def host(environ: Mapping[str, str] = os.environ) -> str:
    """Return the address under which other tasks may reach this machine."""
    # <10.1.7.3:9618?addrs=…>
    address = re.search(r"<([\d.]+):\d+", machine_ad(environ).get("MyAddress", ""))
    if address:
        return address[1]
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def slot_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the slot's name, such as `slot1_3@execute7`."""
    return machine_ad(environ).get("Name", "").strip('"') or socket.gethostname()


def start_count(chirp: Chirp | None) -> int:
    """Return which of its lives the task is in; the first is 1."""
    if chirp is None:
        return 1
    try:
        return max(1, int(chirp.attribute("NumJobStarts")))
    except (RendezvousError, ValueError):
        return 1


def board_prefix(prefix: str, chirp: Chirp | None) -> str:
    """Return how the names of the board's files begin; spooled tasks meet in the folder of the first one."""
    if prefix != "spool:" or chirp is None:
        return prefix
    # "/var/spool/condor/12/1/cluster12.proc1.subproc0"
    own = chirp.attribute("Iwd").strip('"')
    first = re.sub(r"/\d+/cluster(\d+)\.proc\d+\.subproc(\d+)$", r"/0/cluster\1.proc0.subproc\2", own)
    return f"{first}/board."


def describe(environ: Mapping[str, str], folder: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Tell what there is, and return the environment with what is missing put right."""
    container = environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER")
    where = f"in container {container}" if container else "in no container"
    say(f"slot {slot_name(environ)} on {socket.gethostname()}, {where}, Python {sys.version.split()[0]}")
    say(f"GPUs: {', '.join(assigned(environ)) or 'none'}; TensorFlow: {_tensorflow()}")
    changed = dict(environ)
    if not os.path.isdir(environ.get("HOME", "")):
        # In a container it may name a folder of the machine outside.
        changed["HOME"] = str(folder)
    return changed


def _tensorflow() -> str:
    if find_spec("tensorflow") is None:
        return "not installed"
    from importlib import metadata

    for name in ("tensorflow", "tensorflow-cpu", "tensorflow-gpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "installed"


def assigned(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the GPUs that HTCondor gave to this task."""
    names = environ.get("_CONDOR_AssignedGPUs", "").replace(" ", "").split(",")
    return [name for name in names if name and name != _NO_GPU]


@dataclass(frozen=True)
class Assigned:
    """GPUs that are this task's for as long as it has its slot."""

    grant: Grant

    def include(self, pid: int) -> None:
        """Do nothing: HTCondor itself sees who uses them."""


def assigned_gpus(resources: Resources, environ: Mapping[str, str]) -> Assigned:
    """Return the grant that follows from what HTCondor has assigned."""
    from gridflow.gpu.claims import Claim
    from gridflow.gpu.grants import Grant
    from gridflow.gpu.inventory import Device

    names, attributes = assigned(environ), machine_ad(environ)
    claim = Claim.of_resources(resources, name="")
    if len(names) < claim.count:
        raise TaskError(
            f"{claim} is needed, but HTCondor assigned {', '.join(names) or 'no GPU'}",
            hint="does the submit description have request_gpus?",
        )
    devices = []
    for index, name in enumerate(names):
        nested = attributes.get(f"GPUs_{name.replace('-', '_')}", "")
        memory = re.search(r"GlobalMemoryMb = (\d+)", nested) or re.search(
            r"(\d+)", attributes.get("GPUs_GlobalMemoryMb") or attributes.get("CUDAGlobalMemoryMb", "")
        )
        devices.append(Device(index, int(memory[1]) if memory else 0, uuid=name))
    each = claim.memory_mb(claim.count)
    memory_mb = [int(each) if each is not None else device.memory_mb for device in devices]
    reason = f"{', '.join(names)}, assigned by HTCondor"
    return Assigned(Grant.of(claim, devices, memory_mb, reason=reason, is_declared=True))
