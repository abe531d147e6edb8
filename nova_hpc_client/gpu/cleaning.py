# SPDX-License-Identifier: Apache-2.0
"""Finds and removes the parts of a share that deleted servers leave.

The next command of any user of the project that changes a share does this. A server counts as
deleted only if Nova answers 404 for its id: a list of servers may be older than a slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from nova_hpc_client.cluster.life_cycle.run import Pace
from nova_hpc_client.gpu.cloud import ProjectView, ShareCloud, ask_again
from nova_hpc_client.gpu.model import GpuPort, SharedGpu, ShareSlot
from nova_hpc_client.gpu.refusals import ShareError
from nova_hpc_common.outside.text import printable_text
from nova_hpc_guest.gpu import records

#: Attempts to change a port's groups while other clients change them, too.
_TRIES: Final = 5


@attrs.frozen
class ShareLeftover:
    """A part of a share that remains after a server was deleted.

    :ivar text: its description, for people.
    :ivar server: id of the deleted server.
    :ivar slot: the slot to remove; None if the whole share is left over.
    """

    text: str
    server: str
    share: SharedGpu
    slot: ShareSlot | None = None


def find_leftovers(view: ProjectView) -> Iterator[ShareLeftover]:
    """Find the parts of shares whose servers are missing in *view*."""
    for share in view.shares:
        name = printable_text(share.name)
        if share.server is None:
            yield ShareLeftover(f"the former share {share.id}", share.id, share)
            continue
        for slot in share.slots:
            if slot.client is None and slot.is_taken:
                text = f"slot of share {name} for server {slot.client_id}"
                yield ShareLeftover(text, slot.client_id, share, slot)


def clean_leftovers(cloud: ShareCloud, view: ProjectView, pace: Pace) -> list[str]:
    """Remove the parts of shares that deleted servers left, and return a line for each.

    A leftover that cannot be removed now stays in the output of ``list``, and does not stop the
    command: Nova refuses changes to a share that is shelved or locked.
    """
    cleaned = []
    for leftover in find_leftovers(view):
        try:
            if _take_back(cloud, view, leftover, pace):
                cleaned.append(f"took back {leftover.text}")
        except ShareError as error:
            cleaned.append(f"could not take back {leftover.text}: {error}")
    return cleaned


def _take_back(cloud: ShareCloud, view: ProjectView, leftover: ShareLeftover, pace: Pace) -> bool:
    owner = view.servers.get(leftover.server)
    if owner is None and not ask_again(pace, cloud.is_gone, leftover.server):
        return False
    if leftover.slot is not None:
        key = records.slot_key_of(leftover.slot.client_id)
        ask_again(pace, cloud.delete_item, leftover.share.id, key)
    else:
        end_share_remains(cloud, view, leftover.share, pace)
    return True


def end_share_remains(cloud: ShareCloud, view: ProjectView, share: SharedGpu, pace: Pace) -> None:
    """Remove the clients' records, their access and the security groups of a deleted share.

    :raises ShareError: the cloud refuses a request, or does not answer.
    """
    ids = {group.id for group in share.groups}
    for slot in share.slots:
        if slot.client is not None and slot.points:
            client = slot.client.id
            ask_again(pace, cloud.delete_item, client, records.CLIENT_KEY)
    for port in view.ports:
        if ids & set(port.groups):
            change_port_groups(cloud, port.id, pace, take=frozenset(ids))
    # A rule of the share's own group names the clients' group, so the own group is deleted first.
    for group in sorted(share.groups, key=lambda group: group.is_clients):
        ask_again(pace, cloud.delete_security_group, group.id)


def change_port_groups(
    cloud: ShareCloud,
    port_id: str,
    pace: Pace,
    add: frozenset[str] = frozenset(),
    take: frozenset[str] = frozenset(),
) -> None:
    """Add a port to security groups, or remove it. Changes by others at the same time are kept.

    :param add: ids of the groups to add.
    :param take: ids of the groups to remove.
    :raises ShareError: the cloud refuses a request, or others change the port again and again.
    """
    for _ in range(_TRIES):
        port = _find_port(cloud, port_id, pace)
        if port is None:
            return
        groups = [group for group in port.groups if group not in take]
        groups += sorted(add - set(groups))
        if tuple(groups) == port.groups:
            return
        if ask_again(pace, cloud.set_port_groups, port, groups):
            return
    raise ShareError(f"port {port_id} is changed by others all the time: try again")


def _find_port(cloud: ShareCloud, port_id: str, pace: Pace) -> GpuPort | None:
    view = ask_again(pace, cloud.look)
    return next((port for port in view.ports if port.id == port_id), None)
