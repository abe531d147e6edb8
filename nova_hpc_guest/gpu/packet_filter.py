# SPDX-License-Identifier: Apache-2.0
"""Whether ``IPAddressDeny=`` of a unit has an effect on this machine.

Only this setting closes the ports that engines open on all addresses. A systemd without a BPF
firewall, or without control groups of version 2, only logs a warning and starts the unit. So a
unit with that setting tries to send to itself: a packet that arrives has passed no filter.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from ..files import Root
from . import units
from .system import ProgramError, Programs

UNIT: Final = "nova-hpc-gpu-filter.service"

#: Exit status of a unit that could send, and of one that could not; others prove nothing.
OPEN, CLOSED = 3, 4
_PATIENCE: Final = 1.0
_CURE: Final = (
    "take an image with systemd 235 or newer, a kernel with CONFIG_CGROUP_BPF, and control groups "
    "of version 2"
)


def try_to_send() -> int:
    """Send a packet to itself; :data:`OPEN` if it arrives, else :data:`CLOSED`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        one.settimeout(_PATIENCE)
        with contextlib.suppress(OSError):
            one.sendto(b"x", one.getsockname())
            one.recv(1)
            return OPEN
    return CLOSED


class PacketFilter:
    """The state of this machine's filter, which is tested until it is good."""

    def __init__(self) -> None:
        self._is_closed = False

    def explain_open_ports(self, root: Root, programs: Programs) -> str | None:
        """Explain why units have no packet filter, or why that is unknown; else None."""
        if self._is_closed:
            return None
        if try_to_send() != OPEN:
            return "this machine cannot send to itself, so its filter of packets is unknown"
        try:
            status = _run_unit(root, programs)
        except ProgramError as error:
            return f"the effect of IPAddressDeny= is unknown: {error}"
        finally:
            root.remove(f"{units.FOLDER}/{UNIT}")
        self._is_closed = status == str(CLOSED)
        if self._is_closed:
            return None
        if status == str(OPEN):
            return f"IPAddressDeny= has no effect here, so engines' ports are open: {_CURE}"
        return f"the effect of IPAddressDeny= is unknown: {UNIT} ended with status {status}"


def _run_unit(root: Root, programs: Programs) -> str:
    """Run the unit to its end; its status in digits.

    :raises ProgramError: systemd does not run it.
    """
    # A unit that is not active any more is forgotten, with its status.
    text = (
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nIPAddressDeny=any\n"
        f"SuccessExitStatus={OPEN} {CLOSED}\n"
        f"ExecStart={units.quote_command((*programs.own, 'gpu', 'filter'))}\n"
    )
    root.write(f"{units.FOLDER}/{UNIT}", text.encode())
    programs.run("systemctl", "daemon-reload")
    programs.run("systemctl", "start", UNIT)
    words = ("--property=ExecMainStatus", "--value", UNIT)
    status = programs.run("systemctl", "show", *words).strip()
    programs.run("systemctl", "stop", UNIT)
    return status
