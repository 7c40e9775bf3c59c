"""Arrow into records: `write`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import fs as pafs

from gridflow.errors import RecordError, SchemaError, UsageError
from gridflow.tfrecord import _codec
from gridflow.tfrecord.columns import Column, RecordType, plan
from gridflow.tfrecord.files import Compression, FileSink, record_error

#: Rows and bytes that are encoded at once.
_SLICE_ROWS, _SLICE_BYTES = 8192, 2 << 20


def write(
    data: Any,
    path: str | os.PathLike[str],
    *,
    record_type: RecordType = "Example",
    compression: Compression = "auto",
    level: int = 6,
    filesystem: pafs.FileSystem | None = None,
) -> int:
    """Write a table, a batch, a reader or anything that gives an Arrow stream as one file; return its record count.

    The file appears under its name when it is whole; a failure leaves nothing, or what was there before. Compression
    `auto` follows the name: `.gz` and `.zlib`.
    """
    if compression not in ("auto", "none", "gzip", "zlib"):
        raise UsageError(f"compression {compression!r} is unknown", hint="auto, none, gzip or zlib")
    reader = _reader_of(data)
    columns = plan(reader.schema, record_type, writing=True)
    encoder = _codec.Encoder([column.codec_tuple for column in columns], record_type)
    with FileSink(path, compression=compression, level=level, filesystem=filesystem) as sink:
        for batch in reader:
            for rows in _slices(batch):
                sink.write(_encode(encoder, columns, rows, sink.name))
    return int(encoder.records)


def _reader_of(data: Any) -> pa.RecordBatchReader:
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    raise UsageError(
        f"cannot write a {type(data).__name__}", hint="give a pyarrow Table, RecordBatch or RecordBatchReader"
    )


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    bytes_per_row = batch.nbytes // batch.num_rows + 1
    step = max(1, min(_SLICE_ROWS, _SLICE_BYTES // bytes_per_row))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _encode(encoder: _codec.Encoder, columns: list[Column], batch: pa.RecordBatch, name: str) -> memoryview:
    arrays = [_prepare(column, array, encoder.records, name) for column, array in zip(columns, batch, strict=True)]
    prepared = pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])
    _, exported = prepared.__arrow_c_array__()
    try:
        view: memoryview = encoder.encode(exported)
    except _codec.CodecError as error:
        kind, record, _, message = error.args
        raise _row_error(name, kind, record, message) from None
    return view


def _row_error(name: str, kind: str, record: int, message: str) -> RecordError:
    return record_error(name, kind, record, None, message)


def _prepare(column: Column, array: pa.Array, first_row: int, name: str) -> pa.Array:
    """Cast a column to what the codec takes, and refuse values that no feature can hold."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type != column.codec_type:
        try:
            array = array.cast(column.codec_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(f"column {column.name!r}: {error}", hint="cast it or drop it") from error
    if column.depth:
        _refuse_null_elements(column, array, first_row, name)
    return array


def _refuse_null_elements(column: Column, array: pa.Array, first_row: int, name: str) -> None:
    values = array.values if column.depth == 1 else array.values.values
    if not values.null_count:
        return  # nor has any part of them, which is costly to cut out
    lists = array if column.depth == 1 else array.flatten()
    if not lists.flatten().null_count:
        return
    row = pc.list_parent_indices(lists).filter(pc.is_null(lists.flatten()))[0].as_py()
    if column.depth == 2:
        row = pc.list_parent_indices(array)[row].as_py()
    raise _row_error(name, "null", first_row + row, f"column {column.name!r} has a null inside a list")
