"""Rows as arrays: what a model takes, made of numpy arrays or Arrow columns, and what it gave, as Arrow columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gridflow.errors import SchemaError

Arrays = dict[str, npt.NDArray[Any]]
#: For a model's input its column, or the columns that lie side by side in it.
Columns = Mapping[str, str | Sequence[str]]


def from_numpy(data: Any, specs: Mapping[str, Any]) -> Arrays:
    """Take one array, for a model with one input, or arrays by name."""
    if not isinstance(data, Mapping):
        if len(specs) != 1:
            raise SchemaError(
                f"one array for a model with {len(specs)} inputs", hint=f"give a dict of {', '.join(specs)}"
            )
        data = {next(iter(specs)): data}
    return _check({name: _fit(name, np.asarray(_find(data, name, specs)), spec) for name, spec in specs.items()})


def from_arrow(table: Any, specs: Mapping[str, Any], columns: Columns) -> Arrays:
    """Take the columns of a table or batch; `columns` says which is which input where names differ."""
    unknown = [name for name in columns if name not in specs]
    if unknown:
        raise SchemaError(f"the model has no input {unknown[0]!r}", hint=f"it has {', '.join(specs)}")
    present = table.schema.names
    arrays = {}
    for name, spec in specs.items():
        wanted = columns.get(name, name)
        if wanted == name and name not in present and len(specs) == 1 and len(present) in (1, _width(spec)):
            wanted = present
        parts = [wanted] if isinstance(wanted, str) else list(wanted)
        missing = [part for part in parts if part not in present]
        if missing:
            raise SchemaError(
                f"there is no column {missing[0]!r} for the model's input {name!r}",
                hint=f"say which of {', '.join(present)} it is",
            )
        arrays[name] = _fit(name, _side_by_side([_to_numpy(part, table.column(part)) for part in parts]), spec)
    return _check(arrays)


def to_arrow(array: npt.NDArray[Any]) -> Any:
    """Return an Arrow column: scalars, or lists of a fixed size for each further dimension."""
    import pyarrow as pa

    column = pa.array(array.reshape(-1))
    if array.dtype == object and len(column) and pa.types.is_binary(column.type) and _is_text(array):
        column = column.cast(pa.string())
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _is_text(array: npt.NDArray[Any]) -> bool:
    try:
        for value in array.reshape(-1):
            value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _width(spec: Any) -> int | None:
    """Return how many values a row has, where the model says so."""
    return spec.shape[1:].num_elements() if spec.shape.rank else None


def _find(data: Mapping[str, Any], name: str, specs: Mapping[str, Any]) -> Any:
    if name not in data:
        raise SchemaError(f"there is no array for the model's input {name!r}", hint=f"it takes {', '.join(specs)}")
    return data[name]


def _check(arrays: Arrays) -> Arrays:
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) > 1:
        raise SchemaError(f"the inputs have different numbers of rows: {rows}")
    return arrays


def _to_numpy(name: str, column: Any) -> npt.NDArray[Any]:
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    shape = [len(array)]
    while True:
        if array.null_count:
            raise SchemaError(f"column {name!r} has {array.null_count} nulls", hint="fill them or filter them out")
        kind = array.type
        if pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            sizes = set(array.value_lengths().unique().to_pylist())
            if len(sizes) > 1:
                raise SchemaError(f"the lists of column {name!r} differ in length", hint="pad them to one length")
            shape.append(sizes.pop() if sizes else 0)
        else:
            break
        array = array.flatten()
    return np.asarray(array.to_numpy(zero_copy_only=False)).reshape(shape)


def _side_by_side(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Make one array of several, whose rows hold the values of each in turn."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def _fit(name: str, array: npt.NDArray[Any], spec: Any) -> npt.NDArray[Any]:
    """Give an array the type and shape that the model's input has, where nothing is lost by that."""
    import tensorflow as tf

    if spec.dtype == tf.string:
        array = array.astype(object)
    elif array.dtype != spec.dtype.as_numpy_dtype:
        wanted = np.dtype(spec.dtype.as_numpy_dtype)
        if not np.can_cast(array.dtype, wanted, casting="same_kind"):
            raise SchemaError(f"input {name!r} takes {wanted}, not {array.dtype}", hint="cast it")
        array = array.astype(wanted)
    if array.ndim == 0:
        raise SchemaError(f"input {name!r} is a single value", hint="give an array whose first dimension is the rows")
    wanted_shape = spec.shape
    if wanted_shape.rank is None or wanted_shape[1:].is_compatible_with(array.shape[1:]):
        return array
    if wanted_shape[1:].is_fully_defined() and wanted_shape[1:].num_elements() == int(np.prod(array.shape[1:])):
        # A column of 784 numbers for images of 28 by 28.
        return array.reshape([len(array), *wanted_shape[1:]])
    raise SchemaError(f"input {name!r} takes rows of shape {wanted_shape[1:]}, not {tuple(array.shape[1:])}")
