"""The ways to HTCondor's schedd: its Python bindings where they are installed, else its command-line tools.

Both do the same behind one interface, and whatever goes wrong is a PlatformError that says what was asked.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gridflow.errors import CommandError, PlatformError

#: JobStatus of HTCondor.
IDLE, RUNNING, REMOVED, COMPLETED, HELD = 1, 2, 3, 4, 5

_ATTRIBUTES = (
    "ProcId", "JobStatus", "HoldReason", "HoldReasonCode", "HoldReasonSubCode", "RemoveReason", "ExitCode",
    "ExitBySignal", "ExitSignal", "NumJobStarts", "VacateReason", "QDate", "Iwd", "SUBMIT_Iwd", "UserLog", "Out", "Err",
)  # fmt: skip
_COMMAND_SECONDS = 120.0
#: condor_tail answers at once, or waits until the program is started.
_PEEK_SECONDS = 10.0
#: More of a running proc's output than that is to be had after the end only.
MOST_PEEKED_BYTES = 1 << 24
#: The tools that ask no schedd.
_LOCAL = ("condor_version", "condor_submit_dag")
_UNREACHABLE = "is HTCondor running, does $CONDOR_CONFIG name its configuration, and is your token valid?"

#: A spooled proc that has ended stays, with its files, until they have been fetched.
FETCHED = "GridflowFetched"
_STAY = f"JobStatus == {COMPLETED} && {FETCHED} =!= true"

Ads = dict[int, Mapping[str, Any]]


class Access(ABC):
    """What Gridflow asks of a schedd."""

    #: For people: which way it is.
    name: str

    def __init__(self, schedd: str) -> None:
        self._schedd_name = schedd

    @abstractmethod
    def submit(self, description: Path, *, spool: bool) -> int:
        """Submit a description from the folder that it lies in, and return the cluster's number."""

    @abstractmethod
    def submit_workflow(self, dag: Path) -> int:
        """Submit a DAGMan file from the folder that it lies in, and return DAGMan's own cluster."""

    @abstractmethod
    def query(self, cluster: int) -> Ads:
        """Return what the schedd knows of the procs that it still has."""

    @abstractmethod
    def history(self, cluster: int) -> Ads:
        """Return what the schedd remembers of the procs that it no longer has."""

    @abstractmethod
    def remove(self, cluster: int, reason: str) -> None:
        """Take a cluster's procs out of the queue; those that are gone are no error."""

    @abstractmethod
    def retrieve(self, cluster: int, proc: int) -> None:
        """Copy a spooled proc's files back to where it was submitted from."""

    @abstractmethod
    def edit(self, cluster: int, attribute: str, expression: str) -> None:
        """Change an attribute of all procs of a cluster."""

    @abstractmethod
    def analyse(self, cluster: int) -> str:
        """Say why a cluster's procs find no machine; empty where nothing speaks against it."""

    @abstractmethod
    def version(self) -> str:
        """Return HTCondor's version, as seen from here; raises where the schedd cannot be reached."""

    def peek(self, cluster: int, proc: int) -> bytes | None:
        """Return the last MOST_PEEKED_BYTES that a running proc has written so far; None where it is not so far yet.

        It is condor_tail's also beside the bindings, which have nothing like it.
        """
        words = ("-maxbytes", str(MOST_PEEKED_BYTES), f"{cluster}.{proc}")
        try:
            return _run(self._schedd_name, "condor_tail", *words, timeout_seconds=_PEEK_SECONDS)
        except subprocess.TimeoutExpired:
            return None


def open_access(kind: str, schedd: str) -> Access:
    """Open the way that is asked for, or the first that there is."""
    if kind == "bindings" or (kind == "auto" and has_bindings()):
        return Bindings(schedd)
    if kind == "tools" or shutil.which("condor_submit"):
        return Tools(schedd)
    raise PlatformError(
        "neither HTCondor's Python bindings nor its command-line tools are here",
        hint="pip install 'gridflow[htcondor]', or work on a machine with condor_submit",
    )


def has_bindings() -> bool:
    """Say whether HTCondor's Python bindings are installed."""
    try:
        return find_spec("htcondor2") is not None
    except ValueError:  # somebody has hidden them
        return False


