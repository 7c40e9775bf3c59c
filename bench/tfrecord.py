"""The TFRecord codec against its peers, on one processor, in one run.

Two sets: Examples with 10 int64, 10 float and 2 bytes features, and Examples with 784 floats. Each way to read ends
with Arrow batches, each way to write with a file; rates are megabytes of the file per second of processor time, the
best of some rounds in which they take turns. Peers run in environments of their own (peers.py).

`bare scan` is framing and checksums alone: what any reader has to do. Ours needs 0.17 ns for a byte, so for the 22
scalars of a record to be read at 0.6 of it each may take 2.5 ns; TensorFlow's is shown beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from peers import PEERS, peer_python
from report import Measurement, make_parser, print_report

#: Of each set and each thing to do, megabytes per second.
Rates: TypeAlias = dict[str, dict[str, float]]

PATIENCE_SECONDS = 1800.0
PROTOBUF_RECORDS = 5_000
STEADY_SECONDS = 0.5
MOST_ROUNDS = 20


@dataclass(frozen=True)
class Set:
    """Records of one kind; `some` are the columns of a narrow read."""

    name: str
    records: int
    integers: int
    floats: int
    texts: int
    array: int

    @property
    def some(self) -> list[str]:
        return ["int3", "text1"] if self.integers else ["label"]

    @property
    def file(self) -> str:
        return f"{self.name}-{self.records}.tfrecord"


def sets(*, quick: bool) -> list[Set]:
    return [
        Set("scalars", 40_000 if quick else 200_000, 10, 10, 2, 0),
        Set("arrays", 8_000 if quick else 200_000, 0, 0, 0, 784),
    ]


def make_table(of: Set) -> Any:
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(0)
    columns: dict[str, Any] = {}
    for number in range(of.integers):
        columns[f"int{number}"] = random.integers(0, 2 ** (4 * number + 4), of.records)
    for number in range(of.floats):
        columns[f"float{number}"] = random.random(of.records, np.float32)
    for number in range(of.texts):
        columns[f"text{number}"] = [f"text {number} of the record {row}" for row in range(of.records)]
    if of.array:
        values = random.random(of.records * of.array, np.float32)
        offsets = np.arange(0, of.records * of.array + 1, of.array, dtype=np.int32)
        columns["image"] = pa.ListArray.from_arrays(offsets, values)
        columns["label"] = random.integers(0, 10, of.records)
    return pa.table(columns)


def best(rounds: int, works: Mapping[str, Callable[[], object]], *, made: Path | None = None) -> dict[str, float]:
    """Return the processor seconds of each work's fastest round.

    They take turns, so that what disturbs the machine for a while disturbs all of them; short ones, which it disturbs
    most, have more rounds. The file that a work has made is removed before the next: to replace a file, the kernel has
    to bring the new one to the disk.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}

    def is_steady(taken: list[float]) -> bool:
        return len(taken) >= rounds and (sum(taken) >= STEADY_SECONDS or len(taken) >= MOST_ROUNDS)

    while not all(map(is_steady, seconds.values())):
        for name, work in works.items():
            if made is not None:
                made.unlink(missing_ok=True)
            started = time.process_time()
            work()
            seconds[name].append(time.process_time() - started)
    return {name: min(taken) for name, taken in seconds.items()}


def drain(reader: Any) -> None:
    for _ in reader:
        pass


def scan_plainly(path: Path) -> None:
    from gridflow import tfrecord

    tfrecord.count(path, threads=1)


def measure_gridflow(of: Set, path: Path, rounds: int) -> dict[str, float]:
    from gridflow import tfrecord

    table = make_table(of)
    batches = table.to_batches(max_chunksize=8192)
    import pyarrow as pa

    table = pa.Table.from_batches(batches)
    aside = path.with_suffix(".again")
    schema = table.schema
    works: dict[str, Callable[[], object]] = {
        "bare scan": lambda: scan_plainly(path),
        "read": lambda: drain(tfrecord.read(path, schema, threads=1)),
        "read some": lambda: drain(tfrecord.read(path, schema, of.some, threads=1)),
        "infer and read": lambda: drain(tfrecord.read(path, threads=1)),
        "write": lambda: tfrecord.write(table, aside),
    }
    measured = best(rounds, works, made=aside)
    assert aside.stat().st_size == path.stat().st_size
    aside.unlink()
    return measured


