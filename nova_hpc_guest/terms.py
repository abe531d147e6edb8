# SPDX-License-Identifier: Apache-2.0
"""Names that the cloud, which writes the document of a guest, and the guest share."""

from __future__ import annotations

import re
from typing import Final

#: Names in the firmware's configuration interface; fw_cfg takes 55 characters.
PREFIX: Final = "opt/org.nova-hpc/"
DOCUMENT: Final = PREFIX + "guest.json"
NCCL: Final = PREFIX + "nccl-topology.xml"
#: ``busid`` of the device with that number in the list of the document.
PLACEHOLDER: Final = "device-{}"
#: Words of the document; a reader takes no others.
MAC: Final = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}", re.ASCII)
#: The number of a P_Key, without the bit of membership; not 0 and not the default one.
PKEY: Final = re.compile(r"0x(?!0000|7fff)[0-7][0-9a-f]{3}", re.ASCII)
ROLE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
