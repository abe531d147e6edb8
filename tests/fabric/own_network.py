# SPDX-License-Identifier: Apache-2.0
"""A network namespace for the simulated fabric and all that works on it.

ibsim drops a message for a client with ten unread ones (``net.unix.max_dgram_qlen``), and opensm
waits for the answer without end: a kernel with a real adapter would give it a time-out. Seen in 3
of 60 histories beside other work, when a subnet manager joined or left. In a namespace the limit
can be higher, and the machine keeps its own.
"""

import contextlib
import ctypes
import subprocess
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_LIMIT = Path("/proc/sys/net/unix/max_dgram_qlen")
_MESSAGES = 1024


@contextlib.contextmanager
def own_network():
    """Let this thread, and all that it starts, live in a namespace of its own.

    :raises OSError: without root.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def check(status):
        if status:
            raise OSError(ctypes.get_errno(), "a network namespace")

    with Path("/proc/self/ns/net").open("rb") as before:
        check(libc.unshare(_CLONE_NEWNET))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            _LIMIT.write_text(f"{_MESSAGES}\n")
            yield
        finally:
            check(libc.setns(before.fileno(), _CLONE_NEWNET))
