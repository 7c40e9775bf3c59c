from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.usefixtures("_plugin")

#: Tests find here what must outlive them but not their session.
_CONFTEST = """
import threading

stop = threading.Event()

def pytest_unconfigure():
    stop.set()
"""


@pytest.fixture
def _plugin(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makeini("[pytest]\nleak_grace_seconds = 0.2\n")
    pytester.makeconftest(_CONFTEST)


def run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_subprocess("-p", "tests.leaks", "-W", "error", *options, timeout=60)


def test_a_test_that_leaves_nothing_passes(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import socket, subprocess, threading
        from concurrent.futures import ThreadPoolExecutor

        def test_tidy():
            subprocess.run(["true"], check=True)
            with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
                pass
            with ThreadPoolExecutor() as pool:
                pool.submit(print).result()
        """,
    )
    result.assert_outcomes(passed=1)


def test_a_child_that_still_runs_fails_the_test_and_is_killed(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import subprocess

        started = []

        def test_leaks():
            started.append(subprocess.Popen(["sleep", "987"]))

        def test_next_is_not_blamed():
            pass
        """,
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*test_leaks left behind:", "  process *: sleep 987"])
    assert not _is_alive(_pids(result))


def test_a_process_whose_parent_has_died_fails_the_test_and_is_killed(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import subprocess

        def test_leaks():
            subprocess.run(["sh", "-c", "setsid sleep 987 >/dev/null 2>&1 &"], check=True)
        """,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["  process *: sleep 987"])
    assert not _is_alive(_pids(result))


def test_a_child_that_was_never_waited_for_fails_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import os

        def test_leaks():
            if os.fork() == 0:
                os._exit(0)
        """,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["  process *: has ended, but nobody waited for it"])


@pytest.mark.parametrize("options", ["daemon=False", "daemon=True, name='feeder'"])
def test_a_thread_that_should_have_ended_fails_the_test(pytester: pytest.Pytester, options: str) -> None:
    result = run(
        pytester,
        f"""
        import threading
        from conftest import stop

        def test_leaks():
            threading.Thread(target=stop.wait, {options}).start()

        def test_next_is_not_blamed():
            pass
        """,
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.re_match_lines([r"  thread '(feeder|Thread-1 \(wait\))'"])


def test_an_unnamed_daemon_thread_and_a_thread_of_tensorflow_may_stay(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import threading
        from conftest import stop

        def wait():
            stop.wait()

        wait.__module__ = "tensorflow.python.distribute.coordinator.cluster_coordinator"

        def test_unnamed():
            threading.Thread(target=stop.wait, daemon=True).start()

        def test_of_tensorflow():
            threading.Thread(target=wait, name="WorkerClosureProcessingLoop-0", daemon=True).start()
        """,
    )
    result.assert_outcomes(passed=2)


def test_tensorflow_at_work_is_not_a_leak(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.filterwarnings("default")
        def test_trains():
            import keras
            import numpy as np

            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile(loss="mse")
            model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
        """,
    )
    result.assert_outcomes(passed=1)


def test_connections_of_a_fixture_of_the_whole_session_are_no_leak(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import socket

        import pytest
        from tests.leaks import session_ports

        @pytest.fixture(scope="session")
        def server():
            with socket.create_server(("127.0.0.1", 0)) as server:
                session_ports.add(server.getsockname()[1])
                yield server

        opened = []

        def test_connects(server):
            opened.append(socket.create_connection(server.getsockname()))

        def test_disconnects():
            opened[0].close()
        """,
    )
    result.assert_outcomes(passed=2)


def test_an_open_socket_fails_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import socket

        opened = []

        def test_leaks():
            server = socket.create_server(("127.0.0.1", 0))
            opened.extend([server, socket.create_connection(server.getsockname())])

        def test_next_is_not_blamed():
            pass
        """,
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.re_match_lines(
        [
            r"  socket \d+: \('127\.0\.0\.1', \d+\)$",
            r"  socket \d+: \('127\.0\.0\.1', \d+\) connected to \('127\.0\.0\.1', \d+\)$",
        ]
    )


def test_what_ends_within_the_grace_is_not_a_leak(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import subprocess

        def test_slow_end():
            subprocess.run(["sh", "-c", "sleep 0.3 >/dev/null 2>&1 &"], check=True)
        """,
        "-o",
        "leak_grace_seconds=30",
    )
    result.assert_outcomes(passed=1)


def test_fixtures_of_a_module_may_keep_things_until_they_are_closed(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import socket, subprocess
        import pytest

        @pytest.fixture(scope="module")
        def server():
            with socket.create_server(("127.0.0.1", 0)) as server, subprocess.Popen(["sleep", "987"]) as process:
                yield server
                process.kill()

        def test_first(server):
            pass

        def test_second(server):
            pass
        """,
    )
    result.assert_outcomes(passed=2)


def test_what_the_fixture_of_a_module_leaves_fails_the_session(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import subprocess
        import pytest

        @pytest.fixture(scope="module")
        def server():
            return subprocess.Popen(["sleep", "987"])

        def test_uses_it(server):
            pass
        """,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["the session left behind:", "  process *: sleep 987"])
    assert not _is_alive(_pids(result))


def test_what_a_test_has_failed_for_is_not_reported_again_by_the_session(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import threading
        from conftest import stop

        def test_leaks():
            threading.Thread(target=stop.wait, name="feeder").start()
        """,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.no_fnmatch_line("the session left behind:")


def _pids(result: pytest.RunResult) -> list[int]:
    pids = [int(pid) for pid in re.findall(r"process (\d+): sleep 987", result.stdout.str())]
    assert pids
    return pids


def _is_alive(pids: list[int]) -> bool:
    return any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)
