# SPDX-License-Identifier: Apache-2.0
"""Compares the keys in the records of encrypted slots with the guests' present keys.

Each boot of a guest makes a new key pair, and prints the public key on its console. A slot with the
key of an earlier boot has no connection, although all of its records agree.
"""

from __future__ import annotations

import attrs

from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, Pace
from nova_hpc_client.gpu.cloud import ShareCloud, ask_again
from nova_hpc_client.gpu.model import SharedGpu, ShareSlot
from nova_hpc_client.gpu.refusals import ShareError
from nova_hpc_common.outside.text import printable_text
from nova_hpc_guest.gpu import announcements
from nova_hpc_guest.gpu.announcements import KeyDoubtError


def compare_keys(cloud: ShareCloud, share: SharedGpu, pace: Pace) -> SharedGpu:
    """Return the share, with a problem of each slot whose keys differ from its guests' now.

    A guest without a console, or without a key on it, is unknown and gives no problem.
    """
    encrypted = [slot for slot in share.slots if slot.slot is not None and slot.slot.key]
    if share.server is None or not encrypted:
        return share
    own = _hear_key(cloud, share.id, share.name, pace)
    slots = tuple(
        _compare_slot(cloud, share, slot, own, pace)
        if slot in encrypted and not slot.problem
        else slot
        for slot in share.slots
    )
    return attrs.evolve(share, slots=slots)


def _compare_slot(
    cloud: ShareCloud, share: SharedGpu, slot: ShareSlot, own: str, pace: Pace
) -> ShareSlot:
    # Each end stores the other's key: the client's record has the share's, and the slot the
    # client's.
    pointer = slot.client.pointer if slot.client is not None else None
    if slot.client is None or slot.slot is None or pointer is None:
        return slot
    name = printable_text(slot.client.name)
    theirs = _hear_key(cloud, slot.client_id, name, pace)
    for said, kept, end in (
        (own, pointer.key, f"share {share.name}"),
        (theirs, slot.slot.key, name),
    ):
        if said and said != kept:
            problem = f"{end} was rebooted and has another key: attach it again"
            return attrs.evolve(slot, problem=problem, has_old_key=True)
    return slot


def _hear_key(cloud: ShareCloud, server: str, name: str, pace: Pace) -> str:
    """Read the public key of a guest's last boot from its console; "" if unknown."""
    try:
        said = announcements.read_announcements(ask_again(pace, cloud.console, server))
        return announcements.require_one_key(said, name) or ""
    except (KeyDoubtError, ShareError, ClusterCloudError):
        return ""
