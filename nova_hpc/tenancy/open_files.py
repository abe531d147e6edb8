# SPDX-License-Identifier: Apache-2.0
"""Processes of the host that have files of devices open."""

from __future__ import annotations

import os
from pathlib import Path


def find_open_files(root: Path, wanted: set[str]) -> tuple[dict[str, list[str]], int]:
    """Find processes of the host that have files open.

    :param wanted: paths of the files.
    :returns: path -> the processes that have it open; and the number of unreadable processes.
    """
    opened: dict[str, list[str]] = {}
    closed = 0
    for folder in sorted(root.glob("proc/[0-9]*"), key=lambda path: (len(path.name), path.name)):
        try:
            targets = {os.readlink(link) for link in (folder / "fd").iterdir()}  # noqa: PTH115
        except FileNotFoundError:
            continue  # the process has ended
        except OSError:
            closed += 1
            continue
        for path in sorted(targets & wanted):
            opened.setdefault(path, []).append(
                f"process {folder.name} ({_name_of(folder)}) has {path} open"
            )
    return opened, closed


def _name_of(folder: Path) -> str:
    try:
        return (folder / "comm").read_text("utf-8", "replace").strip() or "?"
    except OSError:
        return "?"
