# SPDX-License-Identifier: Apache-2.0
"""How Hypothesis runs: how long an example takes is never a failure."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# 100 took four minutes more of the standard set; `full` has 20,000.
settings.register_profile(
    "nova-hpc", deadline=None, max_examples=int(os.environ.get("NOVA_HPC_EXAMPLES", "40"))
)
settings.load_profile("nova-hpc")


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """What a command sets up of the logs ends with its test.

    cliff lets the root logger have everything, and a library that tells each message then
    makes it for all tests that follow: minutes, with pyroute2's.
    """
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    # Those of pytest come and go by themselves.
    for handler in root.handlers[:]:
        if handler not in handlers and not type(handler).__module__.startswith("_pytest"):
            root.removeHandler(handler)