class Tools(Access):
    """condor_submit, condor_q and their like."""

    name = "command-line tools"

    def submit(self, description: Path, *, spool: bool) -> int:
        """Run condor_submit."""
        remote = ["-spool", "-append", f"leave_in_queue = {_STAY}"] if spool else []
        # 12.0 - 12.1
        try:
            said = self._run("condor_submit", "-terse", *remote, description.name, cwd=description.parent)
        except CommandError as error:
            # What could not be spooled is in the queue all the same.
            _, _, printed, _ = error.args
            for cluster_ in re.findall(r"^(\d+)\.0 - ", printed, re.MULTILINE):
                self.remove(int(cluster_), "its files could not be sent")
            raise
        cluster = re.search(r"^(\d+)\.\d+", said, re.MULTILINE)
        if cluster is None:
            raise PlatformError(f"condor_submit did not say which job it submitted: {said.strip()!r}")
        return int(cluster[1])

    def submit_workflow(self, dag: Path) -> int:
        """Run condor_submit_dag, and then condor_submit on what it has made."""
        self._run("condor_submit_dag", "-no_submit", "-force", dag.name, cwd=dag.parent)
        return self.submit(dag.with_name(f"{dag.name}.condor.sub"), spool=False)

    def query(self, cluster: int) -> Ads:
        """Run condor_q."""
        return _by_proc(self._run("condor_q", str(cluster), "-json", "-attributes", ",".join(_ATTRIBUTES)))

    def history(self, cluster: int) -> Ads:
        """Run condor_history."""
        return _by_proc(self._run("condor_history", str(cluster), "-json", "-attributes", ",".join(_ATTRIBUTES)))

    def remove(self, cluster: int, reason: str) -> None:
        """Run condor_rm."""
        try:
            self._run("condor_rm", "-reason", reason, str(cluster))
        except CommandError as error:
            # Couldn't find/remove all jobs in cluster 12
            if "find/remove" not in str(error) and "not found" not in str(error):
                raise

    def retrieve(self, cluster: int, proc: int) -> None:
        """Run condor_transfer_data."""
        self._run("condor_transfer_data", f"{cluster}.{proc}")

    def edit(self, cluster: int, attribute: str, expression: str) -> None:
        """Run condor_qedit."""
        self._run("condor_qedit", str(cluster), attribute, expression)

    def analyse(self, cluster: int) -> str:
        """Run condor_q -better-analyze."""
        return unmatched(self._run("condor_q", "-better-analyze", str(cluster)))

    def version(self) -> str:
        """Run condor_version, and ask the schedd for a job that nobody has."""
        self.query(0)
        # $CondorVersion: 23.9.6 2026-07-12 …
        version = re.search(r"CondorVersion: (\S+)", self._run("condor_version"))
        return version[1] if version else "unknown"

    def _run(self, command: str, *words: str, cwd: Path | None = None) -> str:
        try:
            return _run(self._schedd_name, command, *words, cwd=cwd).decode(errors="replace")
        except subprocess.TimeoutExpired as error:
            raise PlatformError(
                f"`{' '.join(error.cmd)}` took more than {error.timeout:g} s", hint=_UNREACHABLE
            ) from None


def _run(
    schedd: str, command: str, *words: str, cwd: Path | None = None, timeout_seconds: float = _COMMAND_SECONDS
) -> bytes:
    """Run one of HTCondor's tools and return what it printed."""
    named = ["-name", schedd] if schedd and command not in _LOCAL else []
    argv = [command, *named, *words]
    try:
        done = subprocess.run(
            argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_seconds, check=False
        )
    except FileNotFoundError:
        raise PlatformError(f"{command} is not here", hint="work on a machine with HTCondor's tools") from None
    if done.returncode != 0:
        said, errors = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        hint = _UNREACHABLE if "connect" in errors.lower() else ""
        raise CommandError(argv, done.returncode, said, errors, hint=hint)
    return done.stdout


