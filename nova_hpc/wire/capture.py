# SPDX-License-Identifier: Apache-2.0
"""The list of replaced parts of a saved node, in the archive of ``nova-hpc inventory --save``.

A number in place of a serial number is counted again in every archive: the third card gets
the third number, whichever card it is. So it distinguishes devices within one archive, and
identifies no device across archives. Code that needs *which* hardware it is must check here first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Final

from nova_hpc.topology.files import FileError, FileTree
from nova_hpc_common.wire.version import WireDocument, WireError

CAPTURE: Final = WireDocument(
    name="capture manifest",
    lives="nova-hpc-capture.json in an archive of nova-hpc inventory --save",
    writer="nova_hpc.wire.capture:write_capture_note",
    readers=("nova_hpc.wire.capture:read_capture_note",),
    schema="nova-hpc/capture",
    longest=1 << 12,
    cure="save the node again: nova-hpc inventory --save FILE",
)

#: Its path in an archive, beside ``sys`` and ``proc``.
PLACE: Final = "/nova-hpc-capture.json"

SERIALS: Final = "serial-numbers"
ADDRESSES: Final = "hardware-addresses"
HOST: Final = "host-name"
#: Kinds of values that can be replaced. ADDRESSES: MACs and GUIDs.
KINDS: Final = frozenset({SERIALS, ADDRESSES, HOST})

#: The host's name in an archive.
NAME: Final = "node"

_STAND_IN: Final = re.compile(r"(?:serial:)?02(?:00){4}[0-9a-f]{6}(?:/fn\d)?", re.ASCII)


def stand_in(number: int, size: int) -> bytes:
    """Return the *number*-th replacement for an identity (serial number, MAC) of *size* bytes.

    It stands in a saved archive, and is a locally administered number, which no maker assigns.
    """
    return b"\x02" + number.to_bytes(size - 1, "big")


def stands_in(serial: str | None) -> bool:
    """Whether a serial number, or a hardware name made from one, is such a replacement.

    It also works if the archive does not list its replaced parts: no maker has such numbers.
    """
    return serial is not None and _STAND_IN.fullmatch(serial) is not None


def write_capture_note(replaced: Collection[str]) -> str:
    """Format the list of the kinds of identities replaced in an archive; ASCII, with a newline."""
    return json.dumps({**CAPTURE.head(), "replaced": sorted(replaced)}, indent=2) + "\n"


def read_capture_note(text: object) -> frozenset[str]:
    """Parse the kinds of identities that were replaced in an archive, also kinds of later releases.

    :raises nova_hpc_common.wire.version.LaterError: only a later release reads it.
    :raises WireError: it is broken.
    """
    kinds = CAPTURE.load(text).get("replaced")
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise CAPTURE.broken("does not list the replaced values")
    return frozenset(kinds)


def replaced_kinds_of(tree: FileTree) -> frozenset[str] | None:
    """Return the kinds of identities that were replaced in a saved inventory.

    None if *tree* has no list of them, as on a running machine.

    An unreadable list may have contained anything, so everything counts as replaced.
    """
    try:
        if not tree.exists(PLACE):
            return None
        return read_capture_note(tree.text(PLACE))
    except (FileError, WireError):
        return KINDS
