"""`predict`: a saved model over a DataFrame, one loaded model per executor.

    driver      what the model takes and gives ─▶ columns to send, types of the new columns ─▶ a lazy DataFrame
    executor    Spark ─ Arrow ─▶ Python worker ─ Arrow ─▶ model host (one for all workers) ─▶ back the same way

Only the columns that the model takes leave the JVM; all others stay where they are.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gridflow.errors import SchemaError, UsageError
from gridflow.spark.model_host import HostConnection, Place
from gridflow.spark.packing import pack, unpack
from gridflow.spark.saved_models import ModelPlan, Tensor, describe, fingerprint

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from gridflow.gpu import Claim

#: The jar's function that makes bytes of an array; see `packing`.
PACK = "gridflow.pack"
#: TensorFlow's types, and Spark's that hold all of their values.
_SPARK_TYPES = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint8": "smallint",
    "uint16": "int",
    "uint32": "bigint",
    "half": "float",
    "float16": "float",
    "float32": "float",
    "float64": "double",
    "string": "string",
}
#: Spark's types that a model can be given, as numpy calls them.
_NUMPY_TYPES = {
    "boolean": "bool",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "string": "object",
    "binary": "object",
}
# 'local[2]', 'local[2,4]', 'local-cluster[2,1,1024]': threads of the one executor, or cores of each
_LOCAL_CORES = re.compile(r"local\[(\d+)(?:,\d+)?\]|local-cluster\[\d+,\s*(\d+),.*")


@dataclass(frozen=True)
class _Call:
    """What a Python worker does to each batch of rows."""

    plan: ModelPlan
    #: The columns that are sent, in this order, and of which of them each input is made.
    sent: tuple[str, ...]
    inputs: Mapping[str, tuple[str, ...]]
    #: The columns that come as bytes, and what those are made of.
    packed: Mapping[str, str]
    outputs: tuple[str, ...]
    batch_size: int | None

    def run(self, batches: Iterator[Any]) -> Iterator[pa.Array]:
        """Yield the outputs for each batch: a column, or where there are several a column of structs."""
        with HostConnection(self.plan, Place.of_executor(self.plan, os.environ)) as host:
            for columns in batches:
                arrays = list(columns) if isinstance(columns, tuple) else [columns]
                batch = unpack(pa.RecordBatch.from_arrays(arrays, list(self.sent)), self.packed)
                found = host.predict(batch, self.inputs, self.batch_size)
                made = [found.column(name) for name in self.outputs]
                yield made[0] if len(made) == 1 else pa.StructArray.from_arrays(made, list(self.outputs))


def predict(
    df: DataFrame,
    model_path: str | os.PathLike[str],
    *,
    inputs: str | Mapping[str, str | Sequence[str]] | None = None,
    outputs: str | Mapping[str, str] | None = None,
    batch_size: int | None = None,
    signature: str | None = None,
    claim: Claim | None = None,
    memory_mb: float | None = None,
    idle_seconds: float = 60.0,
    timeout_seconds: float = 600.0,
) -> DataFrame:
    """Return the DataFrame with new columns: what a SavedModel, a `.keras` file or a frozen graph makes of its rows.

    `inputs` says which column each input of the model is, or which columns lie side by side in it; a name alone is
    the column of the only input. Without it, columns have the names of inputs. `outputs` says which outputs are wanted
    and how their columns are called; without it, all of them, by their own names. The path may be a URL.

    All columns and the order of rows are kept, and nothing runs before the DataFrame is used. One process per executor
    holds the model for all of its Python workers, in batches of at most `batch_size` rows that fit into the memory of
    the `claim`, or into `memory_mb`. It ends with the executor, or after `idle_seconds` without work.
    """
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch_size={batch_size} is not positive")
    plan = _plan_of(os.fspath(model_path), inputs, outputs, signature)
    model = describe(plan)
    bound = bind_inputs(inputs, model.inputs, df.columns)
    named = name_outputs(outputs, model.outputs, df.columns)
    kinds = {field.name: field.dataType for field in df.schema.fields}
    for name, columns in bound.items():
        for column in columns:
            check_type(column, kinds[column], name, model.inputs[name])
    sent = tuple(dict.fromkeys(column for columns in bound.values() for column in columns))
    settings = df.sparkSession.conf
    plan = dataclasses.replace(
        plan,
        outputs=tuple(named),
        claim=None if claim is None else json.dumps(dataclasses.asdict(claim)),
        memory_mb=memory_mb,
        threads=executor_cores(*(settings.get(name, None) for name in ("spark.master", "spark.executor.cores"))),
        idle_seconds=idle_seconds,
        timeout_seconds=timeout_seconds,
    )
    types = {name: spark_type(name, model.outputs[name]) for name in named}
    given, packed = columns_to_send(df, sent)
    call = _Call(plan, sent, bound, packed, tuple(named), batch_size)
    return _with_outputs(df, call, given, named, types)


def _plan_of(path: str, inputs: Any, outputs: Any, signature: str | None) -> ModelPlan:
    path = path if "://" in path else os.path.abspath(os.path.expanduser(path))
    # The names of a frozen graph's tensors are all that says which of them are inputs and outputs.
    is_graph = path.endswith(".pb")
    return ModelPlan(
        path,
        fingerprint(path),
        signature,
        tuple(inputs) if isinstance(inputs, Mapping) and is_graph else None,
        tuple(outputs) if isinstance(outputs, Mapping) and is_graph else None,
    )


def bind_inputs(
    inputs: str | Mapping[str, str | Sequence[str]] | None, tensors: Mapping[str, Tensor], present: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Say of which columns each input of a model is made."""
    if isinstance(inputs, str):
        if len(tensors) != 1:
            raise SchemaError(
                f"one column, {inputs!r}, for a model with {len(tensors)} inputs",
                hint=f"say inputs={{…}} for {', '.join(tensors)}",
            )
        inputs = {next(iter(tensors)): inputs}
    elif inputs is None:
        inputs = {next(iter(tensors)): present[0]} if len(tensors) == 1 == len(present) else {}
    unknown = [name for name in inputs if name not in tensors]
    if unknown:
        raise SchemaError(f"the model has no input {unknown[0]!r}", hint=f"it has {', '.join(tensors)}")
    bound = {}
    for name in tensors:
        wanted = inputs.get(name, name)
        bound[name] = (wanted,) if isinstance(wanted, str) else tuple(wanted)
        missing = [column for column in bound[name] if column not in present]
        if missing or not bound[name]:
            raise SchemaError(
                f"there is no column {(missing or [''])[0]!r} for the model's input {name!r}",
                hint=f"say which of {', '.join(present)} it is: inputs={{{name!r}: …}}",
            )
    return bound


