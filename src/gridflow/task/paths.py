"""Which file a path means inside a task. Pure.

hdfs://host/data     a URL stays what it is
/data                the cluster's own file system
data                 the user's home on HDFS, the working folder elsewhere
"""

from __future__ import annotations

import re

#: The file system that paths without a scheme are on, such as `hdfs://namenode:8020`; without it the local one.
DEFAULT_FS = "GRIDFLOW_DEFAULT_FS"
#: Who runs the job, as the cluster knows them.
USER = "GRIDFLOW_USER"

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:/")
_WITH_HOMES = ("hdfs://", "viewfs://")


def absolute_path(path: str, *, default_fs: str, user: str, working_folder: str) -> str:
    """Return the URL that a path means, with the scheme of its file system."""
    if _SCHEME.match(path):
        return path
    if path.startswith("/"):
        return default_fs.rstrip("/") + path if not default_fs.startswith("file:") else f"file://{path}"
    if default_fs.startswith(_WITH_HOMES):
        return f"{default_fs.rstrip('/')}/user/{user}/{path}"
    if default_fs.startswith("file:"):
        return f"file://{working_folder.rstrip('/')}/{path}"
    return f"{default_fs.rstrip('/')}/{path}"
