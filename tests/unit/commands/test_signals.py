# SPDX-License-Identifier: Apache-2.0
"""A command ends cleanly when it is asked to end, and only while it runs."""

from __future__ import annotations

import signal

from nova_hpc_tools.main import main


def test_the_callers_handlers_come_back() -> None:
    """A test runner whose tests run commands could not be ended any more."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    kept = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    try:
        assert main(["help", "check", "iommu-off"]) == 0
        after = [signal.getsignal(number) for number in numbers]
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert after == [signal.SIG_DFL, signal.SIG_DFL]
