"""What all workers agree a feed's rows to be: Arrow columns, or Python objects.

The first block of a feed decides, through the coordinator, also whether a list column has lists of one length, so that
every worker's tensors have the same shape.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from gridflow.errors import SchemaError
from gridflow.rendezvous.messages import Message


@dataclass(frozen=True)
class FeedSchema:
    """The columns of a feed; None where its rows are Python objects. `lengths` has the list columns of one length."""

    columns: pa.Schema | None
    lengths: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> FeedSchema:
        """Describe a feed by its first block."""
        lengths = {}
        for column in batch.schema:
            values = batch.column(column.name)
            # A list that is not there has no length.
            if (types.is_list(column.type) or types.is_large_list(column.type)) and not values.null_count:
                bounds = pc.min_max(values.value_lengths()).as_py()
                if bounds["min"] and bounds["min"] == bounds["max"]:
                    lengths[column.name] = int(bounds["min"])
        return cls(batch.schema.remove_metadata(), lengths)

    def check(self, other: pa.Schema | None) -> None:
        """Refuse rows of another kind."""
        if self.columns is None or other is None:
            if self.columns is not other:
                raise SchemaError("a feed carries either columns or Python objects, and this one is sent both")
            return
        names, others = self.columns.names, other.names
        if names != others:
            raise SchemaError(f"this feed has the columns {names}, and is sent {others}")
        for mine, theirs in zip(self.columns, other, strict=True):
            if mine.type != theirs.type:
                raise SchemaError(f"column {mine.name!r} of this feed is {mine.type}, and is sent as {theirs.type}")

    def to_message(self) -> Message:
        """Write it down for a message."""
        columns = None if self.columns is None else base64.b64encode(self.columns.serialize()).decode()
        return {"columns": columns, "lengths": dict(self.lengths)}

    @classmethod
    def from_message(cls, message: Message) -> FeedSchema:
        """Read what `to_message` wrote."""
        columns = message["columns"]
        schema = None if columns is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(columns)))
        return cls(schema, message["lengths"])
