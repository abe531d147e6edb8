# SPDX-License-Identifier: Apache-2.0
"""A process of root becomes another user, who reads everything and writes nothing of root's."""

from __future__ import annotations

import ctypes
import os
from typing import Final

from oslo_privsep import capabilities

#: "nobody" on every distribution.
USER: Final = 65534
#: Of prctl(2): ``PR_CAP_AMBIENT``, ``PR_CAP_AMBIENT_RAISE``, ``PR_SET_SECUREBITS`` and
#: ``SECBIT_NO_SETUID_FIXUP``.
_AMBIENT, _RAISE = 47, 2
_SET_SECUREBITS, _NO_SETUID_FIXUP = 28, 1 << 2


def become_another_user() -> None:
    """Give up root, before the process has threads.

    The interpreter of a test may lie in a directory of root's own, so this process goes on
    to read everything (``CAP_DAC_READ_SEARCH``). It has no other right of root.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    kept = [capabilities.CAP_DAC_READ_SEARCH]
    # Else access(2) looks without that right.
    _prctl(libc, _SET_SECUREBITS, _NO_SETUID_FIXUP)
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    capabilities.drop_all_caps_except(kept, kept, kept)
    # Programs that it starts have the same.
    for right in kept:
        _prctl(libc, _AMBIENT, _RAISE, int(right))


def _prctl(libc: ctypes.CDLL, option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *words) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
