"""What people see of a run: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from tests.cli.records import record_run
from tests.cli.terminal import Terminal
from tests.contract import PROGRAMS, find

from gridflow.cli.view import PlainView, QuietView, clean_line, describe, elapsed, last_line
from gridflow.run import Run
from gridflow.state import RunState, RunStatus, TaskState, TaskStatus

_CURSOR_HIDDEN, _CURSOR_SHOWN = "\x1b[?25l", "\x1b[?25h"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain\n", "plain"),
        ("windows\r\n", "windows"),
        ("10%\r20%\r100%\r\n", "100%"),
        ("\x1b[1;31mred\x1b[0m and \x1b[38;2;1;2;3mmore", "red and more"),
        ("\x1b[?25l\x1b[2K\x1b[1Ahidden cursor", "hidden cursor"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]8;;http://host\x1b\\a link\x1b]8;;\x1b\\", "a link"),
        ("\x1bcreset \x1b(0 charset \x1b=", "reset  charset "),
        ("\x1b]0;a title that never ends", "]0;a title that never ends"),
        ("12%\b\b\b13%", "12%13%"),
        ("bell\x07 null\x00 tab\tdelete\x7f c1\x9b31m", "bell null tab\tdelete c131m"),
        ("größer 漢字 ✓ [bold]", "größer 漢字 ✓ [bold]"),
        ("", ""),
    ],
)
def test_line_is_shown_without_what_would_disturb_a_terminal(written: str, shown: str) -> None:
    assert clean_line(written) == shown


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", ""),
        (b"first\nlast\n", "last"),
        (b"first\nlast\n\n  \n\x1b[0m\n", "last"),
        (b"first\nno newline", "no newline"),
        (b"x" * 100_000 + b"\nlast\n", "last"),
        (b"10%\r50%", "50%"),
        ("ü".encode() * 100_000, "ü" * 2048),
    ],
)
def test_last_line_is_the_last_that_says_something(content: bytes, line: str) -> None:
    folder = record_run()
    folder.log_file("worker/0").write_bytes(content)
    assert last_line(find(folder.run), "worker/0") == line


@pytest.mark.parametrize(
    ("started", "ended", "text"),
    [(None, None, ""), (100.0, None, "0:05"), (40.0, None, "1:05"), (40.0, 42.9, "0:02"), (-10_000.0, None, "2:48:25")],
)
def test_time_of_a_task_is_short(started: float | None, ended: float | None, text: str) -> None:
    assert elapsed(TaskStatus("worker/0", TaskState.RUNNING, started=started, ended=ended), now=105.0) == text


def test_description_shows_reasons_before_last_lines() -> None:
    folder = record_run(worker={"count": 2})
    folder.append_event("task", task="worker/1", state="starting", host="here", restarts=2)
    folder.append_event("task", task="worker/1", state="failed", exit_code=3, reason="exit code 3")
    folder.log_file("worker/1").write_text("said before\n")
    run = find(folder.run)
    first, second = describe(run, run.status()).splitlines()[1:3]
    assert first.split() == ["worker/0", "succeeded", "0:00", "last", "line"]
    assert second.split() == ["worker/1", "failed", "0:00", "restarts", "2", "exit", "code", "3"]


def run_seen_as(monkeypatch: pytest.MonkeyPatch, seen: Sequence[tuple[RunState, str, TaskState, str]]) -> Run:
    """Return a run whose status is another each time: the run's state and reason, its task's state and reason."""
    statuses = iter(
        RunStatus("run", "htcondor", state, (TaskStatus("worker/0", task, reason=why),), reason=reason)
        for state, reason, task, why in seen
    )
    monkeypatch.setattr(Run, "status", lambda _: next(statuses))
    return find(record_run().run)


def test_lines_say_why_a_task_waits_or_is_held_and_why_all_start_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = [
        (RunState.PENDING, "", TaskState.PENDING, ""),
        (RunState.PENDING, "", TaskState.PENDING, "no machine matches: Memory >= RequestMemory"),
        (RunState.HELD, "worker/0 is held: no file", TaskState.HELD, "no file"),
        (RunState.RUNNING, "", TaskState.RUNNING, ""),
        (RunState.RUNNING, "worker/0 was evicted", TaskState.RUNNING, ""),
        (RunState.SUCCEEDED, "", TaskState.SUCCEEDED, ""),
    ]
    with PlainView(run_seen_as(monkeypatch, seen)) as view:
        view.follow()
    lines = [line for line in capsys.readouterr().out.splitlines()[1:-1] if " | " not in line]
    assert lines == [
        "worker/0 pending (no machine matches: Memory >= RequestMemory)",
        "worker/0 held (no file)",
        "worker/0 running",
        "starting again: worker/0 was evicted",
        "worker/0 succeeded",
    ]


def test_a_quiet_view_says_only_that_a_task_is_held_and_once_for_each_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = (
        RunState.HELD,
        "worker/0 is held: no file (is the path right?)",
        TaskState.HELD,
        "no file (is the path right?)",
    )
    full = (RunState.HELD, "worker/0 is held: no room", TaskState.HELD, "no room")
    running = (RunState.RUNNING, "", TaskState.RUNNING, "")
    seen = [running, held, held, running, full, full, (RunState.SUCCEEDED, "", TaskState.SUCCEEDED, "")]
    with QuietView(run_seen_as(monkeypatch, seen)) as view:
        view.follow()
    assert capsys.readouterr() == (
        "",
        "gridflow: worker/0 is held: no file (is the path right?)\ngridflow: worker/0 is held: no room\n",
    )


def test_terminal_shows_a_table_and_is_in_order_after_an_interrupt() -> None:
    with Terminal("run", PROGRAMS / "linger.py", "--workers", "2") as terminal:
        terminal.wait_for(r"task +state +time +restarts +last line")
        for task in ("worker/0", "worker/1"):
            terminal.wait_for(rf"{task} +running +0:\d\d +ready ")
        terminal.press(b"\x03")
        assert terminal.wait() == 130
        assert terminal.settings == terminal.settings_before
    assert terminal.shown.rindex(_CURSOR_SHOWN) > terminal.shown.rindex(_CURSOR_HIDDEN)
    *_, stopping, cancelled = terminal.text.rstrip().splitlines()
    assert stopping == "gridflow: stopping …"
    assert re.fullmatch(r"gridflow: run linger-[\w-]+ cancelled: it was cancelled", cancelled)
    assert "Traceback" not in terminal.text


def test_terminal_is_not_disturbed_by_any_output() -> None:
    with Terminal("run", PROGRAMS / "odd_output.py") as terminal:
        assert terminal.wait() == 0
        assert terminal.settings == terminal.settings_before
    assert "worker/0 | größer als 漢字 ✓ :fire: [bold]not markup[/]" in terminal.text
    assert "worker/0 | 100% done" in terminal.text
    assert "succeeded after" in terminal.text
    assert not re.search(r"\x07|\x1bc|\x1b\]", terminal.shown)


def test_terminal_says_why_a_run_starts_again() -> None:
    words = ["--workers", "2", "--max-restarts", "1", "--", "2"]
    with Terminal("run", PROGRAMS / "resume.py", *words) as terminal:
        assert terminal.wait() == 0
    assert "restart 1 of 1: worker/1 failed: attempt 0 is lost" in terminal.text
