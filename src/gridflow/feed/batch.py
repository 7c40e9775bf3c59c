"""A batch of rows as NumPy arrays, and rows that fill one up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gridflow.tensors import Array, Column, Layout, is_text

if TYPE_CHECKING:
    import numpy as np


class Batch(Mapping[str, "np.ndarray[Any, Any]"]):
    """Named columns of some rows, as arrays, made when asked for; `arrow` has them as they came.

    The last `padded` rows only fill the batch.
    """

    def __init__(self, arrow: pa.RecordBatch, layout: Layout, padded: int = 0) -> None:
        self.arrow = arrow
        self.padded = padded
        self._columns: dict[str, Column] = {column.name: column for column in layout.columns}

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.arrow.num_rows)

    def __getitem__(self, name: str) -> Array:
        return self._columns[name].array(self.arrow.column(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def padded(batch: pa.RecordBatch, count: int) -> pa.RecordBatch:
    """Add `count` times a batch's last row."""
    last = batch.num_rows - 1
    return batch.take(pa.array([*range(last + 1), *[last] * count]))


def blank_rows(layout: Layout, count: int) -> pa.RecordBatch:
    """Make rows of zeros and of nothing, for a worker that has none of its own."""
    columns = [
        pa.array([_blank(column)] * count, field.type)
        for column, field in zip(layout.columns, layout.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=layout.schema)


def _blank(column: Column) -> Any:
    if column.is_bytes:
        return bytes(math.prod(column.shape or ()))
    value: Any = b"" if is_text(column.leaf) else False if pa.types.is_boolean(column.leaf) else 0
    if not column.depth:
        return value
    return [] if column.shape is None else [value] * math.prod(column.shape)
