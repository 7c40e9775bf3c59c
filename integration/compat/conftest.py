"""What the tests of other systems' programs share: a Spark cluster, and a session on it."""

from __future__ import annotations

from integration.spark.conftest import cluster, spark

__all__ = ["cluster", "spark"]
