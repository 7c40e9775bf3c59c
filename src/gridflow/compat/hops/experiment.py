"""Experiments: one call of a function, a search for its best arguments, or one training on many executors.

    from gridflow.compat.hops import experiment

    experiment.grid_search(train, {"learning_rate": [0.1, 0.3], "layers": [2, 9]})

Every experiment is recorded in a folder of the project (`records`), and TensorBoard shows it while it goes on.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from gridflow.compat.hops import hdfs, records, runs, search, tensorboard, util
from gridflow.compat.hops.records import Experiment
from gridflow.compat.hops.search import Params

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = "output.log"
_VERSIONED = "versioned_resources"
_running = threading.Lock()
#: The number of the next experiment of this program.
run_id = 1


class Direction:
    """Whether the largest or the smallest metric is the best."""

    MAX = "MAX"
    MIN = "MIN"


# One call, or one for each of some arguments


def launch(
    train_fn: Callable[..., Any],
    args_dict: Mapping[str, Sequence[Any]] | None = None,
    name: str = "no-name",
    local_logdir: bool = False,
    description: str | None = None,
    metric_key: str | None = None,
    *,
    versioned_resources: Sequence[str] | None = None,
    spark: SparkSession | None = None,
) -> tuple[str, dict[str, Any] | None]:
    """Call a function once, or once for each position in lists of arguments; return the folder and its outputs.

    Where there were several calls there are no outputs; each is recorded in a folder of its own.
    """
    _check_no_param_servers(spark)
    with _experiment("launch", "EXPERIMENT", name, description, local_logdir, versioned_resources, spark) as at_work:
        calls: list[Params] = search.calls(train_fn, args_dict) if args_dict else [{}]
        trials = [(params, search.describe(params)) for params in calls]
        ended = at_work.run(train_fn, trials)
        outputs = ended[0].outputs if len(ended) == 1 else None
        metric = records.metric_of(outputs, metric_key) if outputs else None
        at_work.experiment.save("FINISHED", metric=metric)
        return at_work.experiment.folder, outputs


# Searches


def grid_search(
    train_fn: Callable[..., Any],
    grid_dict: Mapping[str, Sequence[Any]],
    direction: str = Direction.MAX,
    name: str = "no-name",
    local_logdir: bool = False,
    description: str | None = None,
    optimization_key: str = "metric",
    *,
    versioned_resources: Sequence[str] | None = None,
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Try all combinations; return the folder, the arguments and the outputs of the best."""
    goal = _Goal(search.check_direction(direction), optimization_key or records.METRIC)
    trials = search.calls(train_fn, search.grid_params(grid_dict))
    return _search("grid_search", train_fn, trials, goal, name, local_logdir, description, versioned_resources)


