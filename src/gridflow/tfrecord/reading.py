"""Records into Arrow: `read`, `infer_schema`, `count`, `verify`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import pyarrow as pa
from pyarrow import fs as pafs

from gridflow.errors import RecordError, UsageError
from gridflow.tfrecord import _codec
from gridflow.tfrecord.columns import BYTE_ARRAY, Column, RecordType, Seen, check_record_type, infer, plan, select
from gridflow.tfrecord.files import Compression, FileSource, Loss, Paths, find, note_loss, pump, record_error
from gridflow.tfrecord.parallel import in_order

#: A batch ends after so many bytes of records, since smaller ones stay in the processor's cache.
_BATCH_BYTES = 2 << 20


class Options(TypedDict, total=False):
    """What every way of reading takes by keyword; `Settings` says what each means."""

    record_type: RecordType
    compression: Compression
    on_error: str
    losses: list[Loss] | None
    check_crc: bool
    max_record_bytes: int
    filesystem: pafs.FileSystem | None
    threads: int | None
    progress: Callable[[FileSource, int], None] | None


@dataclass(frozen=True)
class Settings:
    """How files are read.

    `on_error="skip"` passes over damaged records and appends a `Loss` per damaged file to `losses`. A record longer
    than `max_record_bytes` is taken for damage. `threads` read as many files at once; None is one per processor.
    `progress` is told of a file how many of its bytes have been read, from the thread that reads it.
    """

    record_type: RecordType = "Example"
    compression: Compression = "auto"
    on_error: str = "raise"
    losses: list[Loss] | None = None
    check_crc: bool = True
    max_record_bytes: int = 1 << 30
    filesystem: pafs.FileSystem | None = None
    threads: int | None = None
    progress: Callable[[FileSource, int], None] | None = None

    def __post_init__(self) -> None:
        check_record_type(self.record_type)
        if self.compression not in ("auto", "none", "gzip", "zlib"):
            raise UsageError(f"compression {self.compression!r} is unknown", hint="auto, none, gzip or zlib")
        if self.on_error not in ("raise", "skip"):
            raise UsageError(f"on_error={self.on_error!r} is unknown", hint="raise or skip")
        if self.max_record_bytes < 0:
            raise UsageError(f"max_record_bytes={self.max_record_bytes} is negative")

    @property
    def framing(self) -> dict[str, Any]:
        """What the codec's readers are told about framing."""
        return {
            "max_length": self.max_record_bytes,
            "skip": self.on_error == "skip",
            "check_crc": self.check_crc,
        }

    @property
    def workers(self) -> int:
        """How many files are read at once."""
        return len(os.sched_getaffinity(0)) if self.threads is None else self.threads

    def pump(self, source: FileSource, sink: Any, step: Callable[[], Any]) -> Iterator[None]:
        """Run `step` over a file; yield at each full batch."""
        progress = self.progress
        yield from pump(
            source,
            sink,
            step,
            compression=self.compression,
            skip=self.on_error == "skip",
            progress=None if progress is None else lambda read: progress(source, read),
        )
        note_loss(source, sink, self.losses)


def read(
    paths: Paths,
    schema: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    *,
    batch_size: int = 8192,
    array_columns: Sequence[str] = (),
    sample: int | None = None,
    **options: Unpack[Options],
) -> pa.RecordBatchReader:
    """Read files of records as Arrow batches, in the order of the files.

    Without a schema, one is inferred as `infer_schema` does. `columns` names those to decode; the others cost next to
    nothing. Keyword options are those of `Settings`.
    """
    settings = Settings(**options)
    if batch_size < 1:
        raise UsageError(f"batch_size={batch_size} is not positive")
    sources = find(paths, settings.filesystem)
    if schema is None:
        # What it passes over is met again, and reported, when the records are read.
        schema = _infer(sources, replace(settings, losses=[]), sample, array_columns)
    chosen = select(schema, columns)
    planned = plan(chosen, settings.record_type, writing=False)
    tasks = [_FileBatches(source, settings, planned, chosen, batch_size) for source in sources]
    return pa.RecordBatchReader.from_batches(chosen, in_order(tasks, settings.workers))