def name_outputs(
    outputs: str | Mapping[str, str] | None, tensors: Mapping[str, Tensor], present: Sequence[str]
) -> dict[str, str]:
    """Say how the columns of a model's outputs are called."""
    if isinstance(outputs, str):
        if len(tensors) != 1:
            raise SchemaError(
                f"one column, {outputs!r}, for a model with {len(tensors)} outputs",
                hint=f"say outputs={{…}} for some of {', '.join(tensors)}",
            )
        outputs = {next(iter(tensors)): outputs}
    named = {name: name for name in tensors} if outputs is None else dict(outputs)
    unknown = [name for name in named if name not in tensors]
    if unknown:
        raise SchemaError(f"the model has no output {unknown[0]!r}", hint=f"it has {', '.join(tensors)}")
    taken = [*present]
    for name, column in named.items():
        if column in taken:
            raise SchemaError(
                f"there is a column {column!r} already", hint=f"call the model's output otherwise: {{{name!r}: …}}"
            )
        taken.append(column)
    return named


def check_type(column: str, kind: DataType, name: str, tensor: Tensor) -> None:
    """Fail if the values of a column cannot be those of an input; their number is known only when they come."""
    import numpy as np
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import ArrayType

    inner = kind
    while isinstance(inner, ArrayType):
        inner = inner.elementType
    given = "float64" if isinstance(inner, VectorUDT) else _NUMPY_TYPES.get(inner.simpleString())
    wanted = "object" if tensor.dtype == "string" else {"half": "float16"}.get(tensor.dtype, tensor.dtype)
    fits = given == wanted or (
        given is not None and "object" not in (given, wanted) and np.can_cast(given, wanted, casting="same_kind")
    )
    if not fits:
        raise SchemaError(
            f"column {column!r} is {kind.simpleString()}, and the model's input {name!r} takes {tensor.dtype}",
            hint="cast the column",
        )


def spark_type(name: str, tensor: Tensor) -> str:
    """Return the type of an output's column: a number, or arrays as deep as the output has dimensions."""
    kind = _SPARK_TYPES.get(tensor.dtype)
    if kind is None:
        raise SchemaError(f"output {name!r} is {tensor.dtype}, which Spark cannot hold", hint="choose other outputs")
    if not tensor.shape:
        shape = "no known shape" if tensor.shape is None else "one value for all rows"
        raise SchemaError(f"output {name!r} has {shape}", hint="choose outputs that have one row for each sample")
    for _ in tensor.shape[1:]:
        kind = f"array<{kind}>"
    return kind


def executor_cores(master: str | None, setting: str | None) -> int | None:
    """Return how many processors an executor has, by Spark's `spark.master` and `spark.executor.cores`."""
    found = _LOCAL_CORES.fullmatch(master or "")
    cores = next(filter(None, found.groups())) if found else setting
    return None if cores is None else int(cores)


def columns_to_send(df: DataFrame, names: Sequence[str]) -> tuple[list[Column], dict[str, str]]:
    """Return the columns that leave the JVM, arrays and vectors as bytes, and what each of those is made of."""
    from pyspark.sql import functions

    columns = {name: df[_quoted(name)] for name in names}
    # This also lets the session know the function that is called below.
    _, packed = pack(df.select(*columns.values()))
    for name in packed:
        columns[name] = functions.call_function(PACK, columns[name], functions.lit(name))
    return list(columns.values()), packed


def _with_outputs(
    df: DataFrame, call: _Call, columns: Sequence[Column], named: Mapping[str, str], types: Mapping[str, str]
) -> DataFrame:
    from pyspark.sql.pandas.functions import arrow_udf

    def outputs(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        return call.run(batches)

    fields = ", ".join(f"{_quoted(name)} {types[name]}" for name in named)
    single = next(iter(named)) if len(named) == 1 else None
    function = arrow_udf(outputs, f"struct<{fields}>" if single is None else types[single])  # type: ignore[call-overload]
    made: Column = function(*columns)
    if single is not None:
        return df.select("*", made.alias(named[single]))
    # A name that no column has.
    whole = "_".join(["gridflow", *df.columns])
    found = df.select("*", made.alias(whole))
    parts = [found[_quoted(whole)].getField(name).alias(column) for name, column in named.items()]
    return found.select("*", *parts).drop(whole)


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))
