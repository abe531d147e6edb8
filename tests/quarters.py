# SPDX-License-Identifier: Apache-2.0
"""The quarter of the tests that the standard set leaves out on a day."""

from __future__ import annotations

import datetime
import zlib


def is_left_out(name: str, day: datetime.date) -> bool:
    """Whether the test of this name waits for another day; it does on one of any four in a row."""
    return (zlib.crc32(name.encode()) + day.toordinal()) % 4 == 0