def random_search(
    train_fn: Callable[..., Any],
    boundary_dict: Mapping[str, Sequence[Any]],
    direction: str = Direction.MAX,
    samples: int = 10,
    name: str = "no-name",
    local_logdir: bool = False,
    description: str | None = None,
    optimization_key: str = "metric",
    *,
    versioned_resources: Sequence[str] | None = None,
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Try arguments drawn from between their bounds; return the folder, the arguments and the outputs of the best."""
    goal = _Goal(search.check_direction(direction), optimization_key or records.METRIC)
    trials = search.random_calls(train_fn, boundary_dict, samples, random.Random())  # noqa: S311 - no secret
    return _search("random_search", train_fn, trials, goal, name, local_logdir, description, versioned_resources)


def differential_evolution(
    train_fn: Callable[..., Any],
    boundary_dict: Mapping[str, Sequence[Any]],
    direction: str = Direction.MAX,
    generations: int = 4,
    population: int = 6,
    mutation: float = 0.5,
    crossover: float = 0.7,
    name: str = "no-name",
    local_logdir: bool = False,
    description: str | None = None,
    optimization_key: str = "metric",
    *,
    cleanup_generations: bool = False,
    versioned_resources: Sequence[str] | None = None,
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Breed arguments between their bounds; return the folder, the arguments and the outputs of the best.

    With `cleanup_generations` only the folders of the best and of the last generation are kept.
    """
    goal = _Goal(search.check_direction(direction), optimization_key or records.METRIC)
    bounds = search.check_bounds({name: boundary_dict[name] for name in search.arguments(train_fn, boundary_dict)})
    chance = random.Random()  # noqa: S311 - no secret
    evolution = search.Evolution(bounds, goal.direction, generations, population, mutation, crossover, chance)
    _check_no_param_servers()
    kind = "PARALLEL_EXPERIMENTS"
    with _experiment("differential_evolution", kind, name, description, local_logdir, versioned_resources) as at_work:
        scored: dict[str, _Ended] = {}

        def measure(generation: int, members: list[Params]) -> list[float]:
            new = [params for params in search.unique(members) if search.describe(params) not in scored]
            trials = [(params, f"generation.{generation}/{search.describe(params)}") for params in new]
            scored.update({search.describe(each.params): each for each in at_work.run(train_fn, trials, goal)})
            return [scored[search.describe(params)].score for params in members]

        evolution.run(measure)
        found = at_work.finish_search(list(scored.values()), goal)
        if cleanup_generations:
            _clean_up(at_work.experiment.folder, {found[0], f"generation.{generations}"})
        return found


def _search(
    function: str,
    train_fn: Callable[..., Any],
    trials: Sequence[Params],
    goal: _Goal,
    name: str,
    local_logdir: bool,
    description: str | None,
    versioned_resources: Sequence[str] | None,
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    _check_no_param_servers()
    kind = "PARALLEL_EXPERIMENTS"
    with _experiment(function, kind, name, description, local_logdir, versioned_resources) as at_work:
        named = [(params, search.describe(params)) for params in trials]
        return at_work.finish_search(at_work.run(train_fn, named, goal), goal)


def _clean_up(folder: str, kept: set[str]) -> None:
    for path in hdfs.ls(folder):
        is_kept = any(each.startswith(path) or path.endswith(f"/{each}") for each in kept)
        if "/generation." in path and not is_kept:
            hdfs.rmr(path)


# Distributed training


def mirrored(
    train_fn: Callable[[], Any],
    name: str = "no-name",
    local_logdir: bool = False,
    description: str | None = None,
    evaluator: bool = False,
    metric_key: str | None = None,
    *,
    versioned_resources: Sequence[str] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Train on all executors at once, one of them the chief; return the folder and what the chief returned."""
    _check_no_param_servers()
    tasks = util.num_executors()
    _check_evaluator(evaluator, tasks)
    groups = {"chief": True, "workers": tasks - 1 - evaluator or None, "evaluator": evaluator}
    return _train("mirrored", train_fn, groups, name, local_logdir, description, metric_key, versioned_resources)


def collective_all_reduce(
    train_fn: Callable[[], Any],
    name: str = "no-name",
    local_logdir: bool = False,
    description: str | None = None,
    evaluator: bool = False,
    metric_key: str | None = None,
    *,
    versioned_resources: Sequence[str] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Do what `mirrored` does, by its older name."""
    return mirrored(
        train_fn, name, local_logdir, description, evaluator, metric_key, versioned_resources=versioned_resources
    )


def parameter_server(
    train_fn: Callable[[], Any],
    name: str = "no-name",
    local_logdir: bool = False,
    description: str | None = None,
    evaluator: bool = False,
    metric_key: str | None = None,
    *,
    versioned_resources: Sequence[str] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Train with parameter servers on some of the executors; return the folder and what the chief returned.

    The function is called in all tasks. Parameter servers have no GPU, and end with the training, as does a worker
    that only serves.
    """
    servers, executors = util.num_param_servers(), util.num_executors()
    if servers <= 0:
        raise AssertionError("number of parameter servers should be greater than 0")
    if servers >= executors:
        raise AssertionError(
            "num_ps cannot be greater than num_executors (i.e. num_executors == num_ps + num_workers): there are "
            f"{servers} and {executors}"
        )
    _check_evaluator(evaluator, executors - servers)
    trainers = executors - servers - evaluator
    # A single one is the chief, but TensorFlow has no parameter servers without a worker.
    training = {"chief": True, "workers": trainers - 1} if trainers > 1 else {"workers": 1}
    groups = {**training, "ps": servers, "evaluator": evaluator}
    return _train(
        "parameter_server", train_fn, groups, name, local_logdir, description, metric_key, versioned_resources
    )


def _train(
    function: str,
    train_fn: Callable[[], Any],
    groups: dict[str, Any],
    name: str,
    local_logdir: bool,
    description: str | None,
    metric_key: str | None,
    versioned_resources: Sequence[str] | None,
) -> tuple[str, dict[str, Any]]:
    kind = "DISTRIBUTED_TRAINING"
    with _experiment(function, kind, name, description, local_logdir, versioned_resources) as at_work:
        experiment = at_work.experiment
        value = runs.run_training(at_work.setting, train_fn, experiment.folder, **groups)
        outputs = records.outputs_of(value, experiment.folder, "chief_0_output.log" if "chief" in groups else _LOG)
        experiment.trial({}, "").end(outputs)
        experiment.add(None, outputs)
        experiment.save("FINISHED", metric=records.metric_of(outputs, metric_key))
        return experiment.folder, outputs


# What all have in common


class _Goal(NamedTuple):
    """What a search looks for."""

    direction: str
    key: str


class _Ended(NamedTuple):
    """A trial, and in a search how good it was."""

    folder: str
    params: Params
    outputs: dict[str, Any]
    score: float


class _AtWork(NamedTuple):
    """An experiment that goes on."""

    experiment: Experiment
    setting: runs.Setting

    def run(
        self, train_fn: Callable[..., Any], trials: Sequence[tuple[Params, str]], goal: _Goal | None = None
    ) -> list[_Ended]:
        """Run trials in folders of these names, and record them."""
        if not trials:
            return []
        named = [self.experiment.trial(params, name) for params, name in trials]
        ended = []
        for trial, value in zip(named, runs.run_trials(self.setting, train_fn, named), strict=True):
            metric = records.metric_to_optimize(value, goal.key) if goal else None
            outputs = records.outputs_of(value, trial.folder, _LOG)
            trial.end(outputs, metric)
            self.experiment.add(trial.params, outputs)
            ended.append(_Ended(trial.folder, trial.params, outputs, float(metric or 0)))
        return ended

    def finish_search(self, scored: Sequence[_Ended], goal: _Goal) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Record the best of the trials, and return it."""
        best = scored[search.best([each.score for each in scored], goal.direction)]
        self.experiment.save(
            "FINISHED",
            metric=str(best.score),
            direction=goal.direction,
            optimizationKey=goal.key,
            bestDir=records.in_project(best.folder),
        )
        return best.folder, records.plain(best.params), best.outputs


@contextmanager
def _experiment(
    function: str,
    kind: str,
    name: str,
    description: str | None,
    local_logdir: bool,
    versioned_resources: Sequence[str] | None,
    spark: SparkSession | None = None,
) -> Iterator[_AtWork]:
    """Have one experiment at a time, recorded and shown by TensorBoard."""
    global run_id
    if not _running.acquire(blocking=False):
        raise RuntimeError("An experiment is currently running.")
    try:
        session = spark or util._find_spark()
        experiment = records.new_record(
            str(session.sparkContext.applicationId), run_id, name, function, kind, description
        )
        with records.recorded(experiment), tensorboard.showing(experiment.folder):
            for resource in versioned_resources or ():
                hdfs.cp(resource, f"{experiment.folder}/{_VERSIONED}/{resource.rstrip('/').rpartition('/')[2]}")
            yield _AtWork(experiment, runs.Setting(session, experiment.id, hdfs.project_path(), name, local_logdir))
    finally:
        run_id += 1
        _running.release()


def _check_no_param_servers(spark: SparkSession | None = None) -> None:
    if util.num_param_servers(spark) != 0:
        raise AssertionError("number of parameter servers should be 0")


def _check_evaluator(evaluator: bool, workers: int) -> None:
    if evaluator and workers <= 2:
        raise AssertionError("number of workers must be atleast 3 if evaluator is set to True")
