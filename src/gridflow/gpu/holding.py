"""Holding GPUs in a program of one's own: `with gpu.claim(gpus=1) as grant`, and `get_my_device(1, 2048.)`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gridflow.errors import PlatformError
from gridflow.gpu.claims import Claim
from gridflow.gpu.grants import Grant
from gridflow.gpu.ledger import Ledger, ledger_folder
from gridflow.gpu.tickets import Ticket
from gridflow.gpu.tickets import release as release_claim
from gridflow.gpu.watch import LOOK_SECONDS, Watch

#: Asks a program to save its work and end; TensorFlow's PreemptionCheckpointHandler waits for the same one.
CHECKPOINT_SIGNAL = signal.SIGTERM


@contextmanager
def claim(gpus: float | Claim | None = None, **wishes: Any) -> Iterator[Grant]:
    """Hold GPUs inside a `with` block: `claim(2)`, `claim(gpus=0.5)`, or a whole claim, `claim(Claim(...))`.

    It waits until they are free, `wait_seconds` at most. The keywords are the fields of `Claim`.
    """
    if not isinstance(gpus, Claim):
        wanted = Claim(gpus=gpus, **wishes)
    elif wishes:
        raise TypeError(f"a Claim is given, and {', '.join(wishes)} besides: make the claim with it")
    else:
        wanted = gpus
    with Ticket.ask(wanted) as ticket:
        grant = ticket.wait()
        if (wanted.preemptible or wanted.lease_seconds is not None) and not grant.is_cpu:
            with _heeding(ticket):
                yield grant
        else:
            yield grant


def get_my_device(gpus: float = 1, memory_mb: float | None = None, **wishes: Any) -> Grant:
    """Return what this process may use at once, until it ends: `devices` and `memory`, empty lists meaning CPU.

    Where memory is given, others may use the rest of the GPU; without it the GPU is this process's alone.
    """
    defaults = {"cpu_fallback": True, "wait_seconds": 0.0, "shared": memory_mb is not None}
    # The ledger gives it back when the process is gone; `release` does so earlier.
    return Ticket.ask(Claim(gpus=gpus, memory_per_gpu_mb=memory_mb, **{**defaults, **wishes})).wait()


def release(grant: Grant) -> None:
    """Give back what `get_my_device` returned."""
    if not grant.is_cpu:
        release_claim(grant.id, Ledger(ledger_folder(os.environ)))


@contextmanager
def _heeding(ticket: Ticket) -> Iterator[None]:
    """Send this process the checkpoint signal when a higher priority wants its GPUs.

    The process does it itself, rather than whoever wants them: that one may belong to another user, who may not.
    """
    is_over = threading.Event()
    with Watch(ticket.folder) as watch:

        def heed() -> None:
            # Where the ledger cannot be read any more, nobody can want anything.
            with suppress(PlatformError):
                while not is_over.is_set():
                    if ticket.is_wanted():
                        os.kill(os.getpid(), CHECKPOINT_SIGNAL)
                        return
                    watch.wait(LOOK_SECONDS)

        thread = threading.Thread(target=heed, name="gridflow-gpu-heed", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            watch.wake()
            thread.join()
