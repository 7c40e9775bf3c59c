"""Makes TensorFlow obey its grants: which devices it sees, how much memory it takes on each, how many threads.

    grants ─▶ Plan (pure) ─▶ variables for CUDA ─▶ TensorFlow finds its GPUs ─▶ logical devices with limits

All of it is fixed for the process at TensorFlow's first look at the GPUs, so all grants of a process are applied
together and before that. A GPU on which a process has several grants becomes as many logical devices.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from gridflow.errors import TaskError
from gridflow.gpu.grants import Grant
from gridflow.gpu.variables import GRANT, NO_DEVICE, VISIBLE

_log = logging.getLogger(__name__)
#: The names of the devices of each grant that was applied in this process, by the grant's id.
_applied: dict[str, tuple[str, ...]] = {}


@dataclass(frozen=True)
class Plan:
    """What is to be set up in a process."""

    #: The devices that it is to see, by their names for CUDA.
    visible: tuple[str, ...]
    #: For each of them the memory limits of its logical devices, in MB; empty: one device without a limit.
    limits_mb: tuple[tuple[int, ...], ...]
    #: For each grant the names of its logical devices.
    names: tuple[tuple[str, ...], ...]
    variables: dict[str, str]
    threads: int | None

    @classmethod
    def of(cls, grants: Sequence[Grant]) -> Plan:
        """Lay the grants of one process beside each other."""
        visible = tuple(dict.fromkeys(uuid for grant in grants for uuid in grant.uuids))
        # The logical devices: TensorFlow numbers them device by device.
        users = [(uuid, number) for uuid in visible for number, grant in enumerate(grants) if uuid in grant.uuids]
        names = [
            tuple(f"/GPU:{users.index((uuid, number))}" for uuid in grant.uuids) or ("/CPU:0",)
            for number, grant in enumerate(grants)
        ]
        limits = [tuple(limit for grant in grants for limit in grant.limits_mb_on(uuid)) for uuid in visible]
        variables: dict[str, str] = {}
        for grant in grants:
            variables.update(grant.environment)
        variables.pop(GRANT, None)
        variables[VISIBLE] = ",".join(visible) or NO_DEVICE
        threads = max((grant.threads for grant in grants if grant.threads), default=None)
        return cls(visible, tuple(limits), tuple(names), variables, threads)


def apply(*grants: Grant, environ: MutableMapping[str, str] = os.environ) -> list[list[str]]:
    """Make TensorFlow in this process obey all of its grants; return the names of each grant's devices, `/GPU:0`.

    To be called before TensorFlow is used, and with everything that the process was granted: it cannot be changed
    later, and only asked again for some of them. The programs of tasks need not call it: their agent does.
    """
    if _applied and all(grant.is_cpu or grant.id in _applied for grant in grants):
        return [list(_applied.get(grant.id, grant.logical_names)) for grant in grants]
    plan = Plan.of(grants)
    _set_variables(plan.variables, environ)
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if _sees_all(len(gpus), plan, grants):
        divide(gpus, plan.limits_mb)
    if plan.threads is not None:
        limit_threads(plan.threads)
    _applied.update({grant.id: names for grant, names in zip(grants, plan.names, strict=True) if grant.id})
    return [list(names) for names in plan.names]


def has_applied() -> bool:
    """Say whether grants were applied in this process, so that no others can be."""
    return bool(_applied)


def divide(devices: Sequence[Any], limits_mb: Sequence[Sequence[int | None]]) -> None:
    """Make logical devices of TensorFlow's physical ones: for each device the limits of its parts; none: as it is."""
    import tensorflow as tf

    for device, limits in zip(devices, limits_mb, strict=True):
        if limits:
            parts = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits]
            try:
                tf.config.set_logical_device_configuration(device, parts)
            except RuntimeError as error:
                raise too_late(f"limits of {list(limits)} MB on {device.name}") from error


def limit_threads(threads: int, callers: int = 1) -> None:
    """Give TensorFlow this many threads for an operation, and for the operations of each caller side by side."""
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads * callers)
    except RuntimeError as error:
        raise too_late(f"a limit of {threads} threads") from error


def _set_variables(variables: dict[str, str], environ: MutableMapping[str, str]) -> None:
    changed = {name: value for name, value in variables.items() if environ.get(name) != value}
    if changed and _has_started():
        name, value = next(iter(changed.items()))
        raise too_late(f"{name}={value}")
    environ.update(changed)


def _has_started() -> bool:
    """Say whether TensorFlow has looked for devices already, after which the variables mean nothing to it."""
    module = sys.modules.get("tensorflow.python.eager.context")
    context = module.context_safe() if module else None
    # There is no public question that would not start it.
    return any(getattr(context, name, None) for name in ("_initialized", "_physical_devices"))


def _sees_all(count: int, plan: Plan, grants: Sequence[Grant]) -> bool:
    """Check that TensorFlow sees what was granted; of devices that were only declared it need not."""
    if count == len(plan.visible):
        return True
    message = f"TensorFlow sees {count} of the {len(plan.visible)} GPUs that were granted: {', '.join(plan.visible)}"
    if not all(grant.is_declared for grant in grants if not grant.is_cpu):
        raise TaskError(message, hint="is this a TensorFlow with CUDA? pip install 'tensorflow[and-cuda]'")
    _log.warning("%s; they were declared in gpus.toml, and nobody has checked that they are there", message)
    return False


def too_late(what: str) -> TaskError:
    """Return the error of whoever wants to limit a TensorFlow that has started already."""
    return TaskError(
        f"{what} comes too late: TensorFlow has started already", hint="apply the grant before TensorFlow's first use"
    )
