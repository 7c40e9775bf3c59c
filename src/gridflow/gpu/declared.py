"""GPUs as a person declares them: `gpus.toml`.

order = "fair"                  # fifo, priority or fair
placement = "best-fit"          # where a claim goes; see docs/gpus.md
reserved = [0, "GPU-8a56"]      # never granted: a display, somebody's service

[[gpu]]                         # without such tables NVML or nvidia-smi are asked
uuid = "GPU-8a56a4bc-e184-a047-2620-be19fdf913d5"
name = "NVIDIA A100"
memory = "40 GB"
capability = 8.0
overhead_mb = 512               # what CUDA takes for each process besides TensorFlow's own memory
count = 1                       # that many of the kind, without a uuid
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gridflow.errors import SettingsError
from gridflow.gpu.inventory import Device
from gridflow.gpu.order import DEFAULT_ORDER, ORDERS
from gridflow.tables import Table, read_toml


@dataclass(frozen=True)
class Declaration:
    """What a `gpus.toml` says."""

    path: Path
    devices: tuple[Device, ...] = ()
    reserved: tuple[str, ...] = ()
    order: str = DEFAULT_ORDER
    #: Empty where nothing is said.
    placement: str = ""


def read(path: Path) -> Declaration:
    """Read a declaration of GPUs."""
    try:
        table = Table(read_toml(path), path.name)
    except SettingsError as error:
        raise SettingsError(error.message, hint="it must be TOML as in docs/gpus.md, or not be there") from error
    devices: list[Device] = []
    for gpu in table.tables("gpu"):
        devices += _devices(gpu, first_index=len(devices))
    declaration = Declaration(
        path=path,
        devices=tuple(devices),
        reserved=table.strings("reserved"),
        order=_known(table, "order", table.text("order", DEFAULT_ORDER), ORDERS),
        placement=_placement(table),
    )
    table.close()
    names = [device.uuid for device in devices if device.uuid]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"{path.name} declares the GPU {name!r} twice", hint="give each a uuid of its own")
    return declaration


def _devices(gpu: Table, first_index: int) -> list[Device]:
    memory_mb, count, uuid = gpu.memory_mb("memory"), gpu.integer("count", 1) or 0, gpu.text("uuid")
    name, capability = gpu.text("name", "GPU"), gpu.number("capability", None)
    overhead_mb = gpu.integer("overhead_mb", 0) or 0
    gpu.close()
    if memory_mb is None:
        raise SettingsError(f"{gpu.where} has no memory", hint='write memory = "16 GB"')
    if count < 1 or (count > 1 and uuid):
        raise SettingsError(f"{gpu.key('count')} = {count} is not possible", hint="give 1, or more without a uuid")
    if not 0 <= overhead_mb < memory_mb:
        raise SettingsError(
            f"{gpu.key('overhead_mb')} = {overhead_mb} is not possible", hint=f"give 0 or more, below {memory_mb}"
        )
    return [Device(first_index + step, memory_mb, uuid, name, capability, overhead_mb) for step in range(count)]


def _placement(table: Table) -> str:
    name = table.text("placement")
    if not name:
        return ""
    from gridflow.gpu.placement import PLACEMENTS

    return _known(table, "placement", name, PLACEMENTS)


def _known(table: Table, key: str, value: str, valid: Collection[str]) -> str:
    if value not in valid:
        raise SettingsError(f"{table.key(key)} = {value!r} is not known", hint=f"one of: {', '.join(valid)}")
    return value
