# SPDX-License-Identifier: Apache-2.0
"""The programs of the guest that ``gpu`` calls: systemd's, WireGuard's, iproute2's."""

from __future__ import annotations

import subprocess  # nosec B404
import sys
from collections.abc import Mapping
from typing import Final

_TIMEOUT: Final = 60.0
_SHOWN: Final = 300


class ProgramError(Exception):
    """A program that is missing or failed; the text has its name and its own words.

    :ivar status: its exit status; None if it did not run to its end.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class Programs:
    """Runs programs by lists of words, never through a shell.

    :param own: how this command itself is called.
    :param paths: program -> another path, for tests.
    """

    def __init__(self, own: tuple[str, ...] = (), paths: Mapping[str, str] | None = None) -> None:
        self.own = own or (sys.executable, sys.argv[0])
        self._paths = dict(paths or {})

    def run(self, program: str, *words: str, given: str = "") -> str:
        """Run a program with these arguments, and return its output as text.

        :param given: its standard input.
        :raises ProgramError: it is missing, hangs, or ends with another status than 0.
        """
        command = [self._paths.get(program, program), *words]
        try:
            done = subprocess.run(  # nosec B603
                command,
                input=given.encode(),
                capture_output=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ProgramError(f"{program} {' '.join(words[:2])}: {error}") from error
        if done.returncode:
            text = " ".join(done.stderr.decode("utf-8", "replace").split())[:_SHOWN]
            raise ProgramError(
                f"{program} {' '.join(words[:2])} ended with status {done.returncode}: {text}",
                done.returncode,
            )
        return done.stdout.decode("utf-8", "replace")

    def try_run(self, program: str, *words: str) -> str | None:
        """Run a program like :meth:`run`; None if it failed, which does not matter here."""
        try:
            return self.run(program, *words)
        except ProgramError:
            return None
