"""TFRecord files to and from Arrow, by a native codec.

    files ──framing, checksums──> records ──wire format──> Arrow batches     read, infer_schema, count, verify
    Arrow batches ──wire format──> records ──framing──> file aside ──> file  write
    Arrow batches ──> tf.data                                                dataset, feature_spec

The codec (`cpp/`) works on bytes without the interpreter's lock; here files are found, opened and named in errors. What
becomes of which type is a table in docs/tfrecord.md; the Java codec (`java/`) follows the same one.
"""

from gridflow.tfrecord.files import FileSource, Loss
from gridflow.tfrecord.jar import jar
from gridflow.tfrecord.reading import FileReport, Options, count, infer_schema, read, verify
from gridflow.tfrecord.spark import register, write_spark
from gridflow.tfrecord.tensors import dataset, feature_spec
from gridflow.tfrecord.writing import write

__all__ = [
    "FileReport",
    "FileSource",
    "Loss",
    "Options",
    "count",
    "dataset",
    "feature_spec",
    "infer_schema",
    "jar",
    "read",
    "register",
    "verify",
    "write",
    "write_spark",
]
