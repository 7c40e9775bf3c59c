"""Makes Keras 3 train across workers: corrects its TensorFlow trainer where the running version is at fault.

    install() ─> finder in sys.meta_path ─> the program imports keras ─> corrections ─> one log line

Keras 3's `fit`, `evaluate` and `predict` fail under MultiWorkerMirroredStrategy (keras#20585). Three functions of
`keras/src/backend/tensorflow/trainer.py` are at fault:

`_maybe_symbolic_build`  sends the first batch through `strategy.reduce` only to learn its shapes. Data is not
                         something to average: take this worker's own part of the batch.
`reduce_per_replica`     averages the logs of a step with `axis=0`, but they are scalars: `axis=None`.
`_make_function`         with `steps_per_execution` above 1 runs the steps inside `tf.while_loop` and `tf.cond`, which
                         fails with more than one device: run them one after the other.

Each fault is looked for in the function itself, never concluded from a version number, so a Keras that mended it is
left as it is: `reduce_per_replica` is tried on a stand-in for a strategy; of the others, which cannot run without a
cluster, the code is asked whether it uses what it must not. `keras_clipping`, `keras_saving` and
`keras_parameter_server` correct other faults in the same way.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from contextlib import contextmanager
from types import CodeType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from gridflow.task import keras_clipping, keras_parameter_server, keras_saving
from gridflow.task.importing import around_import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SWITCH = "GRIDFLOW_KERAS_PATCH"
_OFF = ("0", "off", "false")
_TRAINER = "keras.src.backend.tensorflow.trainer"
_OPTIMIZER = "keras.src.backend.tensorflow.optimizer"
_CORE = "keras.src.backend.tensorflow.core"
# What the faulty functions use: `strategy.reduce(...)` on a batch of data, `tf.while_loop(...)` over steps.
_AVERAGE = "reduce"
_LOOP = "while_loop"

_log = logging.getLogger(__name__)


def install(environ: Mapping[str, str] = os.environ) -> None:
    """Arrange that Keras is corrected the moment the program imports it, if this is one of several workers."""
    place = _place(environ)
    if place is None or environ.get(SWITCH, "").lower() in _OFF:
        return
    if "keras" in sys.modules:
        _correct_imported(*place)
    else:
        around_import("keras", functools.partial(_correcting, *place))


def correct(trainer_module: Any) -> list[str]:
    """Correct the functions of Keras' TensorFlow trainer that show a fault, and return their names."""
    trainer = trainer_module.TensorFlowTrainer
    corrected = []
    if _mentions(getattr(trainer, "_maybe_symbolic_build", None), _AVERAGE):
        trainer._maybe_symbolic_build = _build_from_local_batch(trainer_module)
        corrected.append("_maybe_symbolic_build")
    if _reduces_scalars_along_an_axis(trainer_module):
        trainer_module.reduce_per_replica = _reduce_across_workers(trainer_module)
        corrected.append("reduce_per_replica")
    if _mentions(getattr(trainer, "_make_function", None), _LOOP):
        trainer._make_function = _make_function_of_single_steps(trainer_module)
        corrected.append("_make_function")
    return corrected


def _place(environ: Mapping[str, str]) -> tuple[str, bool] | None:
    """Return this task's name, `worker-1`, and whether there are parameter servers, if it is one of several workers."""
    # {"cluster": {"chief": ["h0:1"], "worker": ["h1:1"]}, "task": {"type": "worker", "index": 0}}
    try:
        config = json.loads(environ.get("TF_CONFIG", "{}"))
        cluster, task = config["cluster"], config["task"]
        workers = len(cluster.get("chief", ())) + len(cluster.get("worker", ()))
        return (f"{task['type']}-{task['index']}", "ps" in cluster) if workers > 1 else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # TensorFlow itself reports a TF_CONFIG that it cannot read


@contextmanager
def _correcting(task: str, has_parameter_servers: bool) -> Iterator[None]:
    yield
    _correct_imported(task, has_parameter_servers)


def _correct_imported(task: str, has_parameter_servers: bool) -> None:
    trainer_module: Any = sys.modules.get(_TRAINER)
    if trainer_module is None:
        return  # Keras runs on something else than TensorFlow
    corrected = [
        *correct(trainer_module),
        *keras_clipping.correct(sys.modules[_OPTIMIZER], _is_across_workers),
        *keras_saving.correct(sys.modules, task),
        *(keras_parameter_server.correct(trainer_module, sys.modules[_CORE]) if has_parameter_servers else ()),
    ]
    if corrected:
        # A warning reaches the task's log even where the program never configured logging.
        _log.warning(
            "gridflow corrected Keras %s for training across workers (keras#20585), which fails without: %s; "
            "set %s=0 to leave Keras as it is",
            getattr(sys.modules["keras"], "__version__", "3"),
            ", ".join(corrected),
            SWITCH,
        )


