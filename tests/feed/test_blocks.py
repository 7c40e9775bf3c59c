"""How rows are written down to be sent."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gridflow.feed.blocks import ArrowBlock

COLUMNS = {
    "bytes": pa.array([b"abc", None, b"", b"defg"], pa.binary()),
    "floats": pa.array([1.5, 2.5, None, 4.5]),
    "lists": pa.array([[1], [], [2, 3], None], pa.list_(pa.int32())),
    "flags": pa.array([True, False, None, True]),
}


@pytest.mark.parametrize(("start", "rows"), [(0, 4), (1, 2), (3, 1)])
def test_any_rows_of_a_block_are_an_arrow_message(start: int, rows: int) -> None:
    batch = pa.record_batch(COLUMNS)
    content = b"".join(ArrowBlock(batch).encode(start, rows).pieces)
    assert pa.ipc.read_record_batch(pa.py_buffer(content), batch.schema).equals(batch.slice(start, rows))


def test_values_are_not_copied() -> None:
    values = np.arange(1000.0)
    pieces = ArrowBlock(pa.record_batch({"x": pa.array(values)})).encode(100, 800).pieces
    [whole] = [piece for piece in pieces if len(piece) == 6400]
    assert np.shares_memory(np.frombuffer(whole), values[100:900])
