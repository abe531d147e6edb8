# SPDX-License-Identifier: Apache-2.0
"""Python environments beside the lab's own, for clients that want other releases of things."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

from nova_hpc_lab.state import Paths

TOP = Path(__file__).resolve().parents[2]


def python(name: str, *requirements: str) -> Path:
    """The Python of an environment with *requirements*, as pip takes them.

    It is kept in the lab's cache, so the next run has it at once.
    """
    folder = Paths.from_environment(os.environ).cache / name
    found = folder / "bin" / "python"
    if not found.exists():
        venv.create(folder, with_pip=True)
    subprocess.run(
        [found, "-m", "pip", "install", "-q", "-c", "constraints.txt", *requirements],
        check=True,
        cwd=TOP,
    )
    return found
