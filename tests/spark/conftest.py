"""What the tests of Spark share: a session of two threads."""

from __future__ import annotations

from tests.spark_sessions import local_spark

__all__ = ["local_spark"]
