# SPDX-License-Identifier: Apache-2.0
"""The members' own reports, read from their consoles.

An image reports if it runs ``nova-hpc-guest check`` at boot and prints the output to the console.
Nova's API returns the console's last lines to the server's owner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from nova_hpc_client.cluster.life_cycle.steps import Done, Move, Stuck, Wait
from nova_hpc_client.cluster.members.model import ClusterMember
from nova_hpc_common.outside.text import printable_text

#: Lines of ``nova-hpc-guest check``; a console may put a time or a name before them.
_GOOD: Final = re.compile(r"\bAs promised: \d+ devices")
_WRONG: Final = re.compile(r"\bWRONG [a-z]+: (.{1,200})")


def read_console_verdict(console: str) -> bool | str | None:
    """Read the verdict of ``nova-hpc-guest check`` from a console.

    The last verdict counts, because a guest may have booted twice.

    :returns: True if the check passed, the text of the problem if it failed, or None if the console
        contains no verdict yet.
    """
    last_word: bool | str | None = None
    for line in console.splitlines():
        wrong = _WRONG.search(line)
        if wrong:
            # The guest's users can write to its console, so the text is not trusted.
            last_word = printable_text(wrong[1].strip())
        elif _GOOD.search(line):
            last_word = True
    return last_word


class ConsoleChecks:
    """Reads each member's console until its check has passed, and never again afterwards."""

    def __init__(self) -> None:
        self._passed: set[str] = set()

    def judge(self, members: Iterable[ClusterMember], console: Callable[[str], str]) -> Move:
        """Whether all members have passed: Done, a wait, or the first failed check.

        :param console: returns the last lines of a server's console.
        """
        waiting = 0
        for member in members:
            if member.id in self._passed or member.going:
                continue
            answer = read_console_verdict(console(member.id))
            if answer is True:
                self._passed.add(member.id)
            elif answer is None:
                waiting += 1
            else:
                return Stuck(f"{member.shown} is not as promised: {answer}")
        return Wait(f"{waiting} members have not said that they are well") if waiting else Done()
