"""Records into TensorFlow: `feature_spec` for its own parser, and `dataset`, decoded by the codec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pyarrow as pa
from pyarrow import types

from gridflow.errors import SchemaError, UsageError
from gridflow.tfrecord.columns import is_list, plan, select
from gridflow.tfrecord.reading import Options, infer_schema, read

if TYPE_CHECKING:
    import tensorflow as tf


def feature_spec(schema: pa.Schema, defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what `tf.io.parse_example` needs to parse records of a schema.

    A scalar is a FixedLenFeature, so TensorFlow refuses a record without it unless `defaults` has a value. Lists are
    RaggedFeatures, lists of a fixed size FixedLenFeatures of that shape.
    """
    import tensorflow as tf

    given = dict(defaults or {})
    _refuse_unknown(given, schema)
    spec: dict[str, Any] = {}
    for column in plan(schema, "Example", writing=True):
        type_ = column.type
        dtype = {"int64": tf.int64, "float": tf.float32, "double": tf.float32}.get(column.physical, tf.string)
        if types.is_fixed_size_list(type_):
            spec[column.name] = tf.io.FixedLenFeature([type_.list_size], dtype, given.get(column.name))
        elif column.depth:
            spec[column.name] = tf.io.RaggedFeature(dtype)
        else:
            spec[column.name] = tf.io.FixedLenFeature([], dtype, given.get(column.name))
    return spec


def _refuse_unknown(defaults: Mapping[str, Any], schema: pa.Schema) -> None:
    unknown = sorted(defaults.keys() - set(schema.names))
    if unknown:
        raise SchemaError(f"defaults names {unknown[0]!r}, which is no column", hint=f"there are {schema.names}")


def dataset(
    paths: Any,
    batch_size: int,
    schema: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    *,
    defaults: Mapping[str, Any] | None = None,
    drop_remainder: bool = False,
    **options: Unpack[Options],
) -> tf.data.Dataset:
    """Return a tf.data.Dataset of batches, a dict of tensors by column name, decoded by the codec.

    Scalars are of shape [batch], lists of a fixed size [batch, size], other lists ragged. A null needs a value in
    `defaults`; a null list is an empty one.
    """
    import tensorflow as tf

    if batch_size < 1:
        raise UsageError(f"batch_size={batch_size} is not positive")
    if schema is None:
        schema = infer_schema(paths, **options)
    chosen = select(schema, columns)
    given = dict(defaults or {})
    _refuse_unknown(given, chosen)
    signature = {field.name: _tensor_spec(field, batch_size if drop_remainder else None) for field in chosen}

    def batches() -> Iterator[dict[str, Any]]:
        with read(paths, chosen, batch_size=max(batch_size, 1024), **options) as reader:
            for batch in _rebatch(reader, batch_size, drop_remainder=drop_remainder):
                yield {field.name: _tensor(field, batch.column(field.name), given) for field in chosen}

    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def _rebatch(reader: pa.RecordBatchReader, size: int, *, drop_remainder: bool) -> Iterator[pa.RecordBatch]:
    """Cut batches into others of one size, across their borders."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in reader:
        waiting.append(batch)
        rows += batch.num_rows
        if rows < size:
            continue
        joined = pa.concat_batches(waiting) if len(waiting) > 1 else batch
        whole = rows - rows % size
        for start in range(0, whole, size):
            yield joined.slice(start, size)
        waiting, rows = ([joined.slice(whole)], rows - whole) if rows > whole else ([], 0)
    if rows and not drop_remainder:
        yield pa.concat_batches(waiting)


def _dtype(type_: pa.DataType) -> Any:
    import tensorflow as tf

    if types.is_dictionary(type_):
        return _dtype(type_.value_type)
    if types.is_decimal(type_):
        return tf.float64
    if types.is_integer(type_) or types.is_floating(type_) or types.is_boolean(type_):
        return tf.as_dtype(type_.to_pandas_dtype())
    if types.is_null(type_):
        return tf.float32
    return tf.string


def _tensor_spec(field: pa.Field, rows: int | None) -> Any:
    import tensorflow as tf

    if not is_list(field.type):
        return tf.TensorSpec([rows], _dtype(field.type))
    if types.is_fixed_size_list(field.type):
        return tf.TensorSpec([rows, field.type.list_size], _dtype(field.type.value_type))
    inner = field.type.value_type
    if is_list(inner):
        return tf.RaggedTensorSpec([rows, None, None], _dtype(inner.value_type), ragged_rank=2)
    return tf.RaggedTensorSpec([rows, None], _dtype(inner), ragged_rank=1)


def _tensor(field: pa.Field, array: pa.Array, defaults: Mapping[str, Any]) -> Any:
    import tensorflow as tf

    if not is_list(field.type):
        if array.null_count:
            array = _fill(field, array, defaults)
        return _flat_tensor(array)
    if types.is_fixed_size_list(field.type):
        if array.null_count:
            array = _fill(field, array, defaults)
        return tf.reshape(_flat_tensor(array.flatten()), [len(array), field.type.list_size])
    splits = _row_splits(array)
    inner = array.flatten()
    if is_list(inner.type):
        values = tf.RaggedTensor.from_row_splits(_flat_tensor(inner.flatten()), _row_splits(inner), validate=False)
    else:
        values = _flat_tensor(inner)
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def _row_splits(array: pa.Array) -> np.ndarray[Any, Any]:
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _fill(field: pa.Field, array: pa.Array, defaults: Mapping[str, Any]) -> pa.Array:
    if field.name not in defaults:
        raise SchemaError(f"column {field.name!r} has nulls, which no tensor can hold", hint="give it in defaults")
    if types.is_fixed_size_list(array.type):
        rows = [defaults[field.name] if row is None else row for row in array.to_pylist()]
        return pa.array(rows, array.type)
    return array.fill_null(pa.scalar(defaults[field.name], array.type))


def _flat_tensor(array: pa.Array) -> Any:
    """Make a tensor of values without nulls; no value becomes a Python object."""
    import tensorflow as tf

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_null(array.type):
        return tf.zeros([len(array)], tf.float32)
    if types.is_decimal(array.type):
        array = array.cast(pa.float64())
    dtype = _dtype(array.type)
    if dtype != tf.string:
        return tf.constant(array.to_numpy(zero_copy_only=False), dtype)
    array = array.cast(pa.large_binary())
    if not len(array):
        return tf.constant([], tf.string)
    # One string with all bytes, then cut by TensorFlow.
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    whole = b"" if data is None else data[int(offsets[0]) : int(offsets[-1])].to_pybytes()
    starts = offsets[:-1] - offsets[0]
    lengths = np.diff(offsets)
    if not whole:
        return tf.fill([len(array)], tf.constant(b"", tf.string))
    # An empty string at the very end would begin behind the last byte, which TensorFlow refuses.
    starts = np.minimum(starts, len(whole) - 1)
    return tf.strings.substr(tf.constant(whole), starts, lengths)
