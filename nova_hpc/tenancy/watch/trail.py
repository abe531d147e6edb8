# SPDX-License-Identifier: Apache-2.0
"""The growth of one error counter within the last hour."""

from __future__ import annotations

from typing import Final

import attrs

#: Seconds that an error counts. After that the device is well again.
WINDOW: Final = 3600.0


@attrs.frozen
class CounterTrail:
    """The values of a counter, each with the moment when it was first read.

    The kernel's counters only grow, until the device is removed and comes back. A single lower
    value is a misreading, two in a row begin the trail again. For example, 5 0 5 is no growth.
    """

    #: (Moment, value), the values in ascending order; the first is the floor.
    samples: tuple[tuple[float, int], ...]
    #: A lower value of the last look.
    low: int | None = None

    @classmethod
    def begun(cls, moment: float, value: int) -> CounterTrail:
        """The trail of a counter that is read for the first time."""
        return cls(((moment, value),))

    @property
    def floor(self) -> int:
        """The value that growth is counted from."""
        return self.samples[0][1]

    @property
    def still(self) -> bool:
        """Whether nothing has grown within the window."""
        return len(self.samples) == 1 and self.low is None

    def then(self, moment: float, value: int) -> CounterTrail:
        """Return the trail after one more look.

        :param moment: seconds of a clock that only goes forward.
        """
        level = self.samples[-1][1]
        if value < level and self.low is not None:
            return CounterTrail.begun(moment, max(value, self.low))
        samples = (*self.samples, (moment, value)) if value > level else self.samples
        # The last value that is older than the window is the floor.
        older = sum(1 for began, _ in samples[1:] if began <= moment - WINDOW)
        return CounterTrail(samples[older:], value if value < level else None)

    def growth(self, value: int) -> int:
        """New errors of the window, if the counter shows *value* now; never below 0."""
        return max(0, value - self.floor)
