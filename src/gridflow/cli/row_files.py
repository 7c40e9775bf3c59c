"""Files of rows for the command line: Parquet, CSV, JSON lines and numpy, chosen by a name's ending."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gridflow.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

TFRECORD = "tfrecord"
#: The name of an array file's only column.
ARRAY = "array"
_FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".npy": "npy",
}


def format_of(path: str) -> str:
    """Return the format that a file's name stands for."""
    name = path.rpartition("/")[2]
    return next((kind for ending, kind in _FORMATS.items() if name.endswith(ending)), TFRECORD)


def open_batches(source: str, columns: list[str] | None = None) -> pa.RecordBatchReader:
    """Open a Parquet, CSV, JSON lines or numpy file as batches."""
    import pyarrow as pa
    from pyarrow import dataset

    from gridflow.tfrecord.files import find

    if format_of(source) == "npy":
        return _open_numpy(source)
    (found,) = find(source)
    kind = {"jsonl": "json"}.get(format_of(source), format_of(source))
    with _errors_named(source, kind):
        opened = dataset.dataset(found.path, format=kind, filesystem=found.filesystem)
    missing = [name for name in columns or [] if name not in opened.schema.names]
    if missing:
        raise UsageError(f"{source}: there is no column {missing[0]!r}", hint=f"there are {opened.schema.names}")
    reader = opened.scanner(columns=columns).to_reader()
    schema = _with_bytes(reader.schema) if kind == "json" else reader.schema

    def batches() -> Iterator[pa.RecordBatch]:
        with _errors_named(source, kind):
            for batch in reader:
                yield batch if schema == reader.schema else pa.RecordBatch.from_pylist(_from_json(batch), schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


@contextmanager
def _errors_named(source: str, kind: str) -> Iterator[None]:
    """Turn what Arrow says of a file that is damaged, or of another format, into one line."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        what = " ".join(str(error).split())
        raise UsageError(f"{source}: cannot be read as {kind} ({what})", hint="is its ending right?") from error


def _open_numpy(source: str) -> pa.RecordBatchReader:
    """Open an array as one column, `array`, whose rows are its first dimension."""
    import numpy as np
    import pyarrow as pa

    try:
        array = np.load(source, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"{source}: cannot be read as an array ({error})") from error
    column = pa.array(array.reshape(-1))
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return pa.table({ARRAY: column}).to_reader()


def write_batches(reader: pa.RecordBatchReader, target: str) -> int:
    """Write batches as a Parquet, CSV, JSON lines or numpy file, which appears when it is whole; return the rows."""
    from gridflow.tfrecord.files import FileSink

    with FileSink(target, compression="none") as sink:
        kind = format_of(target)
        write = _WRITERS[kind]
        return write(reader, sink)


def _write_parquet(reader: pa.RecordBatchReader, sink: Any) -> int:
    from pyarrow import parquet

    return _write_by(parquet.ParquetWriter(sink.stream, reader.schema), reader)


def _write_csv(reader: pa.RecordBatchReader, sink: Any) -> int:
    from pyarrow import csv, types

    for field in reader.schema:
        what = "lists" if types.is_nested(field.type) else "bytes" if types.is_binary(field.type) else ""
        if what:
            raise UsageError(f"CSV cannot hold the {what} of column {field.name!r}", hint="leave it out, or use .jsonl")
    return _write_by(csv.CSVWriter(sink.stream, reader.schema), reader)


def _write_by(writer: Any, reader: pa.RecordBatchReader) -> int:
    rows = 0
    with writer:
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _write_json_lines(reader: pa.RecordBatchReader, sink: Any) -> int:
    rows = 0
    for batch in reader:
        lines = [json.dumps(jsonable(row), ensure_ascii=False) + "\n" for row in batch.to_pylist()]
        sink.write("".join(lines).encode())
        rows += batch.num_rows
    return rows


def jsonable(value: Any) -> Any:
    """Return a cell as JSON can hold it: bytes that are no text become `{"base64": …}`."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: jsonable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [jsonable(inner) for inner in value]
    return value


def _with_bytes(schema: pa.Schema) -> pa.Schema:
    """Return a schema of JSON lines with bytes where `jsonable` has put them."""
    import pyarrow as pa
    from pyarrow import types

    def made(kind: pa.DataType) -> pa.DataType:
        if types.is_list(kind):
            return pa.list_(made(kind.value_type))
        return pa.binary() if kind == pa.struct([("base64", pa.string())]) else kind

    return pa.schema([pa.field(field.name, made(field.type)) for field in schema])


def _from_json(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return a batch's rows with what `jsonable` did undone."""

    def cell(value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("base64"), str):
            return base64.b64decode(value["base64"], validate=True)
        return [cell(inner) for inner in value] if isinstance(value, list) else value

    return [{name: cell(value) for name, value in row.items()} for row in batch.to_pylist()]


def _write_numpy(reader: pa.RecordBatchReader, sink: Any) -> int:
    import io

    import numpy as np

    if len(reader.schema.names) != 1:
        raise UsageError(
            f"an array file holds one column, not {reader.schema.names}", hint="choose one, or use .parquet"
        )
    column = reader.read_all().column(0).combine_chunks()
    shape = [len(column)]
    while hasattr(column.type, "list_size"):
        shape.append(column.type.list_size)
        column = column.flatten()
    content = io.BytesIO()
    np.save(content, column.to_numpy(zero_copy_only=False).reshape(shape), allow_pickle=False)
    sink.write(content.getvalue())
    return shape[0]


_WRITERS = {"parquet": _write_parquet, "csv": _write_csv, "jsonl": _write_json_lines, "npy": _write_numpy}
