# SPDX-License-Identifier: Apache-2.0
"""Lets pytest run tests that are built on Nova's test classes.

Also usable as a plug-in (``-p tests.functional.conftest``) to run Nova's own
functional tests.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

# Nova's functional tests patch the concurrency library when they are imported,
# which has to come before anything else of Nova.
import nova.tests.functional  # noqa: F401
from nova import test
from nova.tests.fixtures import conf as conf_fixture
from nova.tests.functional import integrated_helpers

from nova_hpc.from_nova import contract, gate
from tests.functional import once

once.compile_statements()
once.check_schemas()
once.share_routes()

if os.environ.get("NOVA_HPC_NEXT_NOVA"):
    # What holds of a Nova that nobody has read yet; services refuse it.
    gate.SUPPORTED = contract.SUPPORTED = range(
        contract.SUPPORTED[0], max(contract.SUPPORTED[-1], contract.running_nova_release() or 0) + 1
    )

#: Random histories kill a service at its own threads, which release 34 brought.
_THREADS = "nova.thread_pool_factory"
collect_ignore = [] if importlib.util.find_spec(_THREADS) else ["test_histories.py"]
if importlib.util.find_spec("masakari") is None:
    collect_ignore.append("test_masakari.py")  # it is beside the newest Nova


def _clear_attrs(self: test.TestCase) -> None:
    """Drop the attributes of a finished test, but not pytest's own.

    Nova deletes every public attribute when a test ends; pytest keeps the test
    method there and wants to delete it itself.
    """
    for key in list(self.__dict__):
        if not key.startswith("_") and key != self._testMethodName:
            del self.__dict__[key]


test.TestCase._clear_attrs = _clear_attrs


def _with_paste_config(self: conf_fixture.ConfFixture) -> None:
    """Name the paste configuration where Nova's wheel installed it.

    Nova's fixture looks for it in a source tree.
    """
    _set_up(self)
    for prefix in (Path(sys.prefix), Path(sys.base_prefix)):
        installed = prefix / "etc" / "nova" / "api-paste.ini"
        if installed.is_file():
            self.conf.set_default("api_paste_config", str(installed), group="wsgi")
            return


_set_up = conf_fixture.ConfFixture.setUp
conf_fixture.ConfFixture.setUp = _with_paste_config


class _Patience(threading.local):
    """Lets Nova's loops ask soon at first and later less often; in all they wait as long.

    Its helpers ask whether a server is ready up to ten times, half a second apart, and
    most servers are ready after a fraction of the first.
    """

    #: Seconds before each question of one loop; all others are as Nova has them.
    FIRST = (0.1, 0.2, 0.3)
    #: What the first questions have saved is added to a later one.
    REST = 0.5 * (len(FIRST) + 1) - sum(FIRST)

    def __init__(self) -> None:
        self._loop: object = None
        self._asked = 0

    def sleep(self, seconds: float) -> None:
        loop = sys._getframe(1)
        if loop is not self._loop:
            self._loop, self._asked = loop, 0
        number, self._asked = self._asked, self._asked + 1
        if seconds == 0.5 and number <= len(self.FIRST):
            seconds = (*self.FIRST, self.REST)[number]
        time.sleep(seconds)


integrated_helpers.time = SimpleNamespace(
    **{name: getattr(time, name) for name in dir(time) if not name.startswith("_")}
    | {"sleep": _Patience().sleep}
)


def pytest_collection_finish() -> None:
    """All modules are imported now."""
    once.keep_modules()


def pytest_terminal_summary(terminalreporter) -> None:
    """Repeat the lines that tests print for people, also where they passed."""
    for report in terminalreporter.stats.get("passed", []):
        for line in report.capstdout.splitlines():
            if line.startswith("RESULT: "):
                terminalreporter.write_line(line)
