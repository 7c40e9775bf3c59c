"""GPUs as NVML tells of them, the library that comes with NVIDIA's driver."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from gridflow.errors import PlatformError
from gridflow.gpu.inventory import Device
from gridflow.gpu.nvidia_smi import OVERHEAD_MB


def detect(_environ: Mapping[str, str]) -> tuple[Device, ...] | None:
    """Ask the library, where it is installed and its driver is loaded."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return None
    except pynvml.NVMLError as error:
        raise _failed(error) from error
    try:
        return tuple(_device(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError as error:
        raise _failed(error) from error
    finally:
        pynvml.nvmlShutdown()


def _device(pynvml: ModuleType, index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Device(
        index=index,
        memory_mb=pynvml.nvmlDeviceGetMemoryInfo(handle).total >> 20,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        capability=float(f"{major}.{minor}"),
        overhead_mb=OVERHEAD_MB,
    )


def _failed(error: Exception) -> PlatformError:
    return PlatformError(f"NVML failed: {error}", hint="does `nvidia-smi` work? Or declare the GPUs in gpus.toml")
