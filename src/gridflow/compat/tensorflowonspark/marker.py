"""Objects among the rows of a queue that are no rows."""

from __future__ import annotations


class Marker:
    """What is not a row."""


class EndPartition(Marker):
    """The end of a partition's rows."""
