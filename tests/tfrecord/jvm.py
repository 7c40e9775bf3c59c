"""How tests speak with Spark's JVM."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


def collect(df: DataFrame) -> list[Row]:
    """Return all rows; PySpark leaves the socket that they came through to the garbage collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        return df.collect()


def cause(error: BaseException) -> str:
    """Return the message of the deepest Java exception behind an error."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors.exceptions.captured import CapturedException

    java: Any = None
    if isinstance(error, Py4JJavaError):
        java = error.java_exception
    elif isinstance(error, CapturedException):
        java = error._origin
    if java is None:
        return str(error)
    messages = []
    while java is not None:
        messages.append(str(java.getMessage()))
        java = java.getCause()
    return "\n".join(messages)
