"""A port that stays a task's own until its program has taken it.

TensorFlow is told its port before it binds it. A port that was merely free a moment ago may be somebody else's by
then, so the agent keeps it bound for the whole life of the task, without listening. On Linux the program can still
bind and listen on it, since gRPC, TensorBoard and the agent all set SO_REUSEADDR; the kernel gives such a port to
nobody who asks for any free one.
"""

from __future__ import annotations

import errno
import socket

from gridflow.errors import TaskError

#: What TensorFlow raises when it cannot have its port.
_TENSORFLOW_BIND_ERROR = "Could not start gRPC server"


class ReservedPort:
    """A bound, silent socket."""

    def __init__(self, port: int | None = None) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("", port or 0))
        except OSError as error:
            self._socket.close()
            raise TaskError(f"port {port} cannot be had: {error}", hint="the run tries again with others") from error
        self.number: int = self._socket.getsockname()[1]

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def was_taken(self, error: str) -> bool:
        """Say whether a program that failed with `error` failed because a stranger had its port.

        To be asked when the program is gone: whoever listens then is the stranger.
        """
        if _TENSORFLOW_BIND_ERROR in error:
            return True
        try:
            self._socket.listen()
        except OSError as failure:
            return failure.errno == errno.EADDRINUSE
        return False
