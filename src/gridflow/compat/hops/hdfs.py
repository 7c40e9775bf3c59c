"""The project's files, on any file system that fsspec knows: `hdfs.project_path()`, `hdfs.ls("Resources")`, ….

    Resources/data.csv      in the project; so is /Resources/data.csv, unless the file system has a folder /Resources
    /Projects/other/data    where Hopsworks has its projects: on the cluster's own file system
    hdfs://host/data        anywhere else, by its URL

The project's folder is `$GRIDFLOW_PROJECT_PATH`; without it, the user's home on a cluster with HDFS, else a folder of
`$GRIDFLOW_HOME`.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import IO, Any

from gridflow import settings
from gridflow.errors import UsageError
from gridflow.task.paths import DEFAULT_FS

PROJECT_PATH = "GRIDFLOW_PROJECT_PATH"
_PROJECT_NAME = "HOPSWORKS_PROJECT_NAME"
_PROJECT_ID = "HOPSWORKS_PROJECT_ID"
_USERS = ("HADOOP_USER_NAME", "HDFS_USER")
_PROJECTS = "/Projects"
#: 'hdfs://', 's3://', and what names a host after it
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_AUTHORITY = re.compile(r"(?<=://)[^/]+")


# The project


def project_id() -> str:
    """Return the project's number, where Hopsworks has given it one."""
    return os.environ[_PROJECT_ID]


def project_user() -> str:
    """Return the user, as the file system knows them: `project__user` on Hopsworks."""
    return next((os.environ[name] for name in _USERS if os.environ.get(name)), None) or getpass.getuser()


def project_name() -> str:
    """Return the project's name."""
    return os.environ.get(_PROJECT_NAME) or project_user().partition("__")[0]


def project_path(project: str | None = None, exclude_nn_addr: bool = False) -> str:
    """Return the folder of a project, of this one unless another is named; it ends with a slash."""
    path = os.environ.get(PROJECT_PATH) or _default_project_path()
    path = path.rstrip("/") + "/"
    if project is not None and project != project_name():
        path = f"{path.rstrip('/').rpartition('/')[0]}/{project}/"
    return _AUTHORITY.sub("", path) if exclude_nn_addr else path


def _default_project_path() -> str:
    default = _default_fs()
    if not default:
        return str(settings.home(os.environ) / "projects" / project_name())
    return (
        f"{default}{_PROJECTS}/{project_name()}" if _PROJECT_NAME in os.environ else f"{default}/user/{project_user()}"
    )


def _default_fs() -> str:
    """Return the URL of the cluster's own file system; nothing where that is the local one."""
    default = os.environ.get(DEFAULT_FS)
    if default is None and "pyspark" in sys.modules:
        from pyspark import SparkContext

        context = SparkContext._active_spark_context
        if context is not None:
            default = context._jsc.hadoopConfiguration().get("fs.defaultFS")
    return "" if not default or default.startswith("file:") else default.rstrip("/")


# Paths


def abs_path(hdfs_path: str) -> str:
    """Return the whole path of something that is there."""
    return _expand_path(hdfs_path)


def get_plain_path(abs_path: str) -> str:
    """Return a path without its scheme and host."""
    return re.sub(r"^[a-zA-Z][a-zA-Z0-9+.-]*://[^/]*", "", abs_path)


def _expand_path(hdfs_path: str | bytes, project: str = "", exists: bool = True) -> str:
    """Return the whole path that a path means, and see that it is there if it has to be."""
    text = hdfs_path.decode() if isinstance(hdfs_path, bytes) else hdfs_path
    path = _absolute(text, project_path(project or None))
    if exists and not _find(path)[0].exists(_find(path)[1]):
        raise OSError(f"path {path} not found")
    return path


def _absolute(path: str, root: str) -> str:
    if _URL.match(path) or path.startswith(root):
        return path
    if path == _PROJECTS or path.startswith(f"{_PROJECTS}/"):
        return _default_fs() + path
    if path.startswith("/"):
        system, _ = _find(root)
        first = "/" + path.lstrip("/").partition("/")[0]
        if first != "/" and system.exists(first):
            return _named(system, path)
    return root + path.lstrip("/")


def _find(path: str) -> tuple[Any, str]:
    """Return the file system of a path, and the path within it."""
    try:
        import fsspec
    except ImportError as error:
        raise UsageError("the files of a project need fsspec", hint="pip install fsspec") from error
    # '?' and '#' may be in names of folders, which fsspec leaves as they are.
    system, within = fsspec.core.url_to_fs(re.sub(r"^hopsfs://", "hdfs://", path))
    return system, str(within)


def _named(system: Any, within: str) -> str:
    """Return a path as people write it: plain on this machine, a URL elsewhere."""
    return within if _is_local(system) else str(system.unstrip_protocol(within))


def _is_local(system: Any) -> bool:
    return "file" in (system.protocol if isinstance(system.protocol, tuple | list) else [system.protocol])


