"""What the tests of TFRecords share: a Spark session."""

from __future__ import annotations

from tests.spark_sessions import local_spark

__all__ = ["local_spark"]
