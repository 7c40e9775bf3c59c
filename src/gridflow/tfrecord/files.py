"""Files of records: found by path, URL, glob or folder; opened, and undone of their compression; written aside.

paths ──find──> FileSource ──pump──> a reader of the codec
bytes ──FileSink──> a file aside, renamed when it is whole
"""

from __future__ import annotations

import fnmatch
import logging
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa
from pyarrow import fs as pafs

from gridflow.errors import RecordError, UsageError
from gridflow.tfrecord import _codec

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Compression = Literal["auto", "none", "gzip", "zlib"]

#: What is read of a file at once: it stays in the processor's cache until it is decoded.
_CHUNK_BYTES = 512 << 10
#: What zlib is told: 31 expects gzip's header and trailer, 15 zlib's own.
_WINDOW_BITS = {"gzip": 31, "zlib": 15}
_GZIP_MAGIC = b"\x1f\x8b\x08"
#: These file systems are in pyarrow itself; all others are fsspec's.
_OF_PYARROW = ("file", "s3", "gs", "gcs", "abfs", "abfss")
_HINTS = {
    "kind": "read the column as another type",
    "count": "read the column as a list, for instance with array_columns",
    "range": "read the column as a wider type",
    "utf8": "read the column as binary",
    "message": "is record_type right?",
    "null": "fill or drop the nulls",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileSource:
    """A file to read; `name` is how messages call it."""

    filesystem: pafs.FileSystem
    path: str
    name: str
    size: int | None


@dataclass(frozen=True)
class Loss:
    """What was passed over in a damaged file: places, each of at least one record, and bytes."""

    path: str
    places: int
    bytes: int


class Sink(Protocol):
    """A reader of the codec, as far as it takes bytes."""

    record: int
    offset: int
    lost: int
    lost_bytes: int

    def reserve(self, size: int) -> memoryview: ...  # noqa: D102
    def commit(self, size: int) -> None: ...  # noqa: D102
    def append(self, data: bytes) -> None: ...  # noqa: D102
    def finish(self) -> None: ...  # noqa: D102
    def abandon(self) -> None: ...  # noqa: D102


def resolve(path: str | os.PathLike[str], filesystem: pafs.FileSystem | None) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path or URL, and the path within it."""
    text = os.fspath(path)
    if filesystem is not None:
        return _as_pyarrow(filesystem), text
    scheme, separator, _ = text.partition("://")
    if not separator:
        return pafs.LocalFileSystem(), os.path.abspath(os.path.expanduser(text))
    if scheme in _OF_PYARROW:
        # Globs are no part of a URL, so pyarrow would refuse some of them.
        return pafs.FileSystem.from_uri(text) if scheme != "file" else (pafs.LocalFileSystem(), text[len("file://") :])
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(f"{text}: reading {scheme}:// needs fsspec", hint="pip install fsspec") from error
    try:
        found, within = fsspec.core.url_to_fs(text)
    except (ValueError, ImportError) as error:
        raise UsageError(f"{text}: no file system is known for {scheme}:// ({error})") from error
    return _as_pyarrow(found), within


def _as_pyarrow(filesystem: Any) -> pafs.FileSystem:
    if isinstance(filesystem, pafs.FileSystem):
        return filesystem
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))


def find(paths: Paths, filesystem: pafs.FileSystem | None = None) -> list[FileSource]:
    """Return the files that paths, URLs, globs and folders mean, those of a glob or a folder sorted by name."""
    wanted = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    sources = []
    for path in wanted:
        found = list(_find_one(os.fspath(path), filesystem))
        if not found:
            raise UsageError(f"{os.fspath(path)}: no such file", hint="check the path, or the pattern")
        sources += found
    return sources


def _find_one(text: str, filesystem: pafs.FileSystem | None) -> Iterator[FileSource]:
    system, path = resolve(text, filesystem)
    info = system.get_file_info(path)
    prefix = text[: len(text) - len(path)] if text.endswith(path) else ""
    if info.type == pafs.FileType.File:
        yield FileSource(system, path, text, info.size)
        return
    if info.type == pafs.FileType.Directory:
        selector, pattern = pafs.FileSelector(path, recursive=True), None
    elif any(character in path for character in "*?["):
        fixed = path[: min(path.find(character) for character in "*?[" if character in path)]
        selector = pafs.FileSelector(fixed.rpartition("/")[0] or "/", recursive=True, allow_not_found=True)
        pattern = path
    else:
        return
    for each in sorted(system.get_file_info(selector), key=lambda info: str(info.path)):
        if each.type != pafs.FileType.File or _is_hidden(each.path.removeprefix(selector.base_dir)):
            continue
        if pattern is None or _matches(each.path, pattern):
            yield FileSource(system, each.path, prefix + each.path, each.size)


def _is_hidden(path: str) -> bool:
    """Tell whether a path is one of those that Hadoop and Spark pass over, such as `_SUCCESS` or `.part-0.crc`."""
    return any(part.startswith((".", "_")) and "=" not in part for part in path.split("/"))


def _matches(path: str, pattern: str) -> bool:
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


class _DamagedCompressionError(Exception):
    pass


def detect_compression(head: bytes) -> str:
    """Tell a file's compression from its first bytes."""
    # A record's own header has a checksum, so it is never taken for anything else.
    if _codec.is_header(head):
        return "none"
    if head.startswith(_GZIP_MAGIC):
        return "gzip"
    if len(head) >= 2 and head[0] == 0x78 and int.from_bytes(head[:2]) % 31 == 0:
        return "zlib"
    return "none"


def _inflate(stream: pa.NativeFile, data: bytes, window_bits: int) -> Iterator[bytes]:
    """Yield the bytes of a compressed stream that begins with `data`, member by member."""
    inflater = zlib.decompressobj(window_bits)
    while True:
        before = inflater.copy()
        try:
            out = inflater.decompress(data, _CHUNK_BYTES)
        except zlib.error as error:
            yield _before_damage(before, data)
            raise _DamagedCompressionError(f"the compressed data is damaged ({error})") from error
        if out:
            yield out
        data = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
        is_output_left = len(out) == _CHUNK_BYTES and not inflater.eof
        if not data and not is_output_left:
            data = stream.read(_CHUNK_BYTES)
            if not data:
                if not inflater.eof:
                    raise _DamagedCompressionError("the compressed data is cut")
                return
        if inflater.eof:
            inflater = zlib.decompressobj(window_bits)


def _before_damage(inflater: Any, data: bytes) -> bytes:
    """Return what can be had of damaged data: zlib gives nothing of the piece in which it finds an error."""
    pieces = []
    try:
        for at in range(len(data)):
            pieces.append(inflater.decompress(data[at : at + 1]))
    except zlib.error:
        pass
    return b"".join(pieces)


def _fill(stream: pa.NativeFile, compression: Compression, sink: Sink) -> Iterator[None]:
    """Move a stream into a sink, a chunk at a time."""
    head = stream.read(12)
    found = detect_compression(head) if compression == "auto" else compression
    if found != "none":
        for chunk in _inflate(stream, head, _WINDOW_BITS[found]):
            sink.append(chunk)
            yield
        return
    sink.append(head)
    while True:
        size = stream.readinto(sink.reserve(_CHUNK_BYTES))
        sink.commit(size)
        if not size:
            return
        yield


def pump(
    source: FileSource,
    sink: Any,
    step: Callable[[], Any],
    *,
    compression: Compression,
    skip: bool,
    progress: Callable[[int], None] | None = None,
) -> Iterator[None]:
    """Run `step` over a file until it has come to the end; yield whenever it has filled a batch.

    `progress` is told how many bytes of the file have been read.
    """
    with _open(source) as stream:
        chunks = _fill(stream, compression, sink)
        while True:
            try:
                state = step()
            except _codec.CodecError as error:
                raise record_error(source.name, *error.args) from None
            if state == _codec.State.END:
                return
            if state == _codec.State.BATCH:
                yield
                continue
            try:
                if next(chunks, Ellipsis) is Ellipsis:
                    sink.finish()
            except _DamagedCompressionError as error:
                if not skip:
                    raise record_error(source.name, "compression", sink.record, sink.offset, str(error)) from error
                sink.abandon()
            if progress is not None:
                progress(stream.tell())


def _open(source: FileSource) -> AbstractContextManager[pa.NativeFile]:
    try:
        stream: AbstractContextManager[pa.NativeFile] = source.filesystem.open_input_stream(
            source.path, compression=None, buffer_size=0
        )
    except OSError as error:
        raise UsageError(f"{source.name}: cannot be opened ({error})") from error
    return stream


def record_error(path: str, kind: str, record: int | None, offset: int | None, message: str) -> RecordError:
    """Give an error of the codec its place and a remedy."""
    hint = _HINTS.get(kind, "")
    if kind == "length-crc" and record == 0:
        hint = "is it a TFRecord file, and is its compression right?"
    return RecordError(message, path=path, record=record, offset=offset, kind=kind, hint=hint)


def note_loss(source: FileSource, sink: Any, losses: list[Loss] | None) -> None:
    """Report what a reader passed over, if anything: to the caller's list, or in the log."""
    if not sink.lost:
        return
    loss = Loss(source.name, sink.lost, sink.lost_bytes)
    if losses is None:
        _log.warning("%s: passed over %d damaged places, %d bytes", loss.path, loss.places, loss.bytes)
    else:
        losses.append(loss)


class FileSink:
    """A file that appears under its name when it is whole: written aside, then renamed; removed after a failure."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compression: Compression = "auto",
        level: int = 6,
        filesystem: pafs.FileSystem | None = None,
    ) -> None:
        self.name = os.fspath(path)
        self._filesystem, self._path = resolve(path, filesystem)
        folder, slash, name = self._path.rpartition("/")
        self._aside = f"{folder}{slash}.{name}.{secrets.token_hex(4)}.part"
        if compression == "auto":
            compression = {".gz": "gzip", ".zlib": "zlib"}.get(os.path.splitext(name)[1], "none")  # type: ignore[assignment]
        self._packer = None if compression == "none" else zlib.compressobj(level, wbits=_WINDOW_BITS[compression])

    def __enter__(self) -> FileSink:
        try:
            #: The file itself, for writers of other formats.
            self.stream = self._filesystem.open_output_stream(self._aside, compression=None)
        except OSError as error:
            raise UsageError(f"{self.name}: cannot be written ({error})") from error
        return self

    def write(self, data: memoryview | bytes) -> None:
        """Write some bytes."""
        self.stream.write(data if self._packer is None else self._packer.compress(data))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                if self._packer is not None:
                    self.stream.write(self._packer.flush())
                self.stream.close()
                self._put_in_place()
                return
        except OSError as error:
            self._remove()
            raise UsageError(f"{self.name}: cannot be written ({error})") from error
        self._remove()

    def _put_in_place(self) -> None:
        try:
            self._rename(self._aside, self._path)
        except OSError:
            if self._filesystem.get_file_info(self._path).type != pafs.FileType.File:
                raise
            # HDFS does not rename onto a file that is there.
            before = f"{self._aside}.before"
            self._rename(self._path, before)
            try:
                self._rename(self._aside, self._path)
            except OSError:
                self._rename(before, self._path)
                raise
            self._filesystem.delete_file(before)

    def _rename(self, path: str, target: str) -> None:
        self._filesystem.move(path, target)
        # WebHDFS does not say where it could not.
        if self._filesystem.get_file_info(path).type != pafs.FileType.NotFound:
            raise OSError(f"{path} could not be renamed to {target}")

    def _remove(self) -> None:
        try:
            self.stream.close()
        except OSError as error:
            _log.warning("%s: closing it failed (%s)", self._aside, error)
        if self._filesystem.get_file_info(self._aside).type == pafs.FileType.File:
            self._filesystem.delete_file(self._aside)
