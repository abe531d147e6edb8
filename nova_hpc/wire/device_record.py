# SPDX-License-Identifier: Apache-2.0
"""A node's addition to Nova's own record of a PCI device: the device's tags.

Nova's pools contain only free devices, so the place of a device in use would be known only
on its node. The record has room for it: Nova keeps further data of a driver about a device as
text in ``extra_info``, and leaves it unchanged while a server has the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nova_hpc.wire.tags import DEVICE_TAGS
from nova_hpc_common.wire.version import WireDocument, WireError, write_compact_json

DEVICE_RECORD: Final = WireDocument(
    name="device record",
    lives="pci_devices.extra_info['hpc'] of Nova's database",
    writer="nova_hpc.wire.device_record:write_device_record",
    readers=("nova_hpc.wire.device_record:read_device_record",),
    # Its keys are device tags, which have a version of their own.
    absent=1,
    limit=4096,
)

#: The key in ``extra_info``.
KEY: Final = "hpc"

_PREFIX: Final = "hpc_"
#: Stands for unreadable tags: the reader of tags refuses it by name.
_BROKEN: Final = {DEVICE_TAGS.key: "unreadable"}


def write_device_record(tags: Mapping[str, str]) -> str:
    """Format the ``hpc_*`` tags of a device as text for Nova's database.

    All tags are under one key, so that no old tag remains.
    """
    own = {key: value for key, value in sorted(tags.items()) if key.startswith(_PREFIX)}
    return write_compact_json(own)


def read_device_record(text: object) -> dict[str, str]:
    """Parse the ``hpc_*`` tags in a device's record in Nova's database; {} if none. Never raises.

    For an unreadable record it returns tags of a version that no release reads: the place of the
    device is then unknown, and it is not taken for an ordinary device.
    """
    if text is None:
        return {}
    try:
        tags = DEVICE_RECORD.load(text)
    except WireError:
        return _BROKEN.copy()
    if not all(isinstance(value, str) for value in tags.values()):
        return _BROKEN.copy()
    return {key: value for key, value in tags.items() if key.startswith(_PREFIX)}
