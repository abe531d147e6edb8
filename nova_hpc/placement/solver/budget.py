"""The bound of the exact search, in steps and not in seconds."""

from __future__ import annotations

from typing import Final

#: Steps that the exact search of one call of choose() may take, a fraction of a
#: second: pairs of states that are merged, and states that are looked at. Servers
#: of a few GPUs and virtual functions need some thousand.
MAX_WORK: Final = 1_500_000


class TooMuchError(Exception):
    """The exact search would take more than its bound."""


class Budget:
    """Counts steps, so that the bound does not depend on the machine."""

    def __init__(self) -> None:
        self.left = MAX_WORK

    def spend(self, steps: int) -> None:
        """Count *steps*; TooMuchError beyond the bound."""
        self.left -= steps
        if self.left < 0:
            raise TooMuchError
