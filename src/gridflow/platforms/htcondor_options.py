"""What `[platform.htcondor]` may say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gridflow.errors import SettingsError
from gridflow.job import Job
from gridflow.platforms.htcondor_variants import Variant, combinations, stages
from gridflow.tables import Table

#: How an image is asked for: `universe = container`, or the older `+SingularityImage` of pools that want that.
IMAGE_FORMS = ("container", "singularity")
ACCESSES = ("auto", "bindings", "tools")


@dataclass(frozen=True)
class Options:
    """The platform's options, checked."""

    #: Whether files are copied to the schedd, which then need not see this machine's: for submission from elsewhere.
    spool: bool = False
    #: The schedd to submit to; empty means this machine's own, or the one that HTCondor's configuration names.
    schedd: str = ""
    access: str = "auto"
    #: Whether the program itself is HTCondor's executable, with nothing of Gridflow beside it.
    plain: bool = False
    image_form: str = "container"
    #: Whether the image travels with the job; None leaves that to HTCondor.
    transfer_image: bool | None = None
    requirements: str = ""
    disk_mb: int = 4096
    gpus_minimum_capability: float | None = None
    #: Files and URLs that HTCondor brings along besides the job's `files`, such as osdf:///….
    inputs: tuple[str, ...] = ()
    #: Files and folders that the program makes and that are brought back, into the run's `outputs`.
    outputs: tuple[str, ...] = ()
    #: The Python that runs tasks, where it is none of the usual.
    python: str = ""
    #: A template of the user's own, as `gridflow render --eject` copies it.
    template: str = ""
    #: Names and values, of which every combination is a task: `lr=0.1,0.01`.
    sweep: tuple[str, ...] = ()
    #: Whether all tasks start at once, as one job of the parallel universe; the pool needs a dedicated scheduler.
    parallel: bool = False
    #: The stages that follow the job's own program, each when the one before has succeeded.
    then: tuple[Variant, ...] = ()
    #: How often HTCondor tries the first stage again.
    retries: int = 0
    #: Lines that go into the submit description as they are.
    submit: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, valid in (("image_form", IMAGE_FORMS), ("access", ACCESSES)):
            if getattr(self, name) not in valid:
                raise SettingsError(
                    f"platform.htcondor.{name} = {getattr(self, name)!r} is not known",
                    hint=f"one of: {', '.join(valid)}",
                )

        if self.then and (self.sweep or self.plain or self.spool):
            raise SettingsError(
                "platform.htcondor.then is not possible with sweep, plain or spool",
                hint="a workflow is run by HTCondor's DAGMan, on the submit machine itself",
            )

        if self.parallel and (self.sweep or self.plain or self.then):
            raise SettingsError(
                "platform.htcondor.parallel is not possible with sweep, plain or then",
                hint="the parallel universe is for tasks that work together",
            )

    def variants(self, job: Job) -> tuple[Variant, ...]:
        """Return how the tasks differ, where they do not work together."""
        if self.then:
            first = Variant(name=re.sub(r"\W", "_", job.program.stem), retries=self.retries)
            return (first, *self.then)
        return combinations(self.sweep) if self.sweep else ()

    @classmethod
    def read(cls, table: Table) -> Options:
        """Take the options out of their table."""
        transfer = table.text("transfer_image")
        if transfer not in ("", "true", "false"):
            raise SettingsError(f"platform.htcondor.transfer_image = {transfer!r}", hint='give "true" or "false"')
        return cls(
            spool=table.flag("spool"),
            schedd=table.text("schedd"),
            access=table.text("access", "auto"),
            plain=table.flag("plain"),
            image_form=table.text("image_form", "container"),
            transfer_image=None if not transfer else transfer == "true",
            requirements=table.text("requirements"),
            disk_mb=table.memory_mb("disk") or cls.disk_mb,
            gpus_minimum_capability=table.number("gpus_minimum_capability", None),
            inputs=table.strings("inputs"),
            outputs=table.strings("outputs"),
            python=table.text("python"),
            template=table.text("template"),
            sweep=table.strings("sweep"),
            parallel=table.flag("parallel"),
            then=stages(table.tables("then")),
            retries=table.integer("retries", 0) or 0,
            submit=table.mapping("submit"),
        )
