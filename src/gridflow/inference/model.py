"""`load` and `Model`: predictions for any number of rows, in batches that fit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gridflow import gpu
from gridflow.errors import UsageError
from gridflow.gpu import Claim, Grant
from gridflow.gpu.limits import has_applied, limit_threads, too_late
from gridflow.inference import rows
from gridflow.inference.formats import Function, load_function
from gridflow.inference.guard import BatchGuard
from gridflow.inference.memory import DeviceMemory, Memory, cpu_memory


def load(
    path: str | os.PathLike[str],
    claim: Claim | Grant | None = None,
    *,
    signature: str | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    threads: int | None = None,
    callers: int = 1,
    memory_mb: float | None = None,
    max_batch: int | None = None,
) -> Model:
    """Load a SavedModel, a `.keras` file or a frozen graph.

    It runs on the GPUs that are claimed; without a claim, on those that the task was granted, or on the CPU.

    `threads` bounds TensorFlow's own threads in this process for each of so many `callers` at once, so that those do
    not fight for the processors: with 1, each call runs in one. `memory_mb` bounds what a batch takes on the CPU.
    Close the model, or use it in a `with` block, to give the GPUs back.
    """
    if max_batch is not None and max_batch < 1:
        raise UsageError(f"max_batch={max_batch} is not positive")
    if callers < 1:
        raise UsageError(f"callers={callers} is not positive")
    with ExitStack() as stack:
        grant, device = _hold(claim, stack)
        if threads is not None:
            limit_threads(threads, callers)
        import tensorflow as tf

        with tf.device(device):
            function = load_function(Path(path), signature, inputs, outputs)
        sizes = [size for size in (grant.max_batch, max_batch, function.batch) if size is not None]
        guard, memory = _guard(grant, device, memory_mb, min(sizes, default=None))
        return Model(function, grant, device, guard, memory, stack.pop_all())


def _hold(claim: Claim | Grant | None, stack: ExitStack) -> tuple[Grant, str]:
    """Return the grant to run in, and TensorFlow's name of its first device."""
    if claim is None:
        grant = Grant.read(os.environ)
        return grant, grant.logical_names[0]
    if isinstance(claim, Claim):
        if has_applied():
            # Whatever it got, TensorFlow in this process could not use it any more.
            if not claim.cpu_fallback:
                raise too_late(str(claim))
            return Grant.cpu("CPU: other grants were applied in this process already"), "/CPU:0"
        claim = stack.enter_context(gpu.claim(claim))
    return claim, gpu.apply(claim)[0][0]


def _guard(grant: Grant, device: str, memory_mb: float | None, largest: int | None) -> tuple[BatchGuard, Memory | None]:
    import tensorflow as tf

    # Devices that were only declared may not be there.
    if not grant.is_cpu and tf.config.list_logical_devices("GPU"):
        limit_mb = grant.limits_mb[0] if grant.limits_mb else int(grant.memory[0]) - grant.overhead_mb
        return BatchGuard(limit_mb << 20, largest), DeviceMemory(device)
    if memory_mb is not None:
        return BatchGuard(int(memory_mb * 2**20), largest), cpu_memory()
    return BatchGuard(None, largest), None


