# SPDX-License-Identifier: Apache-2.0
"""Errors of the driver, each with its answer of the API."""

from __future__ import annotations


class PartitionError(Exception):
    """The partition driver refuses a request.

    The project that made the request reads the text, so it contains no host, no address and no
    data of another project.

    :ivar detail: more, only for the operator's log.
    """

    def __init__(self, text: str, detail: str = "") -> None:
        super().__init__(text)
        self.detail = detail


class WrongWishError(PartitionError):
    """The request about a network or port can never be met; the API answers 400."""


class PartitionInUseError(PartitionError):
    """Another network or port uses a part of the request; the API answers 409."""


class FabricUnavailableError(PartitionError):
    """No live fabric agent can serve the request; the API answers 503."""
