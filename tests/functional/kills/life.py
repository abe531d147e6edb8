# SPDX-License-Identifier: Apache-2.0
"""Lives as another process sees them: started by a fork, ordered, killed.

The process that forks has imported Nova and started none of it, so a life
begins in seconds. It must have no other threads.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

#: Seconds after which a silent life is taken for hung.
PATIENCE = 300.0
#: File of a world with the warnings and errors of all services.
LOG = "log"


class LifeError(Exception):
    """A life did not do what it was told; the text holds its traceback."""


class KilledError(Exception):
    """The fault agent has killed the life."""


class Life:
    """A process with all services on one world."""

    def __init__(
        self, folder: Path, compute: bool = True, stage: bool = False, vendor: bool = False
    ) -> None:
        """Start the services.

        :param compute: nova-compute, too.
        :param stage: GPUs have a stage between two servers.
        :param vendor: only a vendor's cleaner resets devices, and the services are not root.

        :raises LifeError: they do not start.
        """
        folder.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_begin, args=(folder, theirs, self._pipe, compute, stage, vendor)
        )
        self._process.start()
        theirs.close()
        self._answer()

    def ask(self, word: str, *arguments: Any) -> Any:
        """Order something, and wait for it.

        :raises KilledError: it was killed meanwhile.
        :raises LifeError: it failed.
        """
        try:
            self._pipe.send((word, *arguments))
        except BrokenPipeError:
            raise KilledError from None
        return self._answer()

    def _answer(self) -> Any:
        if not self._pipe.poll(PATIENCE):
            self.kill()
            raise LifeError(f"no answer for {PATIENCE:.0f} seconds")
        try:
            word, result = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(PATIENCE)
            if self._process.exitcode == -signal.SIGKILL:
                raise KilledError from None
            raise LifeError(f"it ended with status {self._process.exitcode}") from None
        if word != "ok":
            raise LifeError(str(result))
        return result

    def kill(self) -> None:
        """SIGKILL from outside."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def _begin(
    folder: Path, orders: Any, other_end: Any, compute: bool, stage: bool, vendor: bool
) -> None:
    other_end.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # It lives for seconds, on a heap of all of Nova.
    gc.disable()
    log = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from tests.functional.kills.world import serve

    try:
        serve(folder, orders, compute, stage, vendor)
    finally:
        # No thread of any service may hold the process.
        os._exit(0)
