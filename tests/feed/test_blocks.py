"""How rows are written down to be sent."""

from __future__ import annotations

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
    content = ArrowBlock(batch).encode(start, rows)
    assert pa.ipc.read_record_batch(pa.py_buffer(content), batch.schema).equals(batch.slice(start, rows))
