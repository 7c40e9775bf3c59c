"""HTCondor pools and the Open Science Grid: every task is a proc of one cluster, in a slot somewhere.

    gridflow submit ─▶ job.sub, wrapper, gridflow.zip, work.tar ─▶ schedd ─▶ slot: wrapper ─▶ agent ─▶ program
                                                                        │
    gridflow status ◀── event logs, output (spooled: fetched first) ◀───┘

Nothing of Gridflow stays up on the submit machine: the state of a run is what its event logs say, the tasks look
after themselves, and whoever asks after the end writes down how it was.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gridflow import shipping
from gridflow.errors import DeadlineError, GridflowError, PlatformError
from gridflow.job import Job, file_stem
from gridflow.platforms import htcondor_submit as submission
from gridflow.platforms.base import RUN_DIR, File, Finding, Plan, Platform
from gridflow.platforms.companions import Companions
from gridflow.platforms.htcondor_access import COMPLETED, FETCHED, HELD, IDLE, Access, has_bindings, open_access
from gridflow.platforms.htcondor_events import Event, Fold, Record, parse
from gridflow.platforms.htcondor_live import has_begun_anew, look
from gridflow.platforms.htcondor_options import Options
from gridflow.platforms.htcondor_plan import plan
from gridflow.platforms.htcondor_variants import combinations, table
from gridflow.state import RunState, RunStatus, TaskState, replay
from gridflow.store import ARCHIVE, RunFolder
from gridflow.tables import Table

#: How often a schedd is asked at most.
_ASK_SECONDS = 2.0
#: How long a task may wait for a slot before it is asked why.
_PATIENCE_SECONDS = 20.0
#: On top of a job's stop timeout: how long HTCondor may take to remove it.
_REMOVE_SECONDS = 120.0
_POLL_SECONDS = 0.5


class HTCondor(Platform):
    """Tasks are jobs of an HTCondor pool."""

    name = "htcondor"
    description = "HTCondor pools and the Open Science Grid"
    poll_seconds = 0.5

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._access: Access | None = None
        self._companions = Companions()
        self._asked: dict[str, float] = {}
        #: The spooled runs whose files are all here.
        self._fetched: set[str] = set()
        self._analysed: dict[str, tuple[float, str]] = {}
        #: Why the output of a task cannot be seen; empty once that is said.
        self._blind: dict[str, str] = {}

    def read_options(self, table: Table) -> None:
        """Take the options out of their table."""
        self._options = Options.read(table)

    @property
    def access(self) -> Access:
        """The way to the schedd, opened when it is first needed."""
        if self._access is None:
            self._access = open_access(self._options.access, self._options.schedd)
        return self._access

    def plan(self, job: Job) -> Plan:
        """Return the submit description and what travels with the tasks."""
        return plan(job, self._options)

    def templates(self) -> tuple[File, ...]:
        """Return the templates that a user may tailor."""
        return (File(submission.TEMPLATE.name, submission.TEMPLATE.read_bytes()),)

    def prepare(self, plan: Plan, folder: RunFolder) -> None:
        """Write what travels, and the description with the run's own name and folder in it."""
        super().prepare(plan, folder)
        # The plan may have more tasks than the job that was given.
        vars(folder).pop("job", None)
        if folder.job.program.kind == "request":
            return
        description = folder.path / submission.DESCRIPTION
        here = submission.escape(str(folder.path))
        text = description.read_text().replace(RUN_DIR, here).replace(submission.RUN, folder.run)
        folder.write(description.name, text)
        if not self._options.plain:
            folder.write(ARCHIVE, shipping.pack(folder.job))
            (folder.path / submission.WRAPPER).chmod(0o700)
            (folder.path / "outputs").mkdir(exist_ok=True)

    def submit(self, plan: Plan, folder: RunFolder, *, attached: bool) -> None:
        """Write the plan's files and hand the description to the schedd."""
        self.prepare(plan, folder)
        description = folder.path / submission.DESCRIPTION
        is_request = folder.job.program.kind == "request"
        if is_request:
            description = Path(folder.job.folder, folder.job.program.target).absolute()
        try:
            if self._options.then:
                cluster = self.access.submit_workflow(folder.path / submission.WORKFLOW)
            else:
                cluster = self.access.submit(description, spool=self._options.spool)
            places = self._places_of(cluster) if is_request or self._options.plain else {}
        except GridflowError as error:
            folder.append_event("run", state=RunState.FAILED, reason=f"it could not be submitted: {error}")
            raise
        if is_request:
            _count_tasks(folder, len(places))
        folder.append_event("submitted", cluster=cluster, spool=self._options.spool, places=places)
        if attached:
            # It removes the run should this process be gone before it has ended.
            self._companions.start(folder, "gridflow.platforms.htcondor_watcher", attached=True)

    def status(self, folder: RunFolder) -> RunStatus:
        """Read the event logs; where they say that the run has ended, write that down."""
        submitted = _submitted(folder)
        if submitted is not None and not self._has_ended(folder) and self._is_time_to_ask(folder.run):
            self._ask(folder, submitted)
        if submitted is None or self._has_ended(folder):
            return self._final(folder)
        fold = self._fold(folder)
        if fold.is_complete and (not submitted["spool"] or folder.run in self._fetched):
            self._keep(folder, fold.events)
            self._tabulate(folder)
            return self._final(folder)
        events = fold.events[:-1] if fold.is_complete else fold.events
        return self._explain(folder, submitted, fold, self._replay(folder, events))

    def log_file(self, folder: RunFolder, task: str) -> Path:
        """Return the log, which grows as the task's agent sends it, or the file that a person has named.

        That one comes with the end; before it, what was seen of the output is in the log's place.
        """
        live, named = folder.log_file(task), self._places(folder, task)[1]
        return live if named != live and live.exists() and not self._has_ended(folder) else named

    def read_log(self, folder: RunFolder, task: str, position: int) -> tuple[bytes, int]:
        """Return a piece of a task's output; of one without an agent, HTCondor is asked while it runs."""
        submitted = _submitted(folder) or {}
        if task in submitted.get("places", {}) and self._is_time_to_ask(f"{folder.run} {task}"):
            position = self._look(folder, submitted["cluster"], task, position)
        return super().read_log(folder, task, position)

    def log_note(self, folder: RunFolder, task: str) -> str:
        """Say why a task's output cannot be seen while it runs."""
        key = f"{folder.run} {task}"
        why = self._blind.get(key)
        if not why:
            return ""
        self._blind[key] = ""
        return f"[gridflow] the output cannot be seen while {task} runs, only after its end: {why}\n"

    def logs(self, folder: RunFolder, task: str, *, follow: bool) -> Iterator[str]:
        """Yield a task's output, and at last what HTCondor and the wrapper had to say."""
        if not follow:
            # It fetches what is spooled.
            self.status(folder)
        yield from super().logs(folder, task, follow=follow)
        yield "".join(path.read_text(errors="replace") for path in self._own_words(folder, task))

    def cancel(self, folder: RunFolder, reason: str = "it was cancelled") -> None:
        """Remove the run from the queue, and wait until the schedd has let go of it."""
        status = self.status(folder)
        submitted = _submitted(folder)
        if status.state.is_ended:
            return
        if submitted is not None:
            cluster = submitted["cluster"]
            deadline = time.monotonic() + folder.job.timeouts.stop_seconds + _REMOVE_SECONDS
            self._ask(folder, submitted)
            # Somebody else may see that it is gone before this process does.
            folder.request_cancel(reason)
            self.access.remove(cluster, reason)
            while self.access.query(cluster):
                if time.monotonic() > deadline:
                    raise DeadlineError(
                        f"HTCondor has not removed job {cluster} within {_REMOVE_SECONDS:g} s",
                        hint=f"see `condor_q {cluster}`; `condor_rm -forcex {cluster}` forgets it",
                    )
                time.sleep(_POLL_SECONDS)
        self._keep(folder, self._fold(folder).events)
        self._keep(folder, [{"event": "run", "state": RunState.CANCELLED, "reason": reason}])
        self._companions.reap(folder, timeout_seconds=_REMOVE_SECONDS)

    def check(self) -> list[Finding]:
        """Look for a way to a schedd, and whether one answers."""
        has_jinja = _is_installed("jinja2")
        findings = [
            Finding("jinja2", has_jinja, "installed" if has_jinja else "pip install 'gridflow[htcondor]'"),
            Finding("htcondor", has_bindings(), "its Python bindings; else its tools are used", is_required=False),
        ]
        try:
            way = self.access
            findings.append(Finding("schedd", True, f"answers the {way.name}, version {way.version()}"))
        except GridflowError as error:
            findings.append(Finding("schedd", False, str(error)))
        return findings

    # What the schedd is asked

    def _is_time_to_ask(self, what: str) -> bool:
        now = time.monotonic()
        if now - self._asked.get(what, -math.inf) < _ASK_SECONDS:
            return False
        self._asked[what] = now
        return True

    def _look(self, folder: RunFolder, cluster: int, task: str, position: int) -> int:
        """See what a task has written so far, and return where to read on."""
        if self._has_ended(folder):
            return position
        if why := look(self.access, folder, cluster, task):
            self._blind.setdefault(f"{folder.run} {task}", why)
        return 0 if has_begun_anew(folder, task, position) else position

    def _ask(self, folder: RunFolder, submitted: Event) -> None:
        """Fetch what has changed, and act on what the logs alone cannot say."""
        cluster, fold = submitted["cluster"], self._fold(folder)
        if not submitted["spool"] and (fold.is_complete or not (fold.verdict or fold.hopeless)):
            return
        ads = self.access.query(cluster)
        if submitted["spool"]:
            self._fetch(folder, cluster, {proc: ad["JobStatus"] for proc, ad in ads.items()})
            fold = self._fold(folder)
        if fold.is_complete:
            return
        if fold.hopeless is not None and not fold.verdict:
            self._give_up(folder, cluster, fold, *fold.hopeless)
        elif fold.verdict is not None and any(ad["JobStatus"] in (IDLE, HELD) for ad in ads.values()):
            # The run has ended while these waited for a place in it.
            self.access.remove(cluster, "the run has ended")
        elif not ads:
            self._vanished(folder, cluster, fold)

    def _fetch(self, folder: RunFolder, cluster: int, states: dict[int, int]) -> None:
        """Copy the files of spooled procs: logs while they run, everything once all have ended."""
        has_ended = all(state == COMPLETED for state in states.values())
        for proc in states:
            try:
                self.access.retrieve(cluster, proc)
            except PlatformError as error:
                # The log comes first; of what a running task has not made yet there is none.
                if has_ended:
                    folder.append_event("note", text=f"not all files could be fetched: {error}")
        if has_ended and states:
            with suppress(PlatformError):  # somebody else may have been faster
                self.access.edit(cluster, FETCHED, "true")
        if has_ended:
            self._fetched.add(folder.run)

    def _give_up(self, folder: RunFolder, cluster: int, fold: Fold, task: str, why: str) -> None:
        """Remove a job that HTCondor would start again for ever."""
        reason = f"{task} cannot be started, though HTCondor has tried again and again: {why}"
        self.access.remove(cluster, "it cannot be started")
        self._keep(folder, fold.events)
        folder.append_event("task", task=task, state=TaskState.FAILED, reason=why)
        folder.append_event("run", state=RunState.FAILED, reason=reason, task=task)

    def _vanished(self, folder: RunFolder, cluster: int, fold: Fold) -> None:
        """Take it that a job has left the queue without a word in its log, as a spooled one does when it is removed."""
        past = self.access.history(cluster)
        reasons = [str(ad["RemoveReason"]) for ad in past.values() if ad.get("RemoveReason")]
        self._keep(folder, fold.events)
        why = f": {reasons[0]}" if reasons else ""
        state = fold.verdict["state"] if fold.verdict else RunState.CANCELLED
        reason = fold.verdict.get("reason", "") if fold.verdict else f"it was removed from HTCondor's queue{why}"
        self._keep(
            folder, [{"event": "run", "state": state, "reason": reason, "task": (fold.verdict or {}).get("task")}]
        )

    def _explain(self, folder: RunFolder, submitted: Event, fold: Fold, status: RunStatus) -> RunStatus:
        """Say why tasks wait that have waited for long."""
        waited = time.time() - submitted["time"]
        if not fold.waiting or waited < _PATIENCE_SECONDS:
            return status
        asked, why = self._analysed.get(folder.run, (0.0, ""))
        if time.monotonic() - asked > _PATIENCE_SECONDS:
            try:
                why = self.access.analyse(submitted["cluster"])
            except PlatformError as error:
                why = f"(could not be analysed: {error})"
            self._analysed[folder.run] = (time.monotonic(), why)
        if not why:
            return status
        reason = f"no machine matches: {why}"
        events = [
            {"time": time.time(), "event": "task", "task": task, "state": TaskState.PENDING, "reason": reason}
            for task in fold.waiting
        ]
        return self._replay(folder, [*fold.events, *events])

    # What is read and kept

    def _fold(self, folder: RunFolder) -> Fold:
        submitted = _submitted(folder) or {}
        cluster = None if self._options.then else submitted.get("cluster")
        logs = {}
        # In the parallel universe all tasks are one proc.
        tasks = folder.job.tasks[:1] if self._options.parallel else folder.job.tasks
        for proc, task in enumerate(tasks):
            log = self._places(folder, task)[0]
            text = log.read_text(errors="replace") if log.exists() else ""
            # A log that a person has named may be that of other jobs, too.
            logs[task] = [
                record for record in parse(text) if cluster is None or (record.cluster, record.proc) == (cluster, proc)
            ]
        fold = Fold(folder.job.tasks, self._conductor(folder), is_parallel=self._options.parallel)
        return fold.take(logs)

    def _conductor(self, folder: RunFolder) -> list[Record] | None:
        """Return DAGMan's own log, where that starts the tasks."""
        if not self._options.then:
            return None
        path = folder.path / f"{submission.WORKFLOW}.dagman.log"
        return list(parse(path.read_text(errors="replace"))) if path.exists() else []

    def _tabulate(self, folder: RunFolder) -> None:
        """Gather the results of a sweep in one table."""
        if self._options.sweep:
            results = {}
            for task in folder.job.tasks:
                path = folder.metrics_file(task)
                if path.exists():
                    results[task] = json.loads(path.read_text())
            status = self._replay(folder, [])
            folder.write("sweep.csv", table(status, combinations(self._options.sweep), results))

    def _places(self, folder: RunFolder, task: str) -> tuple[Path, Path, Path]:
        """Return where a task's event log, its output and HTCondor's own words on it are."""
        given = (_submitted(folder) or {}).get("places", {}).get(task)
        if given:
            log, output, errors = (Path(path) for path in given)
            return log, output, errors
        stem = file_stem(task)
        return folder.path / submission.event_log(task), folder.log_file(task), folder.path / f"htcondor.{stem}.err"

    def _own_words(self, folder: RunFolder, task: str) -> list[Path]:
        """Return the files with the container's or the wrapper's trouble, where there was any."""
        errors = self._places(folder, task)[2]
        return [errors] if errors.exists() else []

    def _places_of(self, cluster: int) -> dict[str, list[str]]:
        """Ask HTCondor where the files of procs are that a person has described."""
        ads = self.access.query(cluster) or self.access.history(cluster)
        places = {}
        for proc, ad in sorted(ads.items()):
            folder = str(ad.get("SUBMIT_Iwd") or ad["Iwd"])
            names = (ad["UserLog"], ad.get("Out", "/dev/null"), ad.get("Err", "/dev/null"))
            places[f"worker/{proc}"] = [os.path.join(folder, str(name)) for name in names]
        return places

    def _has_ended(self, folder: RunFolder) -> bool:
        return self._replay(folder, []).state.is_ended

    def _final(self, folder: RunFolder) -> RunStatus:
        """Return what is written down; if that is the end, nobody has to watch any more."""
        status = self._replay(folder, [])
        if status.state.is_ended:
            self._companions.reap(folder, timeout_seconds=_REMOVE_SECONDS)
        return status

    def _replay(self, folder: RunFolder, events: list[Event]) -> RunStatus:
        return replay(folder.run, self.name, folder.job.tasks, [*folder.events(), *events])

    def _keep(self, folder: RunFolder, events: list[Event]) -> None:
        """Write down what was seen; HTCondor says of a run that it was removed, the run's folder why."""
        why = folder.cancel_reason
        for event in events:
            is_removal = event["event"] == "run" and event["state"] == RunState.CANCELLED
            folder.append_event(**{**event, "reason": why} if why and is_removal else event)


def _submitted(folder: RunFolder) -> Event | None:
    """Return what was noted when the schedd had taken the run; None where it has not yet."""
    return next((event for event in folder.events() if event.get("event") == "submitted"), None)


def _count_tasks(folder: RunFolder, count: int) -> None:
    """Have as many tasks in the run as a person's description made procs."""
    table = {**folder.job.to_table(), "worker": {"count": count}}
    folder.write(folder.job_file.name, json.dumps(table, indent=2))
    # It was read before.
    vars(folder).pop("job", None)


def _is_installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None