def measure_tensorflow(of: Set, path: Path, rounds: int) -> dict[str, float]:
    """TFRecordDataset and parse_example, then Arrow from the tensors."""
    import pyarrow as pa
    import tensorflow as tf

    from gridflow import tfrecord

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    schema = make_table(Set(of.name, 10, of.integers, of.floats, of.texts, of.array)).schema
    if of.array:
        schema = schema.set(0, pa.field("image", pa.list_(pa.float32(), of.array)))

    def read(columns: list[str]) -> None:
        spec = tfrecord.feature_spec(pa.schema([schema.field(name) for name in columns]))
        for raw in tf.data.TFRecordDataset(str(path)).batch(4096):
            tensors = tf.io.parse_example(raw, spec)
            arrays = []
            for name in columns:
                values = tensors[name].numpy()
                if values.ndim == 2:
                    arrays.append(pa.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1]))
                else:
                    arrays.append(pa.array(values))
            pa.RecordBatch.from_arrays(arrays, names=columns)

    works = {
        "bare scan": lambda: drain(tf.data.TFRecordDataset(str(path)).batch(4096)),
        "read": lambda: read(schema.names),
        "read some": lambda: read(of.some),
    }
    return best(rounds, works)


def measure_protobuf(of: Set, path: Path, rounds: int) -> dict[str, float]:
    """The protobuf classes and lists of Python, on the first records only; rates are scaled to the file."""
    import pyarrow as pa
    import tensorflow as tf

    schema = make_table(Set(of.name, 10, of.integers, of.floats, of.texts, of.array)).schema
    count = min(PROTOBUF_RECORDS if not of.array else PROTOBUF_RECORDS // 10, of.records)
    scale = of.records / count
    raw = list(tf.data.TFRecordDataset(str(path)).take(count).as_numpy_iterator())

    def read(columns: list[str]) -> None:
        cells: dict[str, list[Any]] = {name: [] for name in columns}
        for payload in raw:
            features = tf.train.Example.FromString(payload).features.feature
            for name in columns:
                feature = features[name]
                values = getattr(feature, feature.WhichOneof("kind")).value
                cells[name].append(list(values) if name == "image" else values[0])
        pa.table(cells)

    rows = make_table(Set(of.name, count, of.integers, of.floats, of.texts, of.array)).to_pylist()
    aside = path.with_suffix(".again")

    def write() -> None:
        with tf.io.TFRecordWriter(str(aside)) as writer:
            for row in rows:
                features = {name: make_feature(cell) for name, cell in row.items()}
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

    works = {"read": lambda: read(schema.names), "read some": lambda: read(of.some), "write": write}
    measured = best(rounds, works, made=aside)
    aside.unlink()
    return {what: seconds * scale for what, seconds in measured.items()}


def make_feature(cell: Any) -> Any:
    import tensorflow as tf

    if isinstance(cell, int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[cell]))
    if isinstance(cell, str):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[cell.encode()]))
    return tf.train.Feature(float_list=tf.train.FloatList(value=cell if isinstance(cell, list) else [cell]))


def measure_tfx_bsl(of: Set, path: Path, rounds: int) -> dict[str, float]:
    """tfx_bsl's decoder and encoder; records come and go through TensorFlow's own reader and writer."""
    import pyarrow as pa
    import tensorflow as tf
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2
    from tfx_bsl.coders import example_coder

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    table = make_table(of)

    def coder(columns: list[str]) -> Any:
        kinds = {"int": "INT", "flo": "FLOAT", "tex": "BYTES", "ima": "FLOAT", "lab": "INT"}
        text = "".join(f'feature {{ name: "{name}" type: {kinds[name[:3]]} }}\n' for name in columns)
        schema = text_format.Parse(text, schema_pb2.Schema())
        return example_coder.ExamplesToRecordBatchDecoder(schema.SerializeToString())

    def read(columns: list[str]) -> None:
        decoder = coder(columns)
        for raw in tf.data.TFRecordDataset(str(path)).batch(4096).as_numpy_iterator():
            decoder.DecodeBatch(raw)

    def as_lists(batch: Any) -> Any:
        """The encoder takes nothing but lists."""
        arrays = []
        for array in batch.columns:
            if not pa.types.is_list(array.type):
                array = pa.ListArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), array)
            arrays.append(array.cast(pa.large_list(array.type.value_type)))
        arrays = [
            array.cast(pa.large_list(pa.large_binary())) if array.type.value_type == pa.string() else array
            for array in arrays
        ]
        return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)

    batches = [as_lists(batch) for batch in table.to_batches(max_chunksize=4096)]
    aside = path.with_suffix(".again")

    def write() -> None:
        encoder = example_coder.RecordBatchToExamplesEncoder()
        with tf.io.TFRecordWriter(str(aside)) as writer:
            for batch in batches:
                for payload in encoder.encode(batch):
                    writer.write(payload)

    works = {"read": lambda: read(table.schema.names), "read some": lambda: read(of.some), "write": write}
    measured = best(rounds, works, made=aside)
    aside.unlink()
    return measured


