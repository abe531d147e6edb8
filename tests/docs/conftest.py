# SPDX-License-Identifier: Apache-2.0
"""Where the built documentation is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built pages: docs/build/html, or what NOVA_HPC_SITE names."""
    folder = Path(os.environ.get("NOVA_HPC_SITE") or TOP / "docs/build/html").resolve()
    assert (folder / "index.html").is_file(), f"{folder} has no built pages: tox -e docs"
    return folder
