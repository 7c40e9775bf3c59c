"""Small things about the host and the process."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from gridflow.compat.tensorflowonspark import util
from gridflow.errors import TaskError


def test_host_has_an_address() -> None:
    assert ipaddress.ip_address(util.get_ip_address())


def test_file_is_found_among_folders(tmp_path: Path) -> None:
    (tmp_path / "tool").touch()
    assert util.find_in_path(f"/nowhere:{tmp_path}", "tool") == str(tmp_path / "tool")
    assert util.find_in_path("/nowhere", "tool") is False


def test_node_keeps_its_number_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TaskError, match="no node was started in"):
        util.read_executor_id()
    util.write_executor_id(7)
    assert util.read_executor_id() == 7


def test_wildcards_of_hadoops_class_path_are_written_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    program = tmp_path / "bin" / "hadoop"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho a.jar:b.jar\n")
    program.chmod(0o755)
    monkeypatch.setenv("HADOOP_PREFIX", str(tmp_path))
    for name in ("CLASSPATH", "TFOS_CLASSPATH_UPDATED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    util.expand_hadoop_classpath()
    util.expand_hadoop_classpath()
    assert os.environ["CLASSPATH"] == "a.jar:b.jar"