def measure_tfrecord(of: Set, path: Path, rounds: int) -> dict[str, float]:
    """The package `tfrecord` of PyPI, on the first records only; rates are scaled to the file."""
    import itertools

    import pyarrow as pa
    from tfrecord.reader import tfrecord_loader

    count = min(PROTOBUF_RECORDS if not of.array else PROTOBUF_RECORDS // 10, of.records)
    kinds = {"int": "int", "flo": "float", "tex": "byte", "ima": "float", "lab": "int"}

    def read() -> None:
        names = make_table(Set(of.name, 10, of.integers, of.floats, of.texts, of.array)).schema.names
        description = {name: kinds[name[:3]] for name in names}
        rows = list(itertools.islice(tfrecord_loader(str(path), None, description), count))
        pa.table({name: [row[name] for row in rows] for name in names})

    return {"read": best(rounds, {"read": read})["read"] * of.records / count}


WAYS: dict[str, Callable[[Set, Path, int], dict[str, float]]] = {
    "gridflow": measure_gridflow,
    "tensorflow": measure_tensorflow,
    "protobuf": measure_protobuf,
    "tfx_bsl": measure_tfx_bsl,
    "tfrecord": measure_tfrecord,
}


def run_apart(way: str, of: list[Set], folder: Path, rounds: int) -> Rates:
    """Measure in a process of its own, bound to one processor; a peer that cannot be had is left out."""
    try:
        python = str(peer_python(way)) if way in PEERS else sys.executable
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"bench: {way} cannot be installed: {error}", file=sys.stderr)
        return {}
    request = {"way": way, "sets": [asdict(one) for one in of], "folder": str(folder), "rounds": rounds}
    done = subprocess.run(
        [python, __file__, "--apart", json.dumps(request)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
    )
    if done.returncode:
        print(f"bench: {way} failed: {done.stderr[-1500:]}", file=sys.stderr)
        return {}
    rates: Rates = json.loads(done.stdout.splitlines()[-1])
    return rates


def answer(request: dict[str, Any]) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    # This file is called like one of the peers.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).parent.resolve()]
    measure, rates = WAYS[request["way"]], {}
    for of in (Set(**one) for one in request["sets"]):
        path = Path(request["folder"]) / of.file
        megabytes = path.stat().st_size / 1e6
        measured = measure(of, path, request["rounds"])
        rates[of.name] = {what: megabytes / seconds for what, seconds in measured.items()}
    print(json.dumps(rates))


def compare(of: Set, rates: dict[str, dict[str, float]]) -> list[Measurement]:
    """Compare what each way has shown on a set."""
    ours = rates["gridflow"]
    measurements = [
        Measurement(f"{of.name}: bare scan", ours["bare scan"], "MB/s"),
        Measurement(f"{of.name}: gridflow infer and read", ours["infer and read"], "MB/s"),
    ]
    for what in ("read", "read some", "write"):
        rate = ours[what]
        name = f"{of.name}: gridflow {what}"
        if what != "write":
            measurements.append(Measurement(name, rate, "MB/s", "bare scan", rate / ours["bare scan"]))
            theirs = rates["tensorflow"].get("bare scan")
            if theirs:
                measurements.append(Measurement(name, rate, "MB/s", "tensorflow's bare scan", rate / theirs))
        for way in ("tfx_bsl", "tensorflow", "protobuf", "tfrecord"):
            if what in rates[way]:
                measurements.append(Measurement(name, rate, "MB/s", way, rate / rates[way][what]))
                measurements.append(Measurement(f"{of.name}: {way} {what}", rates[way][what], "MB/s"))
    return measurements


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--apart", help="measure one way in this process: for the benchmark's own use")
    arguments = parser.parse_args()
    if arguments.apart:
        answer(json.loads(arguments.apart))
        return
    from gridflow import tfrecord

    rounds = 2 if arguments.quick else 5
    chosen = sets(quick=arguments.quick)
    with tempfile.TemporaryDirectory(prefix="gridflow-bench-") as folder:
        for of in chosen:
            tfrecord.write(make_table(of), Path(folder) / of.file)
        rates = {way: run_apart(way, chosen, Path(folder), rounds) for way in WAYS}
    measurements = []
    for of in chosen:
        measurements += compare(of, {way: found.get(of.name, {}) for way, found in rates.items()})
    print_report(measurements, as_json=arguments.json)


if __name__ == "__main__":
    main()