def _here(hdfs_path: str, project: str | None, what: str) -> str:
    """Return the path of something on this machine, for what only its file system can do."""
    system, within = _find(_expand_path(hdfs_path, project or ""))
    if not _is_local(system):
        raise UsageError(f"{hdfs_path} is not on this machine", hint=f"{what} with the file system's own tools")
    return within


def get() -> Any:
    """Return the project's file system, as fsspec has it."""
    return _find(project_path())[0]


get_fs = get


def close() -> None:
    """Do nothing: connections end with the process."""


# Reading and writing


def open_file(hdfs_path: str, project: str | None = None, flags: str = "r", buff_size: int = 0) -> IO[Any]:
    """Open a file: `r`, `w` or `a` for bytes, with a `t` behind it for text."""
    system, within = _find(_expand_path(hdfs_path, project or "", exists=False))
    mode = flags[0] + ("t" if "t" in flags else "b")
    if mode[0] != "r":
        system.makedirs(os.path.dirname(within), exist_ok=True)
    opened: IO[Any] = system.open(within, mode, **({"block_size": buff_size} if buff_size else {}))
    return opened


def dump(data: str | bytes, hdfs_path: str) -> None:
    """Write a file."""
    with open_file(hdfs_path, flags="w") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def load(hdfs_path: str) -> bytes:
    """Return the content of a file."""
    _expand_path(hdfs_path)
    with open_file(hdfs_path) as file:
        content: bytes = file.read()
    return content


def log(string: str) -> None:
    """Put a line into the task's log."""
    print(string, flush=True)  # noqa: T201 - that is where the log comes from


# Looking


def exists(hdfs_path: str, project: str | None = None) -> bool:
    """Tell whether something is there."""
    system, within = _find(_expand_path(hdfs_path, project or "", exists=False))
    return bool(system.exists(within))


def isdir(hdfs_path: str, project: str | None = None) -> bool:
    """Tell whether a path is a folder."""
    system, within = _find(_expand_path(hdfs_path, project or ""))
    return bool(system.isdir(within))


def isfile(hdfs_path: str, project: str | None = None) -> bool:
    """Tell whether a path is a file."""
    system, within = _find(_expand_path(hdfs_path, project or ""))
    return bool(system.isfile(within))


def ls(hdfs_path: str, recursive: bool = False, exclude_nn_addr: bool = False, project: str | None = None) -> list[str]:
    """Return the paths in a folder, with `recursive` in all folders below it too."""
    found = [entry["path"] for entry in lsl(hdfs_path, recursive, project)]
    return [_AUTHORITY.sub("", path) for path in found] if exclude_nn_addr else found


def lsl(hdfs_path: str, recursive: bool = False, project: str | None = None) -> list[dict[str, Any]]:
    """Return what is in a folder: path, name, kind (file or directory) and size."""
    system, within = _find(_expand_path(hdfs_path, project or ""))
    found = system.find(within, withdirs=True, detail=True).values() if recursive else system.ls(within, detail=True)
    paths = sorted((entry for entry in found if entry["name"].rstrip("/") != within.rstrip("/")), key=_name)
    return [
        {"path": _named(system, entry["name"]), "name": entry["name"], "kind": entry["type"], "size": entry["size"]}
        for entry in paths
    ]


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"])


def glob(hdfs_path: str, recursive: bool = False, project: str | None = None) -> list[str]:
    """Return the paths that a pattern matches; with `recursive` also in the folders below."""
    folder, _, pattern = _expand_path(hdfs_path, project or "", exists=False).rpartition("/")
    system, within = _find(folder)
    if not system.exists(within):
        raise OSError(f"Glob path {folder} not found")
    found = system.glob(f"{within}/**/{pattern}" if recursive else f"{within}/{pattern}")
    return [_named(system, path) for path in sorted(found)]


def stat(hdfs_path: str, project: str | None = None) -> os.stat_result | dict[str, Any]:
    """Return what the file system knows of something: as `os.stat` does on this machine, else as fsspec does."""
    system, within = _find(_expand_path(hdfs_path, project or ""))
    if _is_local(system):
        return os.stat(within)
    information: dict[str, Any] = system.info(within)
    return information


def access(hdfs_path: str, mode: int, project: str | None = None) -> bool:
    """Tell whether something on this machine may be read, written or executed."""
    return os.access(_here(hdfs_path, project, "look"), mode)


def capacity() -> int:
    """Return the size of the file system that the project is on."""
    folder = Path(_here("", None, "look"))
    return shutil.disk_usage(folder).total


# Changing


def mkdir(hdfs_path: str, project: str | None = None) -> None:
    """Make a folder and those above it."""
    system, within = _find(_expand_path(hdfs_path, project or "", exists=False))
    system.makedirs(within, exist_ok=True)


def delete(hdfs_path: str, recursive: bool = False) -> None:
    """Delete a file or an empty folder, with `recursive` all that is in it too."""
    system, within = _find(_expand_path(hdfs_path))
    if system.isdir(within) and not recursive:
        if system.ls(within, detail=False):
            raise OSError(f"{hdfs_path} is not empty")
        system.rmdir(within)
        return
    system.rm(within, recursive=recursive)


