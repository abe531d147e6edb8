# SPDX-License-Identifier: Apache-2.0
"""The benchmark with a real Placement keeps running, and its rows are as hosts make them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_small_cloud() -> None:
    argv = ("--hosts", "12", "--samples", "1")
    names = {k: v for k, v in os.environ.items() if k != "OS_NOVA_DISABLE_EVENTLET_PATCHING"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.selection", *argv],
        capture_output=True, text=True, env=names, cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rows as 9 hosts have made them through the API" in done.stderr
    for question in ("gpu:1", "gpu:4", "gpu:4,vf:4", "16 servers of gpu:1"):
        assert question in done.stdout
