"""A project's files, on this machine and elsewhere."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridflow.compat.hops import hdfs
from gridflow.errors import UsageError


@pytest.fixture(params=["local", "memory"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A project's folder: on this machine, and on a file system that only fsspec knows."""
    path = str(tmp_path / "project") if request.param == "local" else f"memory:///{tmp_path.name}/project"
    monkeypatch.setenv(hdfs.PROJECT_PATH, path)
    hdfs.mkdir("Resources")
    yield path + "/"
    hdfs.rmr("")


def test_files_are_written_and_read_by_their_names_in_the_project(project: str) -> None:
    hdfs.dump("one", "Resources/a.txt")
    hdfs.dump(b"two", "/Resources/b.txt")
    assert hdfs.load("Resources/a.txt") == b"one"
    assert hdfs.load(project + "Resources/b.txt") == b"two"
    assert hdfs.ls("Resources") == [project + "Resources/a.txt", project + "Resources/b.txt"]
    assert [entry["kind"] for entry in hdfs.lsl("")] == ["directory"]
    assert hdfs.abs_path("Resources/a.txt") == project + "Resources/a.txt"
    assert hdfs.glob("Resources/*.txt") == hdfs.ls("Resources")
    assert hdfs.glob("*.txt", recursive=True) == hdfs.ls("Resources")
    assert hdfs.ls("", recursive=True) == [project + "Resources", *hdfs.ls("Resources")]


def test_files_are_opened_as_bytes_or_as_text(project: str) -> None:
    with hdfs.open_file("Resources/log", flags="wt") as file:
        file.write("first\n")
    with hdfs.open_file("Resources/log", flags="rt") as file:
        assert file.read() == "first\n"
    with hdfs.open_file("Resources/log", flags="r") as file:
        assert json.dumps(file.read().decode()) == '"first\\n"'


def test_what_is_not_there_is_an_error(project: str) -> None:
    assert not hdfs.exists("Resources/none")
    for look in (hdfs.load, hdfs.isfile, hdfs.isdir, hdfs.ls, hdfs.abs_path, hdfs.delete, hdfs.stat):
        with pytest.raises(OSError, match=r"path .*Resources/none not found"):
            look("Resources/none")
    with pytest.raises(OSError, match=r"Glob path .* not found"):
        hdfs.glob("Nothing/*.txt")


def test_files_are_copied_moved_and_deleted(project: str) -> None:
    hdfs.dump("one", "Resources/a.txt")
    hdfs.cp("Resources/a.txt", "Resources/b.txt")
    with pytest.raises(FileExistsError, match="is there already"):
        hdfs.cp("Resources/a.txt", "Resources/b.txt")
    hdfs.cp("Resources/a.txt", "Resources/b.txt", overwrite=True)
    hdfs.move("Resources/b.txt", "Logs/c.txt")
    assert hdfs.load("Logs/c.txt") == b"one"
    assert hdfs.isfile("Resources/a.txt")
    assert not hdfs.exists("Resources/b.txt")
    with pytest.raises(OSError, match="Logs is not empty"):
        hdfs.delete("Logs")
    hdfs.delete("Logs", recursive=True)
    hdfs.delete("Resources/a.txt")
    hdfs.delete("Resources")
    assert not hdfs.exists("Logs")
    assert not hdfs.exists("Resources")


def test_files_go_to_this_machine_and_back(project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "x.csv").write_text("1,2\n")
    hdfs.copy_to_hdfs("data", "Resources")
    assert hdfs.load("Resources/data/deep/x.csv") == b"1,2\n"
    with pytest.raises(FileExistsError):
        hdfs.copy_to_hdfs("data", "Resources")
    hdfs.copy_to_hdfs("data", "Resources", overwrite=True)
    (tmp_path / "copies").mkdir()
    copy = Path(hdfs.copy_to_local("Resources/data", "copies"))
    assert copy == tmp_path / "copies" / "data"
    assert (copy / "deep" / "x.csv").read_text() == "1,2\n"
    before = (copy / "deep" / "x.csv").stat().st_mtime_ns
    assert hdfs.copy_to_local("Resources/data", "copies") == str(copy)
    assert (copy / "deep" / "x.csv").stat().st_mtime_ns == before
    (copy / "deep" / "x.csv").write_text("changed and longer")
    hdfs.copy_to_local("Resources/data", "copies")
    assert (copy / "deep" / "x.csv").read_text() == "1,2\n"
    with pytest.raises(OSError, match="This is not a local dir"):
        hdfs.copy_to_local("Resources/data", "nowhere")


def test_an_absolute_path_that_starts_in_a_folder_of_this_machine_is_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hdfs.PROJECT_PATH, str(tmp_path / "project"))
    hdfs.dump("here", str(tmp_path / "other.txt"))
    assert (tmp_path / "other.txt").read_text() == "here"
    hdfs.dump("there", "/Resources/other.txt")
    assert (tmp_path / "project" / "Resources" / "other.txt").read_text() == "there"


def test_modules_and_notebooks_of_the_project_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hdfs.PROJECT_PATH, str(tmp_path / "project"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "answer = 41"]},
        {"cell_type": "code", "source": ["answer += 1"]},
    ]
    hdfs.dump(json.dumps({"cells": cells}), "Resources/hops_notebook_of_tests.ipynb")
    hdfs.dump("answer = 43", "Resources/hops_module_of_tests.py")
    for name, suffix, answer in (("hops_notebook_of_tests", "ipynb", 42), ("hops_module_of_tests", "py", 43)):
        path = hdfs.add_module(f"Resources/{name}.{suffix}")
        assert path == str(tmp_path / "localized_deps" / f"{name}.py")
        assert importlib.import_module(name).answer == answer
        sys.modules.pop(name)
    hdfs.dump("", "Resources/data.csv")
    with pytest.raises(UsageError, match="neither a module nor a notebook"):
        hdfs.add_module("Resources/data.csv")


def test_a_project_without_a_path_is_in_gridflows_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "demo__meb10000")
    assert hdfs.project_user() == "demo__meb10000"
    assert hdfs.project_name() == "demo"
    assert hdfs.project_path().startswith(os.environ["GRIDFLOW_HOME"])
    assert hdfs.project_path().endswith("/projects/demo/")
    assert hdfs.project_path("other").endswith("/projects/other/")


def test_a_project_on_a_cluster_with_its_own_file_system_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDFLOW_DEFAULT_FS", "hdfs://namenode:8020")
    monkeypatch.setenv("HADOOP_USER_NAME", "demo__meb10000")
    assert hdfs.project_path() == "hdfs://namenode:8020/user/demo__meb10000/"
    monkeypatch.setenv("HOPSWORKS_PROJECT_NAME", "demo")
    assert hdfs.project_path() == "hdfs://namenode:8020/Projects/demo/"
    assert hdfs.project_path(exclude_nn_addr=True) == "hdfs:///Projects/demo/"
    assert hdfs.get_plain_path("hdfs://10.0.2.15:8020/Projects/demo/Models/") == "/Projects/demo/Models/"