def _reduces_scalars_along_an_axis(trainer_module: Any) -> bool:
    """Try `reduce_per_replica` on a stand-in and see along which axis it reduces the mean of a scalar."""
    axes = []

    class Strategy(trainer_module.tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
        extended = SimpleNamespace(_in_multi_worker_mode=lambda: True)

        def __init__(self) -> None:
            """Do not start a collective: this strategy only listens."""

        def reduce(self, _operation: object, value: object, axis: object = None) -> object:
            axes.append(axis)
            return value

    try:
        # A Python number, since a tensor would start TensorFlow before the program could configure it.
        trainer_module.reduce_per_replica(1.0, Strategy(), "mean")
    except (AttributeError, TypeError, ValueError):
        return False  # not the function we know
    return any(axis is not None for axis in axes)


def _mentions(function: Any, name: str) -> bool:
    """Tell whether a function, or one defined inside it, uses a global or an attribute of this name."""
    return any(name in code.co_names for code in _codes(getattr(function, "__code__", None)))


def _codes(code: CodeType | None) -> Iterator[CodeType]:
    if code is not None:
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _codes(constant)


def _build_from_local_batch(trainer_module: Any) -> Callable[..., None]:
    original = trainer_module.TensorFlowTrainer._maybe_symbolic_build

    @functools.wraps(original)
    def _maybe_symbolic_build(self: Any, *args: Any, **kwargs: Any) -> None:
        strategy = self._distribute_strategy
        if strategy is not None:
            local = _Instead(strategy, **{_AVERAGE: functools.partial(_local_part, trainer_module, strategy)})
            with _peeking():
                original(_Instead(self, distribute_strategy=local), *args, **kwargs)

    return _maybe_symbolic_build


@contextmanager
def _peeking() -> Iterator[None]:
    """Let a feed give the batch that is only looked at once more; where nobody has opened one, nothing is loaded."""
    reading = sys.modules.get("gridflow.feed.reading")
    if reading is None:
        yield
    else:
        with reading.peeking():
            yield


class _Instead:
    """An object with some of its attributes replaced."""

    def __init__(self, original: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _local_part(trainer_module: Any, strategy: Any, _operation: str, batch: Any, **_axis: None) -> Any:
    return trainer_module.tree.map_structure(lambda value: strategy.experimental_local_results(value)[0], batch)


def _reduce_across_workers(trainer_module: Any) -> Callable[..., Any]:
    tf, original = trainer_module.tf, trainer_module.reduce_per_replica

    @functools.wraps(original)
    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if reduction not in ("auto", "mean", "sum") or not _is_across_workers(tf, strategy):
            return original(values, strategy, reduction)

        def reduce(value: Any) -> Any:
            if not isinstance(value, tf.distribute.DistributedValues):
                # TensorFlow reduces only what has a device, unlike a constant or what a metric returns unchanged.
                with tf.device(strategy.extended.worker_devices[0]):
                    value = tf.identity(value)
            return strategy.reduce("SUM" if reduction == "sum" else "MEAN", value, axis=None)

        return trainer_module.tree.map_structure(reduce, values)

    return reduce_per_replica


def _make_function_of_single_steps(trainer_module: Any) -> Callable[..., Callable[..., Any]]:
    original = trainer_module.TensorFlowTrainer._make_function
    ends = (StopIteration, trainer_module.tf.errors.OutOfRangeError)

    @functools.wraps(original)
    def _make_function(self: Any, step_function: Any) -> Callable[..., Any]:
        function: Callable[..., Any] = original(self, step_function)
        if not _is_across_workers(trainer_module.tf, self.distribute_strategy):
            return function

        def run_single_steps(iterator: Any) -> Any:
            steps, self.steps_per_execution = self.steps_per_execution, 1
            try:
                outputs = function(iterator)
                for _ in range(steps - 1):
                    try:
                        outputs = function(iterator)
                    except ends:
                        break  # the data ended within these steps; the next call says so
                return outputs
            finally:
                self.steps_per_execution = steps

        return run_single_steps

    return _make_function


def _is_across_workers(tf: Any, strategy: Any) -> bool:
    several_workers = tf.distribute.MultiWorkerMirroredStrategy
    return isinstance(strategy, several_workers) and bool(strategy.extended._in_multi_worker_mode())
