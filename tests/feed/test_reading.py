"""A consumer's way through the rows that it has received."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from gridflow.feed.blocks import RowsBlock
from gridflow.feed.inbox import Inbox, Piece
from gridflow.feed.reading import Reader
from gridflow.rendezvous.messages import Message


def test_rows_that_come_before_their_schema_are_read_after_it() -> None:
    block = RowsBlock([1, 2, 3], cost=24)
    inbox = Inbox()
    inbox.begin(0)
    inbox.take_in(0, 0, 0, Piece(pa.py_buffer(block.encode(0, 3)), block.rows, block.cost))
    with ThreadPoolExecutor() as threads:
        taken = threads.submit(Reader(inbox, 0, is_equal=False).take, 2)
        with pytest.raises(TimeoutError):
            taken.result(0.05)
        news: Message = {"ended": [], "epochs": None, "is_stopped": False, "failure": None}
        inbox.note({"type": "news", "schema": block.schema().to_message(), **news})
        assert taken.result(10) == [1, 2]
