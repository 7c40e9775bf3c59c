"""Lets several workers save one Keras model to one path: each writes aside, then renames.

With MultiWorkerMirroredStrategy every worker runs the same program and so the same callbacks: all of them save the
same weights to the same path at the same moment. Keras 3 writes in place, so `BackupAndRestore` and
`ModelCheckpoint` fail with `BlockingIOError ... unable to lock file` or leave a file mixed from two, and a worker
killed while it saves leaves half a file behind, from which no restart can resume.

    save(model, "backup/latest.weights.h5")  ─>  backup/.worker-1.latest.weights.h5  ─rename─>  latest.weights.h5

Whoever comes last wins, which is harmless: workers in step hold the same weights, and no worker can be an epoch ahead
of another. `BackupAndRestore` also deletes its directory when training ends, while a slower worker may still save into
it or delete it, too: whoever trips over another does it again.
"""

from __future__ import annotations

import errno
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

_SAVING = "keras.src.saving.saving_lib"
_BACKUP = "keras.src.callbacks.backup_and_restore"
_SAVED_AS_ONE_FILE = (".keras", ".h5")
# How often a directory may come, go or fill under a worker's hands.
_ATTEMPTS = 20
_CHANGED_BY_OTHERS = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY)


def correct(modules: Mapping[str, ModuleType], task: str) -> list[str]:
    """Correct the functions of the imported Keras that write or delete in place, and return their names."""
    corrected = []
    saving: Any = modules.get(_SAVING)
    for name in ("save_model", "save_weights_only"):
        write = getattr(saving, name, None)
        if write is not None and "replace" not in write.__code__.co_names:
            setattr(saving, name, _aside(write, task))
            corrected.append(name)
    backup: Any = getattr(modules.get(_BACKUP), "BackupAndRestore", None)
    if backup is not None and "rmtree" in backup.on_train_end.__code__.co_names:
        backup._save_model = _among_others(backup._save_model)
        backup.on_train_end = _among_others(backup.on_train_end)
        corrected.append("BackupAndRestore")
    return corrected


def _aside(write: Callable[..., None], task: str) -> Callable[..., None]:
    @functools.wraps(write)
    def save(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        if not _is_one_local_file(filepath):
            write(model, filepath, *args, **kwargs)
            return
        path = Path(filepath)
        aside = path.with_name(f".{task}.{path.name}")
        try:
            write(model, str(aside), *args, **kwargs)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    return save


def _is_one_local_file(filepath: Any) -> bool:
    # 'best.keras', 'backup/latest.weights.h5'; not 'gs://bucket/best.keras', nor a file object.
    return (
        isinstance(filepath, str | os.PathLike)
        and "://" not in str(filepath)
        and Path(filepath).suffix in _SAVED_AS_ONE_FILE
    )


def _among_others(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def save_or_remove(self: Any, *args: Any, **kwargs: Any) -> None:
        for _ in range(_ATTEMPTS - 1):
            try:
                return method(self, *args, **kwargs)
            except OSError as error:
                if error.errno not in _CHANGED_BY_OTHERS:
                    raise
        return method(self, *args, **kwargs)

    return save_or_remove
