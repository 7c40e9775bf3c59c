"""Makes Keras 3's `fit` train asynchronously on parameter servers, with no change to the program.

Under ParameterServerStrategy Keras 3 iterates the data on the chief and fails with `ValueError: To use this dataset,
you need to pass this dataset to ClusterCoordinator.create_per_worker_dataset.`, for it never hands work to the workers.

    fit                each step goes to whichever worker is free, which takes a batch from its own copy of the data;
                       the end of an epoch waits for all steps
    evaluate, predict  stay on the chief, which sees every row exactly once

The data is repeated for the workers, since none of them can tell when an epoch ends: an epoch is `steps_per_epoch`
steps, or as many as the data has batches. Workers add to metrics and counters at the same time, so these additions
have to be atomic, which in Keras they are not (it reads, adds and writes).
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gridflow.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCE = "_gridflow_source"
# What workers can read: data that is part of the graph, and not a Python object of the chief.
_PORTABLE = ("ArrayDataAdapter", "TFDatasetAdapter")


def correct(trainer_module: Any, core_module: Any) -> list[str]:
    """Correct Keras if its TensorFlow trainer leaves the workers of parameter servers without work."""
    trainer, epochs, tf = trainer_module.TensorFlowTrainer, trainer_module.TFEpochIterator, trainer_module.tf
    names = {name for function in (trainer.fit, trainer.make_train_function) for name in function.__code__.co_names}
    if "schedule" in names or hasattr(trainer.make_train_function, "__wrapped__"):
        return []
    trainer.make_train_function = _schedule_steps(tf, trainer.make_train_function)
    epochs.__init__ = _keep_data_whole(tf, epochs.__init__)
    epochs._get_iterator = _remember_source(tf, epochs._get_iterator)
    epochs.tf_sync = _wait_for_steps(tf, epochs.tf_sync)
    core_module.Variable.assign_add = _add_atomically(core_module)
    return ["make_train_function", "TFEpochIterator", "Variable.assign_add"]


def _has_parameter_servers(tf: Any, strategy: Any) -> bool:
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def _coordinator(tf: Any, strategy: Any) -> Any:
    # TensorFlow keeps one coordinator per strategy, and returns the same again.
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def _schedule_steps(tf: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_train_function(self: Any, force: bool = False) -> Any:
        if self.train_function is None or force:
            original(self, force)
            if _has_parameter_servers(tf, self.distribute_strategy):
                self.train_function = _Scheduler(tf, self, self.train_function)
        return self.train_function

    return make_train_function


class _Scheduler:
    """A model's train function that hands each step to whichever worker is free."""

    def __init__(self, tf: Any, model: Any, train_here: Callable[..., Any]) -> None:
        strategy = model.distribute_strategy
        self.model = model
        self.train_here = train_here
        self.coordinator = _coordinator(tf, strategy)
        self.source: Any = None
        self.batches: Any = None

        def steps(batches: Any) -> None:
            for _ in range(model.steps_per_execution):
                strategy.run(model.train_step, args=(next(batches),))

        self.steps = tf.function(steps)

    def __call__(self, iterator: Any) -> Any:
        """Schedule a step and return the metrics as they are now."""
        if not hasattr(iterator, _SOURCE):
            return self.train_here(iterator)  # `train_on_batch` brings its own batch
        source = getattr(iterator, _SOURCE)
        if source is None:
            raise UsageError(
                "`fit` on parameter servers got a generator, or data of unknown length without `steps_per_epoch`",
                hint="give it arrays or a tf.data.Dataset, and `steps_per_epoch`",
            )
        if source is not self.source:
            self.source = source
            self.batches = iter(self.coordinator.create_per_worker_dataset(source.repeat()))
        self.coordinator.schedule(self.steps, args=(self.batches,))
        return self.model.get_metrics_result()


def _keep_data_whole(tf: Any, original: Callable[..., None]) -> Callable[..., None]:
    whole = SimpleNamespace(experimental_distribute_dataset=lambda data: data)

    @functools.wraps(original)
    def init(self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
        on_chief = _has_parameter_servers(tf, distribute_strategy)
        original(self, whole if on_chief else distribute_strategy, *args, **kwargs)
        self._distribute_strategy = distribute_strategy

    return init


def _remember_source(tf: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _get_iterator(self: Any) -> Any:
        data = original(self)
        if not _has_parameter_servers(tf, self._distribute_strategy) or not isinstance(data, tf.data.Dataset):
            return data
        is_portable = type(self.data_adapter).__name__ in _PORTABLE
        iterator = iter(data)
        setattr(iterator, _SOURCE, data if is_portable and self.num_batches else None)
        return iterator

    return _get_iterator


def _wait_for_steps(tf: Any, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def tf_sync(self: Any) -> None:
        if _has_parameter_servers(tf, self._distribute_strategy):
            _coordinator(tf, self._distribute_strategy).join()
        original(self)

    return tf_sync


def _add_atomically(core_module: Any) -> Callable[..., Any]:
    tf, original = core_module.tf, core_module.Variable.assign_add

    @functools.wraps(original)
    def assign_add(self: Any, value: Any) -> Any:
        variable = self._value
        is_shared = isinstance(variable, tf.Variable) and _has_parameter_servers(tf, tf.distribute.get_strategy())
        if not is_shared or core_module.in_stateless_scope():
            return original(self, value)
        return variable.assign_add(tf.cast(value, variable.dtype))

    return assign_add
