# SPDX-License-Identifier: Apache-2.0
"""What the driver refuses, and what the API says of it."""

from __future__ import annotations


class PartitionError(Exception):
    """A wish that cannot be met.

    The text goes to whoever asked, so it names no host, no address and nothing of another
    project's.

    :ivar detail: more, for the operator's log alone.
    """

    def __init__(self, text: str, detail: str = "") -> None:
        super().__init__(text)
        self.detail = detail


class WrongWishError(PartitionError):
    """It can never be met: 400."""


class PartitionInUseError(PartitionError):
    """Something else has what it needs: 409."""


class FabricUnavailableError(PartitionError):
    """Nobody is there who could do it: 503."""
