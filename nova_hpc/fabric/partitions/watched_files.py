# SPDX-License-Identifier: Apache-2.0
"""Notice that others have changed a file: by its inode, size and time, read twice a second.

The module does not use inotify, which would report every draft of the agent's own in the folder.
It would also miss changes by another machine on a shared disk. A look costs microseconds, and its
delay is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import attrs

#: Seconds between two looks: a change by others is noticed within this time.
WATCH_INTERVAL: Final = 0.5

#: Inode, size, time of the last change of the content, and of the inode; None for an absent file.
_Mark = tuple[int, int, int, int] | None


@attrs.define
class WatchedFiles:
    """Detects changes of files by other programs, such as opensm's files of options.

    :ivar list_paths: the files to watch; called each time, because other files may name them.
    """

    list_paths: Callable[[], Sequence[Path]]
    _marks: dict[Path, _Mark] = attrs.field(factory=dict)

    def mark_files(self) -> None:
        """Store the present state of the files (size, times, inode)."""
        self._marks = {path: _mark_of(path) for path in self.list_paths()}

    def find_changes(self) -> tuple[Path, ...]:
        """Return the files that changed since their marking. New files are marked, not reported."""
        return tuple(
            path
            for path in self.list_paths()
            if self._marks.setdefault(path, mark := _mark_of(path)) != mark
        )


def _mark_of(path: Path) -> _Mark:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
