# SPDX-License-Identifier: Apache-2.0
"""The short table of the life cycle says what the whole one says, which tests write."""

from __future__ import annotations

import re

import pytest

from tests.functional.lifecycle import table

WHOLE = table.PAGE.read_text(encoding="utf-8")
#: The page that includes the whole table.
SHORT = table.PAGE.with_name("life-cycle.rst").read_text(encoding="utf-8")
#: Row of the short table -> the actions that it stands for.
STANDS_FOR = {
    "Reboot (soft, hard), stop and start": ("Soft reboot", "Hard reboot", "Stop, start"),
    "Rebuild, rescue": ("Rebuild", "Rescue", "Unrescue"),
    "Pause": ("Pause, unpause",),
    "Suspend": ("Suspend", "Suspend (allowed), resume"),
    "Snapshot": ("Snapshot, live", "Snapshot, cold"),
    "Shelve": ("Shelve", "Unshelve"),
    "Shelve and offload": ("Shelve and offload",),
    "Resize, cold migration": ("Resize up", "Resize down", "Cold migration"),
    "Live migration": ("Live migration",),
    "Evacuation": ("Evacuation",),
    "Attach a direct port": ("Attach a direct port",),
    "Delete": ("Delete", "Delete while the guest is made"),
}


def short_rows() -> dict[str, tuple[str, str]]:
    before = SHORT.partition("Every action\n====")[0]
    found = re.findall(r"^   \* - (.+)\n     - (.+)\n     - (.+)$", before, re.M)
    return {action: (devices, more) for action, devices, more in found[1:]}


@pytest.mark.parametrize("action", STANDS_FOR)
def test_a_row_of_the_short_table(action) -> None:
    whole = {row.action: row for row in table.parse(WHOLE)}
    devices, more = short_rows()[action]
    for name in STANDS_FOR[action]:
        assert whole[name].devices == devices
    always = whole[STANDS_FOR[action][0]].refused == "always"
    assert ("efused" in more) >= always


def test_there_are_no_other_rows() -> None:
    assert list(short_rows()) == list(STANDS_FOR)
