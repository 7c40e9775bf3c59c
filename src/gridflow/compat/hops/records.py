"""What was tried and what came of it, as files of the project.

Experiments/<application>_<number>/
  .experiment.json          what it is, its state, its metric, how long it took
  .summary.json             the parameters and outputs of all trials
  .outputs.json             what the function returned, where there was one call without arguments
  output.log, chief_0_output.log, …
  a=1&b=0.5/                a trial; below generation.<n>/ in an evolution
    .hparams.json, .outputs.json, .metric, output.log, and what the function wrote
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gridflow.compat.hops import hdfs, util

_FOLDER = "Experiments"
OUTPUTS = ".outputs.json"
_PARAMETERS = ".hparams.json"
_METRIC = ".metric"
_SUMMARY = ".summary.json"
_RECORD = ".experiment.json"
METRIC = "metric"
_LOG = "log"


@dataclass(frozen=True)
class Trial:
    """One call of the function: its arguments, and the folder that its files are in."""

    params: dict[str, Any]
    folder: str

    def begin(self) -> None:
        """Write down what is tried."""
        if self.params:
            hdfs.dump(to_json(self.params), f"{self.folder}/{_PARAMETERS}")

    def end(self, outputs: dict[str, Any], metric: Any = None) -> None:
        """Write down what came of it."""
        hdfs.dump(to_json(outputs), f"{self.folder}/{OUTPUTS}")
        if metric is not None:
            hdfs.dump(str(metric), f"{self.folder}/{_METRIC}")


@dataclass
class Experiment:
    """An experiment's folder, and the record in it."""

    id: str
    record: dict[str, Any]
    combinations: list[dict[str, Any]] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    @property
    def folder(self) -> str:
        """Where its files are."""
        return f"{hdfs.project_path()}{_FOLDER}/{self.id}"

    def trial(self, params: dict[str, Any], name: str) -> Trial:
        """Return the record of one call."""
        return Trial(params, f"{self.folder}/{name}" if name else self.folder)

    def add(self, params: Mapping[str, Any] | None, outputs: Mapping[str, Any]) -> None:
        """Put a trial into the summary."""
        self.combinations.append({"parameters": params, "outputs": outputs})

    def save(self, state: str, **more: Any) -> None:
        """Write the record down as it is now."""
        milliseconds = round((time.monotonic() - self._began) * 1000)
        self.record.update(more, state=state, duration=milliseconds)
        hdfs.dump(to_json(self.record), f"{self.folder}/{_RECORD}")
        hdfs.dump(to_json({"combinations": self.combinations}), f"{self.folder}/{_SUMMARY}")


@contextmanager
def recorded(experiment: Experiment) -> Iterator[Experiment]:
    """Write an experiment's record at its beginning, and if it fails."""
    if hdfs.exists(experiment.folder):
        hdfs.rmr(experiment.folder)
    experiment.save("RUNNING")
    try:
        yield experiment
    except Exception as error:
        experiment.save("FAILED", error=str(error))
        raise
    except BaseException:
        experiment.save("KILLED")
        raise


def new_record(app: str, number: int, name: str, function: str, kind: str, description: str | None) -> Experiment:
    """Return the record of an experiment that begins."""
    job = util.get_job_name()
    record = {
        "id": f"{app}_{number}",
        "name": job if job and name == "no-name" else name,
        "projectName": hdfs.project_name(),
        "description": description,
        "function": function,
        "experimentType": kind,
        "appId": app,
        "direction": None,
        "optimizationKey": None,
        "jobName": job,
        "kernelId": os.environ.get("HOPSWORKS_KERNEL_ID"),
        "metric": None,
    }
    return Experiment(record["id"] or "", record)


def outputs_of(value: Any, folder: str, log: str) -> dict[str, Any]:
    """Return what a function returned as a record: a dict stays one, anything else is the metric."""
    outputs = dict(value) if isinstance(value, dict) else {METRIC: value}
    return {**outputs, _LOG: in_project(f"{folder}/{log}")}


def metric_to_optimize(value: Any, key: str) -> Any:
    """Return the number in what a function returned that a search goes by."""
    if isinstance(value, dict):
        if not value:
            raise ValueError("Returned dict is empty, must contain atleast 1 metric to maximize or minimize.")
        if key not in value:
            raise ValueError(
                f"optimization_key not in returned dict: {key!r} is none of {', '.join(map(repr, value))}; when a dict "
                "is returned, optimization_key must name the metric to maximize or minimize"
            )
        value = value[key]
    try:
        float(value)
    except (TypeError, ValueError):
        raise ValueError(f"Metric to maximize or minimize is not a number: {value}") from None
    return value


def metric_of(outputs: Mapping[str, Any], key: str | None) -> str | None:
    """Return the metric of an experiment: what `key` names, or the only thing that was returned."""
    if key:
        if key not in outputs:
            raise AssertionError(f"Supplied metric_key {key} is not in returned dict {dict(outputs)}")
        return None if outputs[key] is None else str(outputs[key])
    if outputs.keys() == {METRIC, _LOG} and outputs[METRIC] is not None:
        return str(outputs[METRIC])
    return None


def keep_files(value: Any, folder: str) -> Any:
    """Copy the files whose names a function returned into its folder, and name them as they are in the project."""
    if not isinstance(value, dict):
        return value
    return {key: _keep(each, folder) if isinstance(each, str) else each for key, each in value.items()}


def _keep(value: str, folder: str) -> str:
    if not os.path.isfile(value):
        return value
    hdfs.copy_to_hdfs(value, folder, overwrite=True)
    return in_project(f"{folder}/{os.path.basename(value)}")


def in_project(path: str) -> str:
    """Return a path as it is within the project."""
    return path.removeprefix(hdfs.project_path())


def to_json(value: Any) -> str:
    """Return JSON, also of the numbers and arrays of NumPy and TensorFlow."""
    return json.dumps(value, default=_plain)


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    return json.loads(to_json(value))


def _plain(value: Any) -> Any:
    array = value.numpy() if hasattr(value, "numpy") else value
    if hasattr(array, "tolist"):
        return array.tolist()
    raise TypeError(f"Object of type {type(value)}: {value} is not JSON serializable")


def logs_of(tasks: Sequence[str]) -> dict[str, str]:
    """Return the name of each task's log: of a single one, and of several."""
    if len(tasks) == 1:
        return {tasks[0]: "output.log"}
    return {task: f"{task.replace('/', '_')}_output.log" for task in tasks}
