"""`gridflow tfrecord …`: look into TFRecord files, check them, and convert them to and from other formats."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from gridflow.cli.row_files import TFRECORD, format_of, jsonable, open_batches, write_batches

if TYPE_CHECKING:
    from gridflow.tfrecord import FileSource, Loss

_TYPES = click.Choice(["Example", "SequenceExample", "ByteArray"])
#: A file below this is read before a bar could be seen.
_LONG_BYTES = 64 << 20

_paths = click.argument("paths", nargs=-1, required=True)
_record_type = click.option(
    "--record-type", type=_TYPES, default="Example", show_default=True, help="What records are."
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_skip = click.option("--skip", is_flag=True, help="Pass over damaged records instead of failing.")


@click.group()
def command() -> None:
    """Look into TFRecord files, check and convert them.

    PATHS are files, folders, globs or URLs.
    """


@command.command()
@_paths
@_record_type
@_as_json
@click.option("-n", "--rows", type=click.IntRange(1), default=5, show_default=True, help="How many records to print.")
@click.option("-c", "--columns", help="Columns to print, separated by commas.")
def head(paths: tuple[str, ...], record_type: Any, as_json: bool, rows: int, columns: str | None) -> None:
    """Print the first records."""
    from gridflow import tfrecord

    schema = tfrecord.infer_schema(paths, sample=rows, record_type=record_type)
    chosen = columns.split(",") if columns else None
    shown: list[dict[str, Any]] = []
    with tfrecord.read(paths, schema, chosen, record_type=record_type, batch_size=rows, threads=1) as reader:
        for batch in reader:
            shown += batch.to_pylist()[: rows - len(shown)]
            if len(shown) >= rows:
                break
    for number, row in enumerate(shown):
        if as_json:
            click.echo(json.dumps(jsonable(row), ensure_ascii=False))
            continue
        click.echo(f"record {number}")
        for name, cell in row.items():
            text = json.dumps(jsonable(cell), ensure_ascii=False)
            click.echo(f"  {name}: {text if len(text) <= 100 else text[:97] + '...'}")


@command.command()
@_paths
@_record_type
@_as_json
@click.option("--sample", type=int, help="Look at this many records of each file only.")
def schema(paths: tuple[str, ...], record_type: Any, as_json: bool, sample: int | None) -> None:
    """Infer the columns and their types from the records."""
    from gridflow import tfrecord

    with _bar(paths) as progress:
        found = tfrecord.infer_schema(paths, sample=sample, record_type=record_type, progress=progress)
    if as_json:
        click.echo(json.dumps([{"name": field.name, "type": str(field.type)} for field in found], indent=2))
        return
    width = max((len(field.name) for field in found), default=0)
    for field in found:
        click.echo(f"{field.name:<{width}}  {field.type}")


@command.command()
@_paths
@_as_json
@_skip
def count(paths: tuple[str, ...], as_json: bool, skip: bool) -> None:
    """Count records, checking their checksums."""
    from gridflow import tfrecord

    losses: list[tfrecord.Loss] = []
    with _bar(paths) as progress:
        records = tfrecord.count(paths, on_error="skip" if skip else "raise", losses=losses, progress=progress)
    if as_json:
        click.echo(json.dumps({"records": records, "lost": sum(loss.places for loss in losses)}))
        return
    click.echo(str(records))
    _show_losses(losses)


@command.command()
@_paths
@_record_type
@_as_json
@click.option("--decode", is_flag=True, help="Check that every record is a message of its type, too.")
def verify(paths: tuple[str, ...], record_type: Any, as_json: bool, decode: bool) -> int:
    """Check files for damage; the exit code is 1 if there is any."""
    from gridflow import tfrecord

    with _bar(paths) as progress:
        reports = tfrecord.verify(paths, decode=decode, record_type=record_type, progress=progress)
    for report in reports:
        error = report.error
        if as_json:
            row = {"path": report.path, "sound": report.is_sound, "records": report.records, "bytes": report.bytes}
            damage = None if error is None else {"kind": error.kind, "record": error.record, "offset": error.offset}
            click.echo(json.dumps({**row, "lost": report.lost, "error": damage}))
        elif error is None:
            click.echo(f"{report.path}: sound, {report.records} records, {report.bytes} bytes")
        else:
            click.echo(f"{error}; {report.records} records are sound, {report.lost} damaged places")
    return 0 if all(report.is_sound for report in reports) else 1


@command.command()
@click.argument("source")
@click.argument("target")
@_record_type
@_as_json
@_skip
@click.option("-c", "--columns", help="Columns to convert, separated by commas.")
def convert(source: str, target: str, record_type: Any, as_json: bool, skip: bool, columns: str | None) -> None:
    """Convert TFRecord files to Parquet, CSV or JSON lines, or one of these to TFRecord.

    The name's ending says which: .parquet, .csv, .jsonl; any other (.tfrecord, .tfrecord.gz) is TFRecord.
    """
    from gridflow import tfrecord

    chosen = columns.split(",") if columns else None
    losses: list[tfrecord.Loss] = []
    started = time.perf_counter()
    with _bar((source,)) as progress:
        if format_of(source) == TFRECORD:
            on_error = "skip" if skip else "raise"
            reader = tfrecord.read(
                source, columns=chosen, record_type=record_type, on_error=on_error, losses=losses, progress=progress
            )
        else:
            reader = open_batches(source, chosen)
        if format_of(target) == TFRECORD:
            records = tfrecord.write(reader, target, record_type=record_type)
        else:
            records = write_batches(reader, target)
    if as_json:
        seconds = round(time.perf_counter() - started, 3)
        lost = sum(loss.places for loss in losses)
        click.echo(json.dumps({"target": target, "records": records, "lost": lost, "seconds": seconds}))
        return
    click.echo(f"{target}: {records} records")
    _show_losses(losses)


def _show_losses(losses: list[Loss]) -> None:
    for loss in losses:
        click.echo(f"{loss.path}: {loss.places} damaged places, {loss.bytes} bytes lost", err=True)


@contextmanager
def _bar(paths: tuple[str, ...]) -> Iterator[Callable[[FileSource, int], None] | None]:
    """Show a bar with the throughput on a terminal, if there is enough to read to see one."""
    from gridflow.tfrecord.files import find

    total = sum(source.size or 0 for path in paths for source in find(path))
    if not sys.stderr.isatty() or total < _LONG_BYTES:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    done: dict[str, int] = {}
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=total)

        def tell(source: FileSource, read: int) -> None:
            done[source.name] = read
            progress.update(bar, completed=sum(list(done.values())))

        yield tell
