"""`gridflow predict`: a saved model's answers for files of rows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gridflow.cli.row_files import ARRAY, TFRECORD, format_of, open_batches, write_batches
from gridflow.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from gridflow.inference import Model


@click.command()
@click.argument("model")
@click.argument("data")
@click.option("--out", required=True, help="The file to write: .parquet, .csv, .jsonl, .npy, or TFRecord.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=COLUMN",
    help="Which column is which input; several lie side by side.",
)
@click.option("--output", "outputs", multiple=True, metavar="NAME", help="An output to keep; all unless told.")
@click.option("--only-outputs", is_flag=True, help="Leave the columns of DATA out.")
@click.option("--signature", help="The signature of a SavedModel.")
@click.option("--batch-size", type=click.IntRange(1), help="Samples at once; as many as fit unless told.")
@click.option("--memory-mb", type=float, help="The memory that a batch may take on the CPU.")
@click.option("--gpus", type=float, help="GPUs to claim, or a fraction of one.")
@click.option("--gpu-memory-mb", type=float, help="Memory to claim on each GPU, beside others.")
@click.option("--threads", type=click.IntRange(1), help="TensorFlow's threads.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: str, out: str, only_outputs: bool, batch_size: int | None, as_json: bool, **how: Any) -> None:
    """Predict for the rows of DATA with MODEL: a SavedModel's folder, a .keras file or a frozen graph .pb.

    \b
    gridflow predict export/ images.tfrecord --out scores.parquet
    gridflow predict model.keras images.npy --out scores.npy
    """
    import pyarrow as pa

    columns: dict[str, list[str]] = {}
    for name, column in map(_pair, how.pop("inputs")):
        columns.setdefault(name, []).append(column)
    reader = _open(data)
    started = time.perf_counter()
    with _load(columns=columns, **how) as model:
        is_array = format_of(data) == "npy"
        if is_array and not columns and len(model.inputs) == 1:
            columns = {name: [ARRAY] for name in model.inputs}
        keeps_data = not (only_outputs or (is_array and format_of(out) == "npy"))
        batches = _answers(model, reader, batch_size, columns, keeps_data=keeps_data)
        first = next(batches)

        def all_batches() -> Iterator[pa.RecordBatch]:
            yield from first.to_batches()
            for table in batches:
                yield from table.to_batches()

        rows = _write(pa.RecordBatchReader.from_batches(first.schema, all_batches()), out)
        seconds = time.perf_counter() - started
        if as_json:
            shown = {"out": out, "rows": rows, "seconds": round(seconds, 3), "largest_batch": model.largest_batch}
            click.echo(json.dumps(shown))
        else:
            click.echo(f"{out}: {rows} rows, {rows / seconds:,.0f} a second")


def _pair(text: str) -> tuple[str, str]:
    name, equals, column = text.partition("=")
    if not equals:
        raise UsageError(f"--input {text!r} is not NAME=COLUMN")
    return name, column


def _open(data: str) -> pa.RecordBatchReader:
    from gridflow import tfrecord

    return tfrecord.read(data) if format_of(data) == TFRECORD else open_batches(data)


def _load(
    model: str,
    columns: dict[str, list[str]],
    outputs: tuple[str, ...],
    signature: str | None,
    memory_mb: float | None,
    gpus: float | None,
    gpu_memory_mb: float | None,
    threads: int | None,
) -> Model:
    from gridflow import inference
    from gridflow.gpu import Claim

    claim = None
    if gpus or gpu_memory_mb:
        claim = Claim(gpus=gpus, memory_per_gpu_mb=gpu_memory_mb, shared=gpu_memory_mb is not None)
    return inference.load(
        model,
        claim,
        signature=signature,
        inputs=tuple(columns) or None,
        outputs=outputs or None,
        threads=threads,
        memory_mb=memory_mb,
    )


def _answers(
    model: Model,
    reader: pa.RecordBatchReader,
    batch_size: int | None,
    columns: dict[str, list[str]],
    *,
    keeps_data: bool,
) -> Iterator[pa.Table]:
    """Yield tables of answers; at least one, so that the schema is known."""
    is_any = False
    for batch in reader:
        is_any = True
        answer = model.predict(batch, batch_size, columns)
        yield answer if keeps_data else answer.select(model.outputs)
    if not is_any:
        answer = model.predict(reader.schema.empty_table(), batch_size, columns)
        yield answer if keeps_data else answer.select(model.outputs)


def _write(reader: pa.RecordBatchReader, out: str) -> int:
    from gridflow import tfrecord

    return tfrecord.write(reader, out) if format_of(out) == TFRECORD else write_batches(reader, out)
