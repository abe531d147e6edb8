# SPDX-License-Identifier: Apache-2.0
"""Sets the ACS control registers of ports from the operator's choice, and reads them back.

The caller passes only the choice, and no address. This module computes the values from the
present state of the node, so a caller with fewer rights cannot have anything else
written. A register that changes between reading and writing is not touched.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.topology import confspace, handles, peer_wish, sysfs
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError
from nova_hpc.topology.peer_wish import AcsChange, PeerWish

_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
_SIZE: Final = 2


class PeerError(Exception):
    """A register was not set, or has a wrong value; the text names the port."""


@attrs.frozen
class PeerOutcome:
    """The outcome of setting the ACS registers of switch ports, in texts for operators."""

    #: Ports that were set by this call.
    made: tuple[str, ...] = ()
    #: Port -> why it could not be set.
    failed: dict[str, str] = attrs.field(factory=dict, hash=False)
    #: Ports that cannot be set at all, or must not be; see :attr:`.PeerPlan.texts`.
    lacks: tuple[str, ...] = ()


def apply_peer_wish(root: Path, wish: PeerWish) -> PeerOutcome:
    """Set a node's ports to the operator's choice, as far as possible. Never raises.

    :param root: the folder that contains ``sys`` and ``proc``.
    """
    plan = peer_wish.plan_peer_changes(sysfs.read_sysfs_node(root), wish)
    made: list[str] = []
    failed: dict[str, str] = {}
    for change in plan.changes:
        try:
            write_acs_control(root, change)
        except PeerError as error:
            failed[change.port] = str(error)
        else:
            made.append(change.port)
    after = peer_wish.plan_peer_changes(sysfs.read_sysfs_node(root), wish) if made else plan
    for change in after.changes:
        failed.setdefault(change.port, f"{change.port}: reads back as {change.before:#06x}")
    return PeerOutcome(tuple(made), failed, after.texts)


def write_acs_control(root: Path, change: AcsChange) -> None:
    """Write one register and read it back.

    :raises PeerError: it has another value now.
    """
    if (change.before ^ change.after) & ~peer_wish.CHANGED:
        raise PeerError(f"{change.port}: {change.after:#06x} changes bits that are not ours")
    try:
        with handles.kernel_file(root, f"{DEVICES}/{change.port}/config") as file:
            if file is None:
                raise PeerError(f"{change.port}: it is gone")
            handle = os.open(handles.path_of_handle(file), _FLAGS)
            try:
                _write_acs_checked(handle, change)
            finally:
                os.close(handle)
    except (FileError, OSError) as error:
        raise PeerError(f"{change.port}: its ACS control cannot be written: {error}") from error


def _write_acs_checked(handle: int, change: AcsChange) -> None:
    at = confspace.acs_control_at(confspace.skim_config(handle))
    if at is None:
        raise PeerError(f"{change.port}: it has no ACS any more")
    if _read_acs_control(handle, at) != change.before:
        raise PeerError(f"{change.port}: its ACS control has changed in the meantime")
    os.pwrite(handle, change.after.to_bytes(_SIZE, "little"), at)
    read_back = _read_acs_control(handle, at)
    if read_back != change.after:
        raise PeerError(
            f"{change.port}: its ACS control reads back as {read_back:#06x}, not "
            f"{change.after:#06x}"
        )


def _read_acs_control(handle: int, at: int) -> int:
    return int.from_bytes(os.pread(handle, _SIZE, at), "little")
