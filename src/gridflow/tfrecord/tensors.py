"""Records into TensorFlow: `feature_spec` for its own parser, and `dataset`, decoded by the codec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
from pyarrow import types

from gridflow.errors import UsageError
from gridflow.tensors import Layout, check_names
from gridflow.tfrecord.columns import plan, select
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
    check_names(given, schema, "defaults")
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
    layout = Layout(chosen, defaults=defaults)

    def batches() -> Iterator[tuple[Any, ...]]:
        with read(paths, chosen, batch_size=max(batch_size, 1024), **options) as reader:
            for batch in _rebatch(reader, batch_size, drop_remainder=drop_remainder):
                yield layout.flatten(batch)

    signature = layout.signature(batch_size if drop_remainder else None)
    return tf.data.Dataset.from_generator(batches, output_signature=signature).map(layout.assemble)


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
