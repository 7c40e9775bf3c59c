from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridflow.errors import SettingsError
from gridflow.tables import Table, parse_duration_seconds, parse_memory_mb, read_toml


def message_of(action: Any, *arguments: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        action(*arguments)
    return str(caught.value)


# Amounts


@pytest.mark.parametrize(
    ("value", "memory_mb"),
    [
        (4096, 4096),
        (512.0, 512),
        ("512", 512),
        ("512 MB", 512),
        ("512mb", 512),
        (" 2 GiB ", 2048),
        ("1.5 GB", 1536),
        ("3G", 3072),
        ("0.5g", 512),
        ("1 TB", 1024 * 1024),
        ("2 tib", 2 * 1024 * 1024),
    ],
)
def test_memory_is_given_with_or_without_unit(value: object, memory_mb: int) -> None:
    assert parse_memory_mb(value, "memory") == memory_mb


@pytest.mark.parametrize(
    "value",
    ["12 GBB", "", "GB", "4 K", "4,5 GB", "-1 GB", -1, 0, 0.4, "0 GB", True, None, [4], math.nan, math.inf, 10**400],
)
def test_what_is_no_amount_of_memory_is_refused(value: object) -> None:
    assert message_of(parse_memory_mb, value, "job.worker.memory") == (
        f'job.worker.memory = {value!r} is not an amount of memory (write "512 MB" or "4 GB")'
    )


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(90, 90), (0.5, 0.5), ("90", 90), ("90s", 90), ("10 m", 600), ("2h", 7200), ("1.5H", 5400), ("1d", 86400)],
)
def test_a_duration_is_given_with_or_without_unit(value: object, seconds: float) -> None:
    assert parse_duration_seconds(value, "timeout") == seconds


@pytest.mark.parametrize(
    "value", ["soon", "", "s", "-5s", -5, 0, "0h", "1 month", False, None, {}, math.nan, math.inf, 10**400]
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    assert message_of(parse_duration_seconds, value, "job.timeout") == (
        f'job.timeout = {value!r} is not a duration (write "90s", "10m" or "2h")'
    )


@settings(deadline=None)
@given(st.integers(1, 2**53))
def test_any_number_of_megabytes_is_read_back_as_it_was_written(memory_mb: int) -> None:
    assert parse_memory_mb(memory_mb, "memory") == memory_mb


@settings(deadline=None)
@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_any_number_of_seconds_is_read_back_as_it_was_written(seconds: float) -> None:
    assert parse_duration_seconds(seconds, "timeout") == seconds


@settings(deadline=None)
@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.integers())))
def test_anything_is_a_positive_amount_or_refused(value: object) -> None:
    for parse in (parse_memory_mb, parse_duration_seconds):
        try:
            amount = parse(value, "key")
        except SettingsError:
            continue
        assert 0 < amount < math.inf


# Files


def test_a_file_is_read_as_toml(tmp_path: Path) -> None:
    path = tmp_path / "gridflow.toml"
    path.write_text('[job]\nname = "größe"\n', encoding="utf-8")
    assert read_toml(path) == {"job": {"name": "größe"}}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gridflow.toml"
    assert message_of(read_toml, path) == f"{path} does not exist (check the path of the job file)"


def test_a_file_that_is_not_toml_is_named_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "gridflow.toml"
    path.write_text("[job]\nprogram = train.py\n")
    assert message_of(read_toml, path) == (
        f"{path} cannot be read: Invalid value (at line 2, column 11) (the job file must be valid TOML)"
    )


@pytest.mark.parametrize("content", [b"\xff\xfe[job]", b"count = " + b"9" * 5000], ids=["not UTF-8", "endless number"])
def test_a_file_that_python_cannot_read_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "gridflow.toml"
    path.write_bytes(content)
    message = message_of(read_toml, path)
    assert message.startswith(f"{path} cannot be read: ")
    assert message.endswith(" (the job file must be valid TOML)")


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    assert message_of(read_toml, tmp_path) == (
        f"{tmp_path} cannot be read: [Errno 21] Is a directory: {str(tmp_path)!r} (the job file must be valid TOML)"
    )


# Keys


