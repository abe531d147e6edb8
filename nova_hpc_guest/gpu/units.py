# SPDX-License-Identifier: Apache-2.0
"""The systemd units of slots: one engine process of its own for each client.

They are below ``/run``, so none is older than the boot. A unit has no privileges, and the kernel
drops every packet that is not its client's: both engines open ports on all addresses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from .engines import Engine
from .records import UUID

FOLDER: Final = "/run/systemd/system"
_NAME: Final = re.compile(rf"nova-hpc-gpu@({UUID.pattern})\.service", re.ASCII)
_SLICE: Final = re.compile(r'^Environment="CUDA_VISIBLE_DEVICES=([^"]*)"$', re.MULTILINE)


class SlotUnit(NamedTuple):
    """The parts of a slot's unit; all texts were checked before."""

    client: str
    #: The one address that may connect.
    peer: str
    user: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = {}
    devices: tuple[str, ...] = ()
    #: A unit that it needs, and with which it ends; empty for none.
    needed: str = ""
    #: Directories that it may write into.
    writable: tuple[str, ...] = ()


def unit_name_of(client: str) -> str:
    """Return the name of the systemd unit of this client's slot."""
    return f"nova-hpc-gpu@{client}.service"


def client_of_unit(name: str) -> str | None:
    """Return the client of this slot's unit; None if the unit is not a slot's."""
    match = _NAME.fullmatch(name)
    return match[1] if match else None


def slice_in_unit(text: str) -> str:
    """Return the MIG slice in the text of a unit; "" if it has none."""
    match = _SLICE.search(text)
    return match[1] if match else ""


def memory_in_unit(text: str, engine: Engine) -> int:
    """Return the MiB to which a unit limits its slot; 0 without a limit."""
    for key, value in engine.memory_environment.items():
        before, field, after = _quote_word(f"{key}={value}").partition("{mib}")
        line = rf"^Environment={re.escape(before)}([0-9]{{1,9}}){re.escape(after)}$"
        match = re.search(line, text, re.MULTILINE) if field else None
        if match is not None:
            return int(match[1])
    return 0


def format_unit(unit: SlotUnit) -> str:
    """Format the text of a slot's systemd unit."""
    lines = [
        "# Written by nova-hpc-guest gpu serve; it goes with the slot.",
        "[Unit]",
        f"Description=Slot of server {unit.client} on this shared GPU",
        *((f"BindsTo={unit.needed}", f"After={unit.needed}") if unit.needed else ()),
        "[Service]",
        "Type=exec",
        f"User={unit.user}",
        *(
            f"Environment={_quote_word(f'{key}={value}')}"
            for key, value in sorted(unit.environment.items())
        ),
        f"ExecStart={quote_command(unit.command)}",
        # Both engines' sessions live in processes of their own: all end together.
        "KillMode=control-group",
        "TimeoutStopSec=5",
        "IPAddressDeny=any",
        f"IPAddressAllow={unit.peer}",
        "PrivateTmp=yes",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "ProtectSystem=strict",
        *(f"ReadWritePaths={folder}" for folder in unit.writable),
        "ProtectHome=yes",
        "ProtectControlGroups=yes",
        "ProtectKernelModules=yes",
        "ProtectKernelTunables=yes",
        "LockPersonality=yes",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
        "RestrictSUIDSGID=yes",
        "DevicePolicy=closed",
        *(f"DeviceAllow={device} rw" for device in unit.devices),
    ]
    return "".join(f"{line}\n" for line in lines)


def quote_command(words: Sequence[str]) -> str:
    """Quote the words of a command as systemd reads them, joined by spaces."""
    return " ".join(_quote_word(word, command=True) for word in words)


def _quote_word(text: str, command: bool = False) -> str:
    """Quote a word as systemd reads it (systemd.syntax(7)), whatever it contains.

    :param command: for a command line, where ``$`` is special.
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped.replace("$", "$$") if command else escaped}"'