@dataclass(frozen=True)
class _FileBatches:
    """One file's batches."""

    source: FileSource
    settings: Settings
    columns: list[Column]
    schema: pa.Schema
    batch_size: int

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        decoder = _codec.Decoder(
            [column.codec_tuple for column in self.columns],
            self.settings.record_type,
            self.batch_size,
            _BATCH_BYTES,
            **self.settings.framing,
        )
        decoded = pa.RecordBatchReader.from_stream(decoder)
        if decoded.schema.equals(self.schema, check_metadata=True):
            yield from self._decode(decoder, decoded)
            return
        first_row = 0
        for batch in self._decode(decoder, decoded):
            yield self._cast(batch, first_row)
            first_row += batch.num_rows

    def _decode(self, decoder: _codec.Decoder, decoded: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for _ in self.settings.pump(self.source, decoder, decoder.decode):
            yield decoded.read_next_batch()
        if decoder.rows:
            yield decoded.read_next_batch()

    def _cast(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        arrays = []
        for column, array in zip(self.columns, batch.columns, strict=True):
            try:
                arrays.append(array if array.type == column.type else _cast(array, column))
            except pa.ArrowInvalid as error:
                # Rows are counted, and are not records where some of these were passed over.
                record = first_row + _first_misfit(array, column) if self.settings.on_error == "raise" else None
                message = f"column {column.name!r}: {error}"
                raise record_error(self.source.name, "range", record, None, message) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _cast(array: pa.Array, column: Column) -> pa.Array:
    # Of numbers, the codec has checked the range; what is left is to lose digits where the type has fewer.
    is_narrowing = column.physical == "float"
    return array.cast(column.type, safe=not is_narrowing)


def _first_misfit(array: pa.Array, column: Column) -> int:
    """Return the first row of an array that cannot be cast."""
    for row in range(len(array)):
        try:
            _cast(array.slice(row, 1), column)
        except pa.ArrowInvalid:
            return row
    raise AssertionError("all rows can be cast one by one")


def infer_schema(
    paths: Paths, sample: int | None = None, array_columns: Sequence[str] = (), **options: Unpack[Options]
) -> pa.Schema:
    """Infer a schema from all records, or from the first `sample` of each file.

    A column is a scalar only if every list seen has one value; `array_columns` makes lists of others. What a sample
    does not show is missing from the schema, so look at all where files differ.
    """
    settings = Settings(**options)
    return _infer(find(paths, settings.filesystem), settings, sample, array_columns)


def _infer(
    sources: list[FileSource], settings: Settings, sample: int | None, array_columns: Sequence[str]
) -> pa.Schema:
    if settings.record_type == "ByteArray":
        return pa.schema([(BYTE_ARRAY, pa.binary())])
    features: dict[str, Seen] = {}
    lists: dict[str, Seen] = {}
    tasks = [_FileFeatures(source, settings, sample) for source in sources]
    for source, found in in_order(tasks, settings.workers):
        for seen, names in ((features, found.features()), (lists, found.lists())):
            for name, row in names.items():
                seen.setdefault(name, Seen()).add(row)
                if seen[name].is_mixed:
                    record, offset = row["bytes_at"] if row["bytes_at"][0] >= 0 else row["numbers_at"]
                    message = f"feature {name!r} holds bytes in some records and numbers in others"
                    raise record_error(source.name, "mixed", record, offset, message)
        both = features.keys() & lists.keys()
        if both:
            message = f"{min(both)!r} is both a feature of the context and a feature list"
            raise RecordError(
                message, path=source.name, record=None, offset=None, kind="mixed", hint="give a schema to choose one"
            )
    return infer(features, lists, array_columns)


@dataclass(frozen=True)
class _FileFeatures:
    """What features one file has."""

    source: FileSource
    settings: Settings
    sample: int | None

    def __iter__(self) -> Iterator[tuple[FileSource, _codec.Inference]]:
        limit = -1 if self.sample is None else self.sample
        found = _codec.Inference(self.settings.record_type, limit=limit, **self.settings.framing)
        for _ in self.settings.pump(self.source, found, found.look):
            pass
        yield self.source, found


def count(paths: Paths, **options: Unpack[Options]) -> int:
    """Count records by their framing; checksums are checked on the way."""
    settings = Settings(**options)
    tasks = [_FileScan(source, settings) for source in find(paths, settings.filesystem)]
    return sum(scanner.records for _, scanner in in_order(tasks, settings.workers))


@dataclass(frozen=True)
class _FileScan:
    """The framing of one file."""

    source: FileSource
    settings: Settings

    def __iter__(self) -> Iterator[tuple[FileSource, _codec.Scanner]]:
        scanner = _codec.Scanner(**self.settings.framing)
        for _ in self.settings.pump(self.source, scanner, scanner.scan):
            pass
        yield self.source, scanner


@dataclass(frozen=True)
class FileReport:
    """What checking a file has shown; `error` is its first damage."""

    path: str
    records: int
    bytes: int
    lost: int
    error: RecordError | None

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.error is None


def verify(paths: Paths, *, decode: bool = False, **options: Unpack[Options]) -> list[FileReport]:
    """Check the framing and checksums of files, and with `decode` each message too; damage is reported, not raised."""
    settings = Settings(**options)
    tasks = [_FileCheck(source, settings, decode) for source in find(paths, settings.filesystem)]
    return list(in_order(tasks, settings.workers))


@dataclass(frozen=True)
class _FileCheck:
    """The check of one file."""

    source: FileSource
    settings: Settings
    decode: bool

    def __iter__(self) -> Iterator[FileReport]:
        try:
            records, bytes_, _ = self._look(skip=False)
            yield FileReport(self.source.name, records, bytes_, 0, None)
        except RecordError as error:
            records, bytes_, lost = self._look(skip=True)
            yield FileReport(self.source.name, records, bytes_, lost, error)

    def _look(self, *, skip: bool) -> tuple[int, int, int]:
        framing = {**self.settings.framing, "skip": skip}
        looker: Any
        if self.decode and self.settings.record_type != "ByteArray":
            looker = _codec.Inference(self.settings.record_type, limit=-1, **framing)
            step = looker.look
        else:
            looker = _codec.Scanner(**framing)
            step = looker.scan
        progress = self.settings.progress
        told = None if progress is None else lambda read: progress(self.source, read)
        for _ in pump(self.source, looker, step, compression=self.settings.compression, skip=skip, progress=told):
            pass
        return looker.records, looker.offset, looker.lost
