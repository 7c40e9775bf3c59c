"""Arrow columns as tensors and arrays; no number becomes a Python object on its way.

    Arrow batch ── Layout.flatten ──> flat arrays ── Layout.assemble, in TensorFlow's graph ──> named tensors
    Arrow batch ── Layout.arrays ───> named NumPy arrays

A scalar column is of shape [rows], one of lists of a fixed length [rows, length], or as `shapes` has it; other lists
are ragged. Bytes to which `shapes` gives a shape are numbers, uint8, and lie where they did. Strings cross into
TensorFlow as objects: it copies one string with the bytes of all at half that speed, since the kernel has to find it
fresh pages for so large a string each time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from gridflow.errors import SchemaError

Array: TypeAlias = "np.ndarray[Any, Any]"
Shape: TypeAlias = tuple[int, ...]

_MAX_DEPTH = 2


def is_list(type_: pa.DataType) -> bool:
    """Tell whether a type is any kind of list."""
    return bool(types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_))


def is_bytes(type_: pa.DataType) -> bool:
    """Tell whether a type is any kind of bytes that are no text."""
    return bool(types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_))


def is_text(type_: pa.DataType) -> bool:
    """Tell whether a type becomes a tensor of strings, where nothing else is said."""
    return bool(types.is_string(type_) or types.is_large_string(type_) or is_bytes(type_))


def check_names(names: Collection[str], schema: pa.Schema, argument: str) -> None:
    """Refuse names that are no columns."""
    unknown = sorted(set(names) - set(schema.names))
    if unknown:
        raise SchemaError(f"{argument} names {unknown[0]!r}, which is no column", hint=f"there are {schema.names}")


@dataclass(frozen=True)
class Column:
    """How a column becomes a tensor: its leaf's type, a row's shape if that is fixed, and else its ragged levels."""

    name: str
    leaf: pa.DataType
    shape: Shape | None
    depth: int
    default: Any
    #: Whether each row is bytes, which are seen as a list of numbers.
    is_bytes: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its values, `object` for strings."""
        if types.is_null(self.leaf):
            return np.dtype(np.float32)
        if types.is_decimal(self.leaf):
            return np.dtype(np.float64)
        return np.dtype(object) if is_text(self.leaf) else np.dtype(self.leaf.to_pandas_dtype())

    @property
    def parts(self) -> int:
        """How many flat arrays it takes."""
        return (0 if self.shape is not None else self.depth) + 1

    def flatten(self, array: pa.Array) -> Iterator[Any]:
        """Yield the row splits of each ragged level, then the values."""
        if self.shape is not None:
            yield self._values(self._fixed(array, self.shape)).reshape((len(array), *self.shape))
            return
        for _ in range(self.depth):
            yield _row_splits(array)
            array = array.flatten()
        yield self._values(array)

    def _fixed(self, array: pa.Array, shape: Shape) -> pa.Array:
        """Return the values of lists that all have one length, one after another."""
        if not self.depth:
            return array
        size = math.prod(shape)
        if array.null_count:
            array = self._filled_lists(array)
        if self.is_bytes:
            array = _byte_lists(array)
        values = array.flatten()
        if not types.is_fixed_size_list(array.type):
            lengths = array.value_lengths()
            bounds = pc.min_max(lengths).as_py()
            for found in (bounds["min"], bounds["max"]):
                if found is not None and found != size:
                    raise self._unequal(found, size)
        return values

    def _unequal(self, found: int, size: int) -> SchemaError:
        if self.is_bytes:
            return SchemaError(
                f"column {self.name!r} has a row of {found} bytes, where its shape takes {size}",
                hint="leave it out of shapes, so that it is strings, or make rows of one length",
            )
        return SchemaError(
            f"column {self.name!r} has a list of {found} values, where lists of {size} came before",
            hint=f"pass ragged=[{self.name!r}], or make them of one length",
        )

    def _filled_lists(self, array: pa.Array) -> pa.Array:
        default = self._need_default()
        return pa.array([default if row is None else row for row in array.to_pylist()], array.type)

    def _values(self, array: pa.Array) -> Array:
        array = self._plain(array)
        # TensorFlow would encode text, which Arrow holds encoded.
        return _numpy(array.cast(pa.large_binary()) if is_text(array.type) else array, self.dtype)

    def _plain(self, array: pa.Array) -> pa.Array:
        """Return values without nulls, of a type that NumPy has."""
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if array.null_count:
            array = array.fill_null(pa.scalar(self._need_default(), array.type))
        return array.cast(pa.float64()) if types.is_decimal(array.type) else array

    def _need_default(self) -> Any:
        if self.default is None:
            raise SchemaError(f"column {self.name!r} has nulls, which no tensor can hold", hint="give it in defaults")
        return self.default

    def assemble(self, parts: Sequence[Any]) -> Any:
        """Make the tensor of what `flatten` yielded, in a graph or not."""
        import tensorflow as tf

        splits = 0 if self.shape is not None else self.depth
        values = parts[splits]
        for level in reversed(range(splits)):
            values = tf.RaggedTensor.from_row_splits(values, parts[level], validate=False)
        return values

    def signature(self, rows: int | None) -> Iterator[Any]:
        """Yield what TensorFlow must know of the flat arrays of so many rows."""
        import tensorflow as tf

        shape = [None if self.shape is None else rows, *(self.shape or ())]
        if self.shape is None:
            yield tf.TensorSpec([None if rows is None else rows + 1], tf.int64)
            for _ in range(self.depth - 1):
                yield tf.TensorSpec([None], tf.int64)
        yield tf.TensorSpec(shape, self._tensor_dtype)

    def spec(self, rows: int | None) -> Any:
        """Describe the tensor of so many rows."""
        import tensorflow as tf

        if self.shape is not None:
            return tf.TensorSpec([rows, *self.shape], self._tensor_dtype)
        return tf.RaggedTensorSpec([rows, *[None] * self.depth], self._tensor_dtype, ragged_rank=self.depth)

    @property
    def _tensor_dtype(self) -> Any:
        import tensorflow as tf

        return tf.string if is_text(self.leaf) else tf.as_dtype(self.dtype)

    def array(self, array: pa.Array) -> Array:
        """Return the column as a NumPy array; of objects where it holds strings or is ragged."""
        if self.shape is None:
            return _objects([self._leaf_array(row.values) for row in array] if self.depth == 1 else array.to_pylist())
        return self._leaf_array(self._fixed(array, self.shape)).reshape((len(array), *self.shape))

    def _leaf_array(self, array: pa.Array | None) -> Array:
        if array is None:
            return np.empty(0, self.dtype)
        return _numpy(self._plain(array), self.dtype)