class Model:
    """A loaded model. May be used by several threads at once."""

    def __init__(
        self,
        function: Function,
        grant: Grant,
        device: str,
        guard: BatchGuard,
        memory: Memory | None,
        held: ExitStack,
    ) -> None:
        self.grant = grant
        self._function = function
        self._device = device
        self._guard = guard
        self._memory = memory
        self._held = held

    @property
    def inputs(self) -> dict[str, Any]:
        """What the model takes: names and tf.TensorSpec."""
        return dict(self._function.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what it gives."""
        return tuple(self._function.outputs)

    @property
    def largest_batch(self) -> int | None:
        """How many samples fit at once, as far as is known."""
        return self._guard.largest

    def predict(self, data: Any, batch_size: int | None = None, columns: rows.Columns | None = None) -> Any:
        """Predict for all rows, in their order.

        Arrays give an array, or a dict of arrays where the model has several outputs. An Arrow table or batch gives a
        table of its columns and the outputs; `columns` says which column is which input. A tf.data.Dataset of batches
        gives what arrays give.
        """
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"batch_size={batch_size} is not positive")
        if hasattr(data, "schema") and hasattr(data, "column"):
            return self._predict_table(data, batch_size, columns or {})
        if hasattr(data, "element_spec"):
            parts = [self._run(rows.from_numpy(_inputs_of(batch), self.inputs), batch_size) for batch in data]
            return self._plain(_join(parts, self.outputs))
        return self._plain(self._run(rows.from_numpy(data, self.inputs), batch_size))

    def predict_columns(
        self, table: Any, batch_size: int | None = None, columns: rows.Columns | None = None
    ) -> dict[str, Any]:
        """Predict for all rows of an Arrow table or batch, and return the outputs alone, as Arrow columns by name."""
        found = self._run(rows.from_arrow(table, self.inputs, columns or {}), batch_size)
        return {name: rows.to_arrow(array) for name, array in found.items()}

    def close(self) -> None:
        """Give the GPUs back."""
        self._held.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _plain(self, found: rows.Arrays) -> Any:
        return found[self.outputs[0]] if len(self.outputs) == 1 else found

    def _predict_table(self, table: Any, batch_size: int | None, columns: rows.Columns) -> Any:
        import pyarrow as pa

        both = [name for name in self.outputs if name in table.schema.names]
        if both:
            raise UsageError(
                f"{both[0]!r} is a column and an output of the model", hint="rename the column, or choose outputs"
            )
        found = self.predict_columns(table, batch_size, columns)
        given = table if isinstance(table, pa.Table) else pa.Table.from_batches([table])
        for name, column in found.items():
            given = given.append_column(name, column)
        return given

    def _run(self, arrays: rows.Arrays, batch_size: int | None) -> rows.Arrays:
        total = len(next(iter(arrays.values())))
        parts: list[rows.Arrays] = []
        start = 0
        while start < total or not parts:
            size = self._guard.next_size(min(total - start, batch_size or total))
            piece = {name: array[start : start + size] for name, array in arrays.items()}
            found = self._run_batch(piece, size)
            if found is not None:
                parts.append(found)
                start += size
        return _join(parts, self.outputs)

    def _run_batch(self, piece: rows.Arrays, size: int) -> rows.Arrays | None:
        """Run one batch; None if it did not fit."""
        import tensorflow as tf

        try:
            if self._memory is None or not self._guard.is_measuring or not size:
                return self._call(piece, size)
            with self._memory.measure() as peak:
                found = self._call(piece, size)
        except tf.errors.ResourceExhaustedError as error:
            self._guard.ran_out(size, error.message.splitlines()[0])
            return None
        self._guard.measured(size, peak.bytes)
        return found

    def _call(self, piece: rows.Arrays, size: int) -> rows.Arrays:
        import tensorflow as tf

        specs, batch = self._function.inputs, self._function.batch
        if batch is not None and size < batch:
            # A model of one batch size: the rest of it is filled with zeros, and cut off again.
            piece = {name: _pad(array, batch) for name, array in piece.items()}
        with tf.device(self._device):
            tensors = {name: tf.constant(piece[name], spec.dtype) for name, spec in specs.items()}
            found = self._function.call(tensors)
        return {name: _rows_of(name, found[name].numpy(), batch or size)[:size] for name in self.outputs}


def _rows_of(name: str, array: Any, count: int) -> npt.NDArray[Any]:
    if np.ndim(array) == 0 or len(array) != count:
        raise UsageError(
            f"output {name!r} has the shape {np.shape(array)} for {count} samples",
            hint="choose outputs that have one row for each sample",
        )
    rows_: npt.NDArray[Any] = array
    return rows_


def _pad(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    empty = b"" if array.dtype == object else 0
    return np.concatenate([array, np.full((length - len(array), *array.shape[1:]), empty, array.dtype)])


def _join(parts: Sequence[rows.Arrays], names: Sequence[str]) -> rows.Arrays:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        raise UsageError("there is nothing to predict: the dataset is empty")
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _inputs_of(batch: Any) -> Any:
    """Return the inputs of a dataset's batch, which may be (inputs, labels)."""
    inputs = batch[0] if isinstance(batch, tuple) else batch
    return {name: tensor.numpy() for name, tensor in inputs.items()} if isinstance(inputs, Mapping) else inputs.numpy()