def test_what_is_not_given_has_its_default() -> None:
    table = Table({"nothing": None}, "job")
    assert table.text("name") == ""
    assert table.text("folder", ".") == "."
    assert table.integer("count", 1) == 1
    assert table.number("cpus", None) is None
    assert table.flag("quiet") is False
    assert table.memory_mb("memory") is None
    assert table.seconds("timeout", 3) == 3
    assert table.strings("args") == ()
    assert table.mapping("env") == {}
    assert table.table("worker") is None
    table.close()


def test_what_is_given_is_taken_with_its_type() -> None:
    values = {
        "name": "x",
        "count": 2,
        "cpus": 1,
        "quiet": True,
        "memory": "1 GB",
        "timeout": "2m",
        "args": ["--epochs", 3, 0.5],
        "env": {"SEED": 1, "MODE": "fast"},
        "worker": {"count": 2},
    }
    table = Table(values, "job")
    assert table.text("name") == "x"
    assert table.integer("count", 1) == 2
    assert table.number("cpus", None) == 1.0
    assert table.flag("quiet") is True
    assert table.memory_mb("memory") == 1024
    assert table.seconds("timeout", None) == 120
    assert table.strings("args") == ("--epochs", "3", "0.5")
    assert table.mapping("env") == {"SEED": "1", "MODE": "fast"}
    worker = table.table("worker")
    assert worker is not None
    assert worker.key("count") == "job.worker.count"
    assert worker.integer("count", 1) == 2
    worker.close()
    table.close()


@pytest.mark.parametrize(
    ("take", "value", "message"),
    [
        ("text", 3, "job.key = 3 is not a string (give a string)"),
        ("text", ["a"], "job.key = ['a'] is not a string (give a string)"),
        ("flag", "yes", "job.key = 'yes' is not true or false (give true or false)"),
        ("flag", 1, "job.key = 1 is not true or false (give true or false)"),
        ("strings", "--epochs 3", "job.key = '--epochs 3' is not a list (give a list)"),
        ("strings", [["a"]], "job.key holds ['a'] (give a list of strings or numbers)"),
        ("strings", [True], "job.key holds True (give a list of strings or numbers)"),
        ("mapping", ["A=1"], "job.key = ['A=1'] is not a table (give a table)"),
        ("mapping", {"A": True}, "job.key.A = True is not a string (put it in quotes)"),
        ("mapping", {"A": [1]}, "job.key.A = [1] is not a string (put it in quotes)"),
        ("table", 2, "job.key = 2 is not a table (give a table)"),
        ("tables", {"a": 1}, "job.key = {'a': 1} is not a list of tables (give a list of tables)"),
        ("tables", [2], "job.key holds 2 (write [[key]] above each table)"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(take: str, value: object, message: str) -> None:
    assert message_of(getattr(Table({"key": value}, "job"), take), "key") == message


def test_a_list_of_tables_is_taken_one_by_one() -> None:
    table = Table({"gpu": [{"memory": 1}, {"memory": 2}]}, "gpus")
    assert [each.memory_mb("memory") for each in table.tables("gpu")] == [1, 2]
    assert table.tables("other") == []
    table.close()


@pytest.mark.parametrize("value", ["2", 2.0, True, [2]])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    table = Table({"count": value}, "job.worker")
    assert message_of(table.integer, "count", 1) == (
        f"job.worker.count = {value!r} is not a whole number (give a whole number)"
    )


@pytest.mark.parametrize("value", ["2", True, {}])
def test_what_is_no_number_is_refused(value: object) -> None:
    table = Table({"cpus": value}, "job.worker")
    assert message_of(table.number, "cpus", None) == f"job.worker.cpus = {value!r} is not a number (give a number)"


def test_a_key_that_nobody_takes_is_refused_with_the_nearest_and_all_valid_ones() -> None:
    table = Table({"cpu": 2}, "job.worker")
    table.number("cpus", None)
    table.integer("count", 1)
    assert message_of(table.close) == (
        "job.worker.cpu is not a known key (did you mean 'cpus'? valid keys: count, cpus)"
    )


def test_a_key_unlike_all_others_is_refused_with_the_valid_ones() -> None:
    table = Table({"zebra": 2}, "job")
    table.text("name")
    assert message_of(table.close) == "job.zebra is not a known key (valid keys: name)"


def test_a_table_without_any_valid_key_says_so() -> None:
    assert message_of(Table({"x": 1}, "platform.local").close) == (
        "platform.local.x is not a known key (valid keys: none)"
    )
