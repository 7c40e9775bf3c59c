"""What tasks ask of Spark, and what becomes of slots that come late."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark import SparkConf

from gridflow.job import Group, Job, Program, Resources
from gridflow.platforms.spark_crew import SparkCrew, _Slot, resource_profile
from gridflow.rendezvous.links import Link
from gridflow.store import create_run


def asked(resources: Resources, settings: dict[str, str], name: str = "gpu") -> dict[str, float] | None:
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    profile: Any = resource_profile(resources, conf, name)
    return None if profile is None else {key: each.amount for key, each in profile.taskResources.items()}


GPU_FOR_ALL = {"spark.task.resource.gpu.amount": "0.5"}


@pytest.mark.parametrize(
    ("resources", "settings", "expected"),
    [
        (Resources(), {}, None),
        (Resources(), {"spark.task.cpus": "2"}, None),
        (Resources(cpus=2), {}, {"cpus": 2}),
        (Resources(gpus=1), {}, {"cpus": 1, "gpu": 1}),
        (Resources(gpus=1), {"spark.task.cpus": "3"}, {"cpus": 3, "gpu": 1}),
        (Resources(gpus=2), GPU_FOR_ALL, {"cpus": 1, "gpu": 2}),
        (Resources(), GPU_FOR_ALL, {"cpus": 1}),
    ],
)
def test_task_asks_for_what_it_needs_and_for_no_gpu_that_it_does_not(
    resources: Resources, settings: dict[str, str], expected: dict[str, float] | None
) -> None:
    assert asked(resources, settings) == expected


def test_cluster_may_call_its_gpus_otherwise() -> None:
    assert asked(Resources(gpus=1), GPU_FOR_ALL, "accelerator") == {"cpus": 1, "accelerator": 1}
    assert asked(Resources(), GPU_FOR_ALL, "accelerator") is None


class Told:
    """Stands in for the link to a slot, and keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message["type"])


def test_slot_that_comes_while_the_others_are_released_goes_too(tmp_path: Path) -> None:
    job = Job("late", Program("script", "train.py"), (Group("worker", 2),))
    folder = create_run(tmp_path, job, "spark", {}, 0.0)

    def no_session() -> Any:
        raise AssertionError("no session is needed")

    async def release() -> tuple[Told, Told]:
        crew = SparkCrew(folder, no_session, is_held=False, is_own_session=False, gpu_resource="gpu")
        await crew._release_all()
        first, late = (_Slot(cast(Link, Told()), crew._attempt, 0, "here") for _ in range(2))
        crew._slot_came(first)
        releasing = asyncio.create_task(crew._release_all())
        await asyncio.sleep(0)
        crew._slot_came(late)
        assert not crew.has_all_slots.is_set()
        crew._slot_went(first, "it was released")
        await releasing
        return cast(Told, first.link), cast(Told, late.link)

    for told in asyncio.run(release()):
        assert told.messages == ["release"]
