# SPDX-License-Identifier: Apache-2.0
"""The time between two changes of the subnet manager's file."""

from __future__ import annotations

import attrs


@attrs.define
class PassSpacing:
    """Chooses the time between changes of the file, so that many binds at once lead to few changes.

    The first change is made at once. While changes follow one another the time between them
    doubles. It is at least the duration of the last round with its reports, up to 4 s: if Neutron
    is slow, one change covers more binds. After a quiet time it starts from the least again.
    """

    least: float = 0.1
    most: float = 1.6
    #: Below ``[hpc_partitions]bind_wait``, the time that a bind waits for its row.
    most_of_slow: float = 4.0
    _gap: float = 0.0
    _last: float = float("-inf")
    _free_at: float = float("-inf")

    def note_change(self, moment: float) -> None:
        """Record the time at which the file was changed."""
        quiet = moment - max(self._last, self._free_at) > self._gap + self.most
        self._gap = self.least if quiet else min(self.most, max(self.least, 2 * self._gap))
        self._last = moment
        self._free_at = moment + self._gap

    def note_end(self, begun: float, moment: float) -> None:
        """Record the end of the round with the last change, after its reports."""
        pause = max(self._gap, min(self.most_of_slow, moment - begun))
        self._free_at = moment + pause

    def time_left(self, moment: float) -> float:
        """Return the seconds until the subnet manager's file may be changed again; 0.0 if now."""
        return max(0.0, self._free_at - moment)
