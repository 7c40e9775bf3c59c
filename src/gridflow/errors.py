"""Everything Gridflow raises on purpose.

    GridflowError                   exit code
    ├── UsageError                      2   the request itself is wrong
    │   ├── JobError                        a job or one of its groups
    │   ├── SettingsError                   gridflow.toml, a flag or an environment variable
    │   └── SchemaError                     columns that a file format cannot hold, or that are not there
    ├── RecordError                     1   a file of records is damaged, or holds something else than was asked for
    ├── TaskFailedError                 1   a task of the run failed
    ├── TaskError                       1   inside a task: the agent or context cannot go on
    ├── PlatformError                   3   the platform refused or cannot be reached
    │   └── CommandError                    a command of the platform failed
    ├── RendezvousError                 3   tasks could not find each other
    │   └── AuthenticationError             the other side does not know the run's secret
    ├── DeadlineError                   4   a wait took too long
    └── RunCancelledError             130   the run was cancelled

A message says what happened and with which value; `hint` says what to do about it. The command line prints both
as one line and leaves with `exit_code`. Anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence


class GridflowError(Exception):
    """The base of all errors that Gridflow raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(GridflowError):
    """The request is wrong; nothing was started."""

    exit_code = 2


class JobError(UsageError):
    """A job, a group or a resource is not possible as described."""


class SettingsError(UsageError):
    """A settings file, flag or environment variable is not valid."""


class SchemaError(UsageError):
    """A column is of a type that the format cannot hold, or is not there."""


class RecordError(GridflowError):
    """A file of records is damaged, or a record in it is not what it was read as.

    `kind` is one word for what is wrong. `record` counts from 0; `offset` is where that record begins, in the
    uncompressed bytes. Each is None where it is not known.
    """

    exit_code = 1

    def __init__(
        self, message: str, *, path: str, record: int | None, offset: int | None, kind: str, hint: str = ""
    ) -> None:
        place = "" if offset is None else f" at byte {offset}"
        where = "" if record is None else f", record {record}{place}"
        super().__init__(f"{path}{where}: {message}", hint=hint)
        self.path, self.record, self.offset, self.kind = path, record, offset, kind
        self._parts = (message, path, record, offset, kind, hint)

    def __reduce__(self) -> tuple[object, ...]:
        return _record_error, self._parts


def _record_error(message: str, path: str, record: int | None, offset: int | None, kind: str, hint: str) -> RecordError:
    return RecordError(message, path=path, record=record, offset=offset, kind=kind, hint=hint)


class TaskFailedError(GridflowError):
    """A task failed and the run with it."""

    exit_code = 1


class TaskError(GridflowError):
    """Inside a task: what the agent or the context needs is not there."""

    exit_code = 1


class PlatformError(GridflowError):
    """The platform refused the job or cannot be reached."""

    exit_code = 3


class CommandError(PlatformError):
    """A command of the platform failed; the message shows all there is to know about it."""

    def __init__(self, argv: Sequence[str], exit_code: int, stdout: str, stderr: str, *, hint: str = "") -> None:
        output = "; ".join(
            f"{name}: {text.strip()[-2000:]}" for name, text in (("stdout", stdout), ("stderr", stderr)) if text.strip()
        )
        super().__init__(f"`{' '.join(argv)}` ended with exit code {exit_code}; {output or 'no output'}", hint=hint)
        # Pickle makes an exception anew from these.
        self.args = (argv, exit_code, stdout, stderr)


class RendezvousError(GridflowError):
    """Tasks could not find each other."""

    exit_code = 3


class AuthenticationError(RendezvousError):
    """The other side of a connection does not know the run's secret."""


class DeadlineError(GridflowError):
    """A wait took longer than its deadline."""

    exit_code = 4


class RunCancelledError(GridflowError):
    """The run was cancelled before it ended."""

    exit_code = 130
