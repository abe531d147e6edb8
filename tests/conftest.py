# SPDX-License-Identifier: Apache-2.0
"""What every test shares."""

from __future__ import annotations

import datetime
import gc
import os
import pathlib
from collections.abc import Callable

import pytest

from tests.nodes.catalogue import NODES
from tests.nodes.write import write
from tests.quarters import is_left_out

# What is imported and collected now stays to the end. The collector looks at all of it again and
# again: a quarter of the time until the first test.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option of jobs that are too long for every landing."""
    parser.addoption(
        "--three-quarters",
        action="store_true",
        help="leave out a quarter of the tests, each day another one",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the quarter of the day."""
    if not config.getoption("three_quarters"):
        return
    today = datetime.datetime.now(datetime.UTC).date()
    left_out = [item for item in items if is_left_out(item.nodeid, today)]
    items[:] = [item for item in items if not is_left_out(item.nodeid, today)]
    config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave modules and tests out of garbage collections, and have fewer of them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    gc.enable()


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Where everything must run, a skipped test is a failed one.

    The continuous integration has every tool and every capture, so a skip
    there means that the set-up is broken, and would go unnoticed.
    """
    if not os.environ.get("NOVA_HPC_NO_SKIP") or call.excinfo is None:
        return
    if call.excinfo.errisinstance(pytest.skip.Exception):
        reason = str(call.excinfo.value)
        error = AssertionError(f"skipped where nothing may be skipped: {reason}")
        # With the traceback of the skip; an error that was never raised has none.
        call.excinfo = pytest.ExceptionInfo.from_exc_info((AssertionError, error, call.excinfo.tb))


@pytest.fixture(scope="session")
def captures() -> pathlib.Path:
    """The folder of real captures, named by NOVA_HPC_TEST_DATA."""
    folder = os.environ.get("NOVA_HPC_TEST_DATA")
    if not folder:
        pytest.skip("NOVA_HPC_TEST_DATA names no folder of captures")
    return pathlib.Path(folder)


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pathlib.Path]:
    """Gives the sys and proc of a synthetic node by its name; not to be changed."""
    written: dict[str, pathlib.Path] = {}

    def node(name: str) -> pathlib.Path:
        if name not in written:
            written[name] = write(NODES[name], tmp_path_factory.mktemp(name))
        return written[name]

    return node
