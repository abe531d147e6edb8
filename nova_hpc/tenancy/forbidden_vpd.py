# SPDX-License-Identifier: Apache-2.0
"""Reads the VPD of a function with a time limit.

The kernel queries the device word by word during the read. A device that does not
answer blocks the reader. So a separate process reads the VPD, and is killed or left behind when
its time is up.
"""

from __future__ import annotations

import base64
import binascii
import sys
from pathlib import Path
from typing import Final

from nova_hpc.tenancy.hygiene import reset
from nova_hpc.tenancy.hygiene.reset import ResetError
from nova_hpc.topology import handles, vpd
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError
from nova_hpc.topology.model import normalise_address

#: Seconds for one function.
PATIENCE: Final = 10.0
#: It reads only the read-only part, because the device may not answer beyond it. So it
#: follows the lengths in the data that it has read.
_READER: Final = f"""\
import base64, os, sys
handle = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
data, wanted = b"", 3
while len(data) < min(wanted, {vpd.LONGEST}):
    piece = os.pread(handle, min(wanted, {vpd.LONGEST}) - len(data), len(data))
    if not piece:
        break
    data += piece
    if len(data) < wanted:
        continue
    place = 0
    while place + 3 <= len(data) and data[place] & 0x80:
        end = place + 3 + int.from_bytes(data[place + 1 : place + 3], "little")
        wanted, tag, place = end, data[place], end
    if place == len(data) and tag != 0x90:
        wanted = place + 3
sys.stdout.write(base64.b64encode(data).decode())
"""


def read_vpd_in_time(root: Path, address: str, timeout: float = PATIENCE) -> bytes | None:
    """Return the VPD of a function up to the end of its read-only part; None if it has none.

    :param root: the folder that contains ``sys``.
    :param timeout: seconds.
    :raises FileError: the function has a VPD, but it cannot be read in time.
    """
    try:
        with handles.kernel_file(root, f"{DEVICES}/{normalise_address(address)}/vpd") as file:
            if file is None:
                return None
            argv = [sys.executable, "-I", "-S", "-c", _READER, handles.path_of_handle(file)]
            status, text = reset.run_with_deadline(argv, timeout, [file])
        if status:
            words = text.strip().splitlines() or [f"status {status}"]
            raise FileError(f"its VPD cannot be read: {words[-1][:160]}")
        return base64.b64decode(text, validate=True)
    except ResetError as error:
        raise FileError(f"its VPD cannot be read: {error}") from error
    except binascii.Error as error:
        raise FileError("its VPD cannot be read: the reader said nonsense") from error