def _numpy(array: pa.Array, dtype: np.dtype[Any]) -> Array:
    values: Array = array.to_numpy(zero_copy_only=False)
    return values.astype(dtype, copy=False)


def _objects(values: Sequence[Any]) -> Array:
    result = np.empty(len(values), object)
    for index, value in enumerate(values):
        result[index] = value
    return result


def _byte_lists(array: pa.Array) -> pa.Array:
    """See the bytes of each row as a list of numbers; they are not copied."""
    array = array.cast(pa.large_binary())
    validity, offsets, content = array.buffers()
    numbers = pa.Array.from_buffers(pa.uint8(), content.size if content else 0, [None, content])
    kind = pa.large_list(pa.uint8())
    return pa.Array.from_buffers(kind, len(array), [validity, offsets], offset=array.offset, children=[numbers])


def _row_splits(array: pa.Array) -> Array:
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


class Layout:
    """How the columns of a schema become tensors.

    `lengths` has the list columns whose lists have one length though their type does not say so.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        lengths: Mapping[str, int] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        defaults: Mapping[str, Any] | None = None,
        ragged: Collection[str] = (),
    ) -> None:
        for argument, names in (("shapes", shapes), ("defaults", defaults), ("ragged", ragged)):
            check_names(names or (), schema, argument)
        self.schema = schema
        self.columns = tuple(
            _column(
                field,
                None if field.name in ragged else (lengths or {}).get(field.name),
                (shapes or {}).get(field.name),
                (defaults or {}).get(field.name),
                must_be_ragged=field.name in ragged,
            )
            for field in schema
        )

    def flatten(self, batch: pa.RecordBatch) -> tuple[Any, ...]:
        """Return the flat arrays of a batch of this schema, all columns' one after another."""
        return tuple(part for index, column in enumerate(self.columns) for part in column.flatten(batch.column(index)))

    def signature(self, rows: int | None = None) -> tuple[Any, ...]:
        """Return what TensorFlow must know of the flat arrays of so many rows."""
        return tuple(part for column in self.columns for part in column.signature(rows))

    def assemble(self, *parts: Any) -> dict[str, Any]:
        """Make named tensors of flat ones."""
        tensors, start = {}, 0
        for column in self.columns:
            tensors[column.name] = column.assemble(parts[start : start + column.parts])
            start += column.parts
        return tensors

    def spec(self, rows: int | None) -> dict[str, Any]:
        """Describe the tensors of so many rows."""
        return {column.name: column.spec(rows) for column in self.columns}

    def arrays(self, batch: pa.RecordBatch) -> dict[str, Array]:
        """Return a batch's columns as NumPy arrays."""
        return {column.name: column.array(batch.column(index)) for index, column in enumerate(self.columns)}


def _column(
    field: pa.Field, length: int | None, shape: Sequence[int] | None, default: Any, *, must_be_ragged: bool
) -> Column:
    leaf, depth = field.type, 0
    while is_list(leaf):
        leaf, depth = leaf.value_type, depth + 1
    if types.is_dictionary(leaf):
        leaf = leaf.value_type
    _check_leaf(field, leaf, depth)
    if types.is_fixed_size_list(field.type):
        length = field.type.list_size
    if must_be_ragged and (not depth or types.is_fixed_size_list(field.type)):
        raise SchemaError(f"column {field.name!r} is {field.type}, which cannot be ragged")
    if shape is not None:
        size = math.prod(shape)
        if is_bytes(field.type) and not must_be_ragged:
            return Column(field.name, pa.uint8(), tuple(shape), 1, default, is_bytes=True)
        if depth != 1 or must_be_ragged or (length is not None and length != size):
            has = "is ragged" if must_be_ragged else f"has {length} values a row" if length else f"is {field.type}"
            raise SchemaError(f"shapes: column {field.name!r} {has}, and cannot be of shape {tuple(shape)}")
        return Column(field.name, leaf, tuple(shape), depth, default)
    if not depth:
        return Column(field.name, leaf, (), 0, default)
    return Column(field.name, leaf, (length,) if length is not None and depth == 1 else None, depth, default)


def _check_leaf(field: pa.Field, leaf: pa.DataType, depth: int) -> None:
    is_known = (
        types.is_integer(leaf)
        or types.is_floating(leaf)
        or types.is_boolean(leaf)
        or types.is_decimal(leaf)
        or types.is_null(leaf)
        or is_text(leaf)
    )
    if not is_known or depth > _MAX_DEPTH:
        raise SchemaError(
            f"column {field.name!r} is {field.type}, which no tensor can hold",
            hint="cast it to a number or a string, or leave it out with columns=[...]",
        )
