"""What the tests of all real systems share."""

from __future__ import annotations

pytest_plugins = ["tests.leaks", "tests.run_homes"]
