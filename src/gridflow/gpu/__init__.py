"""GPUs: who claims which, by which policy, and the limits that TensorFlow obeys.

    Claim ─▶ Ticket ─▶ Ledger (one file per host) ── Shares: fit, order, placement ─▶ Grant ─▶ limits ─▶ TensorFlow
               ▲ inventory: gpus.toml, NVML or nvidia-smi

    with gpu.claim(gpus=1, memory_per_gpu_mb=2048, shared=True) as grant:
        gpu.apply(grant)

Each name is loaded when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow import late

if TYPE_CHECKING:
    from gridflow.gpu.claims import Claim
    from gridflow.gpu.grants import Grant
    from gridflow.gpu.holding import claim, get_my_device, release
    from gridflow.gpu.inventory import Device, Inventory, take_inventory
    from gridflow.gpu.limits import apply

__all__ = [
    "Claim",
    "Device",
    "Grant",
    "Inventory",
    "apply",
    "claim",
    "get_my_device",
    "release",
    "take_inventory",
]

__getattr__ = late.names_of(
    __name__,
    {
        "claims": ["Claim"],
        "grants": ["Grant"],
        "holding": ["claim", "get_my_device", "release"],
        "inventory": ["Device", "Inventory", "take_inventory"],
        "limits": ["apply"],
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
