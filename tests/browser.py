# SPDX-License-Identifier: Apache-2.0
"""A real browser for tests of pages: Chromium without a window."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or ""
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")


def run_browser(folder: Path, *options: str) -> str:
    """What Chromium prints; it has no network, no sandbox (we may be root), and its own home."""
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'home'}", *options],
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    return done.stdout
