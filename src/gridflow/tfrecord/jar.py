"""Where the jar is that gives Spark and Hadoop the TFRecord formats."""

from __future__ import annotations

from pathlib import Path

from gridflow.errors import UsageError

_JAR = Path(__file__).with_name("jars") / "gridflow-tfrecord.jar"


def jar() -> Path:
    """Return the path of the jar, for `spark-submit --jars` or Hadoop's class path."""
    if not _JAR.is_file():
        raise UsageError(f"the jar {_JAR} is not there", hint="in a clone of Gridflow, build it with `make jar`")
    return _JAR