def rmr(hdfs_path: str, project: str | None = None) -> None:
    """Delete something and all that is in it."""
    system, within = _find(_expand_path(hdfs_path, project or ""))
    system.rm(within, recursive=True)


def move(src: str, dest: str) -> None:
    """Move something, into a folder if that is what `dest` is."""
    system, source = _find(_expand_path(src))
    target = _target(_expand_path(dest, exists=False), os.path.basename(source))
    system.makedirs(os.path.dirname(target), exist_ok=True)
    system.mv(source, target, recursive=system.isdir(source))


rename = move


def cp(src_hdfs_path: str, dest_hdfs_path: str, overwrite: bool = False) -> None:
    """Copy a file or a folder, into a folder if that is what the destination is."""
    system, source = _find(_expand_path(src_hdfs_path))
    target = _target(_expand_path(dest_hdfs_path, exists=False), os.path.basename(source.rstrip("/")))
    _make_room(system, target, overwrite)
    system.copy(source, target, recursive=system.isdir(source))


def copy_to_hdfs(local_path: str, relative_hdfs_path: str, overwrite: bool = False, project: str | None = None) -> None:
    """Copy a file or a folder of this machine into a folder of the project."""
    local = os.path.abspath(local_path)
    destination = _expand_path(relative_hdfs_path, project or "", exists=False)
    system, _ = _find(destination)
    target = _target(destination, os.path.basename(local))
    _make_room(system, target, overwrite)
    system.put(local, target, recursive=os.path.isdir(local))


def copy_to_local(hdfs_path: str, local_path: str = "", overwrite: bool = False, project: str | None = None) -> str:
    """Copy a file or a folder to a folder of this machine, and return where it is; one that is there already stays."""
    folder = os.path.abspath(local_path)
    if not os.path.isdir(folder):
        raise OSError(f"You need to supply the path to a local directory. This is not a local dir: {folder}")
    system, source = _find(_expand_path(hdfs_path, project or ""))
    local = os.path.join(folder, os.path.basename(source.rstrip("/")))
    if os.path.realpath(local) == source and _is_local(system):
        return local
    if not overwrite and _is_same(system, source, local):
        return local
    size = system.du(source)
    if size > shutil.disk_usage(folder).free:
        raise OSError(f"Not enough local free space available on scratch directory: {folder}")
    if os.path.isdir(local):
        shutil.rmtree(local)
    system.get(source, local, recursive=system.isdir(source))
    return local


def _target(destination: str, name: str) -> str:
    system, within = _find(destination)
    return f"{within.rstrip('/')}/{name}" if system.isdir(within) else within


def _make_room(system: Any, target: str, overwrite: bool) -> None:
    if system.exists(target):
        if not overwrite:
            raise FileExistsError(f"{target} is there already")
        system.rm(target, recursive=True)
    system.makedirs(os.path.dirname(target), exist_ok=True)


def _is_same(system: Any, source: str, local: str) -> bool:
    """Tell whether a copy has the files that the original has, each of the same size."""
    if os.path.isfile(local):
        return bool(system.isfile(source) and os.path.getsize(local) == system.size(source))
    if not os.path.isdir(local) or not system.isdir(source):
        return False
    there = {name[len(source) :].lstrip("/"): size["size"] for name, size in system.find(source, detail=True).items()}
    here = {str(path.relative_to(local)): path.stat().st_size for path in Path(local).rglob("*") if path.is_file()}
    return there == here


def chown(hdfs_path: str, user: str, group: str, project: str | None = None) -> None:
    """Give something on this machine to somebody else."""
    shutil.chown(_here(hdfs_path, project, "change it"), user, group)


def chmod(hdfs_path: str, mode: int, project: str | None = None) -> None:
    """Change who may read, write and execute something on this machine."""
    os.chmod(_here(hdfs_path, project, "change it"), mode)


# Programs


def add_module(hdfs_path: str, project: str | None = None) -> str:
    """Copy a module or a notebook from the project so that it can be imported, and return its path."""
    path = _expand_path(hdfs_path, project or "")
    if not path.endswith((".py", ".ipynb")):
        raise UsageError(f"{path} is neither a module nor a notebook", hint="give a .py or .ipynb file")
    folder = os.path.join(os.getcwd(), "localized_deps")
    os.makedirs(folder, exist_ok=True)
    if folder not in sys.path:
        sys.path.append(folder)
    local = Path(copy_to_local(path, folder, overwrite=True))
    if local.suffix == ".ipynb":
        local.with_suffix(".py").write_text(_notebook_code(local.read_text()))
        local = local.with_suffix(".py")
    sys.modules.pop(local.stem, None)  # one that was there before is imported anew
    return str(local)


def _notebook_code(notebook: str) -> str:
    """Return the Python of a notebook, less what is for the notebook itself: '%matplotlib inline', '!ls'."""
    cells = [cell["source"] for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
    lines = [line for cell in cells for line in "".join(cell).splitlines()]
    return "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!"))) + "\n"