class Bindings(Access):
    """HTCondor's Python bindings."""

    name = "Python bindings"

    def submit(self, description: Path, *, spool: bool) -> int:
        """Submit, and send the files where they are spooled."""
        with _mapped("submit"):
            import htcondor2

            schedd, request = self._schedd(), htcondor2.Submit(description.read_text())
            if spool:
                request["leave_in_queue"] = _STAY
            with chdir(description.parent):
                result = schedd.submit(request, spool=spool)
            if spool:
                schedd.spool(result)
            return int(result.cluster())

    def submit_workflow(self, dag: Path) -> int:
        """Submit DAGMan itself."""
        with _mapped("submit"):
            import htcondor2

            # DAGMan works in the folder that it was submitted from.
            with chdir(dag.parent):
                return int(self._schedd().submit(htcondor2.Submit.from_dag(dag.name, {"force": True})).cluster())

    def query(self, cluster: int) -> Ads:
        """Ask the schedd."""
        with _mapped("query"):
            return _plain_ads(self._schedd().query(f"ClusterId == {cluster}", list(_ATTRIBUTES)))

    def history(self, cluster: int) -> Ads:
        """Ask the schedd for what it remembers."""
        with _mapped("history"):
            return _plain_ads(self._schedd().history(f"ClusterId == {cluster}", list(_ATTRIBUTES), match=-1))

    def remove(self, cluster: int, reason: str) -> None:
        """Remove the cluster's procs."""
        with _mapped("remove"):
            import htcondor2

            self._schedd().act(htcondor2.JobAction.Remove, f"ClusterId == {cluster}", reason=reason)

    def retrieve(self, cluster: int, proc: int) -> None:
        """Copy a spooled proc's files."""
        with _mapped("retrieve"):
            self._schedd().retrieve(f"ClusterId == {cluster} && ProcId == {proc}")

    def edit(self, cluster: int, attribute: str, expression: str) -> None:
        """Change an attribute."""
        with _mapped("edit"):
            self._schedd().edit(f"ClusterId == {cluster}", attribute, expression)

    def analyse(self, cluster: int) -> str:
        """Try each part of the job's requirements on every machine, as condor_q -better-analyze does."""
        from gridflow.platforms.htcondor_analysis import analyse

        with _mapped("analyse"):
            import htcondor2

            ads = self._schedd().query(f"ClusterId == {cluster} && JobStatus == {IDLE}")
            if not ads:
                return ""
            machines = htcondor2.Collector().query(htcondor2.AdType.Startd, 'SlotType =!= "Dynamic"')
            return analyse(ads[0], machines)

    def version(self) -> str:
        """Return the bindings' version, once the schedd has answered."""
        with _mapped("reach"):
            import htcondor2

            self._schedd().query("false", ["ClusterId"], limit=1)
            found = re.search(r"CondorVersion: (\S+)", htcondor2.version())
            return found[1] if found else "unknown"

    def _schedd(self) -> Any:
        import htcondor2

        if not self._schedd_name:
            return htcondor2.Schedd()
        return htcondor2.Schedd(htcondor2.Collector().locate(htcondor2.DaemonType.Schedd, self._schedd_name))


@contextmanager
def _mapped(what: str) -> Iterator[None]:
    """Turn what the bindings raise into our own errors."""
    import htcondor2

    try:
        yield
    except (htcondor2.HTCondorException, ValueError, OSError, RuntimeError) as error:
        hint = _UNREACHABLE if re.search(r"locate|communicat|connect", str(error)) else ""
        raise PlatformError(f"HTCondor's schedd: {what} failed: {error}", hint=hint) from error


def _by_proc(text: str) -> Ads:
    return {int(ad["ProcId"]): ad for ad in json.loads(text or "[]")}


def _plain_ads(ads: Sequence[Any]) -> Ads:
    """Turn ClassAds into plain values; what is undefined is left out."""
    return {int(ad["ProcId"]): {name: ad[name] for name in _ATTRIBUTES if _is_plain(ad.get(name))} for ad in ads}


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, str, float)) and not type(value).__module__.startswith("classad")


def unmatched(analysis: str) -> str:
    """Return the conditions that no machine meets, from what condor_q -better-analyze prints.

    [0]           0  OpSysAndVer == "CentOS7"
    """
    conditions = [match[1].strip() for match in re.finditer(r"^\[\d+\]\s+0\s+(.+)$", analysis, re.MULTILINE)]
    return "; ".join(dict.fromkeys(conditions))
