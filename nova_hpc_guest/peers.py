# SPDX-License-Identifier: Apache-2.0
"""The servers that share this machine's memory, for people and for programs.

The table is in the shared memory itself, and each of them can write it, so it is only a hint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .document import SHARED_REASONS, DocumentError, GuestDocument, SharedMemory
from .segment import SegmentHead, SegmentView
from .show import format_size
from .terms import DOCUMENT


def require_segment(
    document: GuestDocument, view: SegmentView | None
) -> tuple[SharedMemory, SegmentHead, SegmentView]:
    """Return the promised shared memory, its head, and the reading of it.

    :raises DocumentError: the memory is missing, or it cannot be read.
    """
    if document.not_shared is not None:
        reason = SHARED_REASONS.get(document.not_shared, document.not_shared)
        raise DocumentError(f"this machine was started without shared memory: {reason}")
    if document.shared_memory is None:
        raise DocumentError(f"{DOCUMENT} promises no shared memory (hpc:shared_memory)")
    if view is None or view.device is None:
        raise DocumentError(
            "shared memory was promised, and this kernel has made no device of it; "
            "nova-hpc-guest check says more"
        )
    if view.head is None:
        hint = "; run this as root, or as a user of the group hpc" if view.denied else ""
        raise DocumentError(f"{view.device.path}: {view.problem}{hint}")
    return document.shared_memory, view.head, view


def format_peers(promise: SharedMemory, head: SegmentHead, view: SegmentView) -> Iterator[str]:
    """Yield lines for people about the segment and the server of each part."""
    size = format_size(head.part_bytes >> 10)
    mapping = "" if view.mapping is None else f", {view.mapping}"
    yield f"segment {head.uuid}: {head.parts} parts of {size}{mapping}"
    for part, holder in enumerate(view.holders):
        own = " (this machine)" if part == promise.part else ""
        yield f"part {part}: {holder or 'free'}{own}"


def build_peers_data(promise: SharedMemory, head: SegmentHead, view: SegmentView) -> dict[str, Any]:
    """Return the data of :func:`format_peers` as a JSON object."""
    return {
        "schema": "nova-hpc/guest-peers",
        "version": 1,
        "segment": head.uuid,
        "part_bytes": head.part_bytes,
        "part": promise.part,
        "mapping": view.mapping,
        "parts": [
            {"part": part, "server": holder, "this": part == promise.part}
            for part, holder in enumerate(view.holders)
        ],
    }
