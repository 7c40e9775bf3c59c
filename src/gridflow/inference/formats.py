"""Saved models as one thing: a function from named tensors to named tensors.

folder with saved_model.pb     a SavedModel, by one of its signatures
model.keras, model.h5          a Keras model
graph.pb                       a frozen graph, by the names of its tensors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridflow.errors import UsageError

_DEFAULT_SIGNATURE = "serving_default"
_SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")


@dataclass(frozen=True)
class Function:
    """A model that can be called."""

    #: The tensors that it takes: name to tf.TensorSpec, the first dimension being the batch.
    inputs: Mapping[str, Any]
    #: The tensors that it gives, likewise.
    outputs: Mapping[str, Any]
    call: Callable[[Mapping[str, Any]], Mapping[str, Any]]

    @property
    def batch(self) -> int | None:
        """The number of samples that it takes, where it takes no other."""
        sizes = [spec.shape[0] for spec in self.inputs.values() if spec.shape.rank]
        return next((size for size in sizes if size is not None), None)


def load_function(
    path: Path, signature: str | None, inputs: Sequence[str] | None, outputs: Sequence[str] | None
) -> Function:
    """Load a model of any of the formats."""
    if not path.exists():
        raise UsageError(f"model {path} is not there")
    if path.is_dir() and any((path / name).exists() for name in _SAVED_MODEL_FILES):
        return _choose_outputs(_load_saved_model(path, signature), outputs)
    if signature is not None:
        raise UsageError(f"signature={signature!r} for {path}, which has none", hint="only a SavedModel has signatures")
    if path.suffix in (".keras", ".h5"):
        return _choose_outputs(_load_keras(path), outputs)
    if path.suffix == ".pb":
        return _load_frozen_graph(path, inputs, outputs)
    raise UsageError(
        f"{path} is no model that can be read", hint="give a SavedModel's folder, a .keras file or a frozen graph .pb"
    )


def _choose_outputs(function: Function, wanted: Sequence[str] | None) -> Function:
    if wanted is None:
        return function
    unknown = [name for name in wanted if name not in function.outputs]
    if unknown:
        raise UsageError(f"the model has no output {unknown[0]!r}", hint=f"it has {', '.join(function.outputs)}")

    def call(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        found = function.call(tensors)
        return {name: found[name] for name in wanted}

    return Function(function.inputs, {name: function.outputs[name] for name in wanted}, call)


def _load_saved_model(path: Path, signature: str | None) -> Function:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    names = list(loaded.signatures)
    name = signature or (names[0] if len(names) == 1 else _DEFAULT_SIGNATURE)
    if name not in names:
        known = ", ".join(names) or "none: export it with signatures"
        raise UsageError(f"{path} has no signature {name!r}", hint=f"it has {known}")
    function = loaded.signatures[name]
    _, specs = function.structured_input_signature

    def call(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = function(**tensors)
        return found

    # The signature's function holds its variables only as long as somebody holds what was loaded.
    call.loaded = loaded  # type: ignore[attr-defined]
    return Function(dict(specs), dict(function.structured_outputs), call)


def _load_keras(path: Path) -> Function:
    import keras
    import tensorflow as tf

    model = keras.saving.load_model(str(path), compile=False)
    if not getattr(model, "inputs", None):
        raise UsageError(
            f"{path}: the model does not know its inputs", hint="export it as a SavedModel: model.export()"
        )
    if isinstance(model, keras.Sequential):
        structure, names = model.inputs[0], [model.layers[-1].name]
    else:
        structure, names = model.input, list(model.output_names)
    specs = {tensor.name: tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name) for tensor in model.inputs}
    given = {
        name: tf.TensorSpec(tensor.shape, tensor.dtype, name)
        for name, tensor in zip(names, keras.tree.flatten(model.outputs), strict=True)
    }

    @tf.function(input_signature=[specs])  # type: ignore[untyped-decorator]
    def call(tensors: Mapping[str, Any]) -> dict[str, Any]:
        found = model(keras.tree.map_structure(lambda tensor: tensors[tensor.name], structure), training=False)
        return dict(zip(names, keras.tree.flatten(found), strict=True))

    return Function(specs, given, call)


def _load_frozen_graph(path: Path, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Function:
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    graph = tf.compat.v1.GraphDef()
    try:
        graph.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise UsageError(f"{path} is not a frozen graph: {error}") from error
    inputs = list(inputs or [node.name for node in graph.node if node.op == "Placeholder"])
    outputs = list(outputs or _last_nodes(graph))
    wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph, name=""), [])
    tensors = {}
    for name in (*inputs, *outputs):
        try:
            tensors[name] = wrapped.graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
        except (KeyError, ValueError) as error:
            nodes = ", ".join(node.name for node in graph.node[:20])
            raise UsageError(f"{path} has no tensor {name!r}", hint=f"among its nodes are {nodes}") from error
    function = wrapped.prune([tensors[name] for name in inputs], [tensors[name] for name in outputs])

    def call(given: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(zip(outputs, function(*(given[name] for name in inputs)), strict=True))

    specs = {name: tf.TensorSpec(tensor.shape, tensor.dtype, name) for name, tensor in tensors.items()}
    return Function({name: specs[name] for name in inputs}, {name: specs[name] for name in outputs}, call)


def _last_nodes(graph: Any) -> list[str]:
    """Return the nodes whose results nobody uses: a graph's outputs, where nobody says otherwise."""
    used = {name.lstrip("^").split(":")[0] for node in graph.node for name in node.input}
    return [node.name for node in graph.node if node.name not in used and node.op not in ("NoOp", "Placeholder")]
