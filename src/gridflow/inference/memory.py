"""The peak of memory while a batch runs, on a GPU or the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
#: To this file of the kernel, "5" means: forget the peak.
_FORGET_PEAK = "5"


class Peak:
    """What one measurement found."""

    bytes = 0


class Memory(Protocol):
    """Something whose peak can be measured."""

    def measure(self) -> AbstractContextManager[Peak]:
        """Measure what is used at most inside the `with` block, over what lay there before."""


class DeviceMemory:
    """What TensorFlow counts of its memory on one device."""

    def __init__(self, device: str) -> None:
        self._device = device

    @contextmanager
    def measure(self) -> Iterator[Peak]:
        """Measure the allocator's peak, the model's weights included, since they count against the limit."""
        import tensorflow as tf

        peak = Peak()
        tf.config.experimental.reset_memory_stats(self._device)
        yield peak
        peak.bytes = tf.config.experimental.get_memory_info(self._device)["peak"]


def cpu_memory() -> Memory:
    """Return what can be measured of the CPU's memory.

    With oneDNN, which is the processor's and TF_ENABLE_ONEDNN_OPTS' choice, TensorFlow keeps what it has once had, so
    that the process does not grow; but then it counts what it uses itself.
    """
    import tensorflow as tf

    try:
        tf.config.experimental.get_memory_info("CPU:0")
    except ValueError:
        return ProcessMemory()
    return CpuMemory()


class CpuMemory:
    """What TensorFlow counts of its memory on the CPU, as far as it grows while a batch runs."""

    @contextmanager
    def measure(self) -> Iterator[Peak]:
        """Measure how far the allocator's peak rises above what was in use."""
        import tensorflow as tf

        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        with DeviceMemory("CPU:0").measure() as peak:
            yield peak
        peak.bytes = max(0, peak.bytes - before)


class ProcessMemory:
    """The memory of this process, as far as it grows while a batch runs."""

    @contextmanager
    def measure(self) -> Iterator[Peak]:
        """Measure how far the resident memory rises above where it was."""
        peak = Peak()
        _CLEAR.write_text(_FORGET_PEAK)
        before = _kilobytes("VmRSS")
        yield peak
        peak.bytes = max(0, _kilobytes("VmHWM") - before) * 1024


def _kilobytes(name: str) -> int:
    # VmHWM:	  123456 kB
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"{_STATUS} has no {name}")
