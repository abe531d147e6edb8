# SPDX-License-Identifier: Apache-2.0
"""The mark of a server whose guest did not answer a request to release devices.

QEMU keeps such a request, and the guest's next reset completes it. The mark stands until the
guest is started again. The missing devices are read from the guest, and the expected ones from
Nova: the mark only shows that there was a request.
"""

from __future__ import annotations

from typing import Final

import attrs

from nova_hpc_common.wire.version import LONGEST_METADATA, WireDocument, write_compact_json

UNPLUG: Final = WireDocument(
    name="unplug mark",
    lives="system_metadata['hpc_unplug'] of the server",
    writer="nova_hpc.wire.unplug:Unplug.dumps",
    readers=("nova_hpc.wire.unplug:read_unplug",),
    key="v",
    limit=LONGEST_METADATA,
)

#: The key in the server's ``system_metadata``.
KEY: Final = "hpc_unplug"


@attrs.frozen
class Unplug:
    """The number of unplug requests that QEMU may still keep for a server."""

    #: Number of devices that the guest was requested to release and did not.
    asked: int

    def dumps(self) -> str:
        """Format the number of requests for Nova's database: ASCII, within its limit."""
        body = {UNPLUG.key: UNPLUG.version, "asked": self.asked}
        return write_compact_json(body)


def read_unplug(text: object) -> Unplug | None:
    """Read the stored number of unplug requests; None if there is no text, so no request.

    :raises nova_hpc_common.wire.version.WireError: it cannot be read: a request is possible.
    """
    if text is None:
        return None
    asked = UNPLUG.load(text).get("asked")
    if type(asked) is not int or asked < 0:
        raise UNPLUG.broken("has no count of the requested devices")
    return Unplug(asked)
