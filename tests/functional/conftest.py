"""Lets pytest run tests that are built on Nova's test classes.

Also usable as a plug-in (``-p tests.functional.conftest``) to run Nova's own
functional tests.
"""

from __future__ import annotations

# Nova's functional tests patch the concurrency library when they are imported,
# which has to come before anything else of Nova.
import nova.tests.functional  # noqa: F401
from nova import test


def _clear_attrs(self: test.TestCase) -> None:
    """Drop the attributes of a finished test, but not pytest's own.

    Nova deletes every public attribute when a test ends; pytest keeps the test
    method there and wants to delete it itself.
    """
    for key in list(self.__dict__):
        if not key.startswith("_") and key != self._testMethodName:
            del self.__dict__[key]


test.TestCase._clear_attrs = _clear_attrs


def pytest_terminal_summary(terminalreporter) -> None:
    """Repeat the lines that tests print for people, also where they passed."""
    for report in terminalreporter.stats.get("passed", []):
        for line in report.capstdout.splitlines():
            if line.startswith("RESULT: "):
                terminalreporter.write_line(line)
