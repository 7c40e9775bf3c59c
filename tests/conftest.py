"""What all tests share."""

from __future__ import annotations

import signal

import pytest

# Its asserts are not in a test module, yet their values should be shown when they fail.
pytest.register_assert_rewrite("tests.contract")
pytest_plugins = ["pytester", "tests.leaks", "tests.run_homes", "tests.spark_sessions"]


def pytest_configure() -> None:
    """Let the processes of tests be interrupted, even where the tests run in the background or under `nohup`."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
