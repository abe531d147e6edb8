# SPDX-License-Identifier: Apache-2.0
"""Attaches clients to a share, and detaches them.

A command may end after each step, and each step may be repeated. A slot's item is written first and
deleted last. So ``list`` shows the owner of everything that a killed command leaves open.

Nova writes all items of a server at once (``update_instance_metadata`` of nova/compute/api.py). Of
two commands that attach at the same moment, one may overwrite the other's item. So each command
reads the items again at the end, and writes its own if it is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import attrs

from nova_hpc_client.cluster.life_cycle.run import Pace
from nova_hpc_client.gpu import cleaning, refusals
from nova_hpc_client.gpu.cloud import ProjectView, ShareCloud, ask_again
from nova_hpc_client.gpu.model import GpuServer, SharedGpu, ShareSlot
from nova_hpc_client.gpu.refusals import Meeting, ShareError
from nova_hpc_common.outside.text import printable_text
from nova_hpc_guest.gpu import announcements, records
from nova_hpc_guest.gpu.announcements import Announced, KeyDoubtError
from nova_hpc_guest.gpu.records import GpuClient, GpuSlot

#: Attempts to write a client's item if another writer overwrites it, or if there are too many.
_TRIES: Final = 6
#: Seconds after which a write that began earlier has surely ended.
_SETTLES: Final = 1.0
_KEY_PAUSE: Final = 5.0


@attrs.frozen
class AttachWish:
    """The user's options for attaching clients to a share.

    :ivar memory: MiB of each slot; 0 for the share's own setting.
    :ivar encrypt: encrypt the connection, even if the share does not require it.
    :ivar force: accept a network path that others could use, too.
    """

    memory: int = 0
    encrypt: bool = False
    force: bool = False


def attach_client(
    cloud: ShareCloud,
    share_name: str,
    client_name: str,
    wish: AttachWish,
    pace: Pace,
    said: Callable[[str], None],
    now: Callable[[], float] = time.time,
) -> None:
    """Attach a server to a share: give it a slot, a network path and a record.

    The phases: check the request, read both consoles, write the slot, open the way, write the
    client's record, and check that the slot is still there.

    :param said: called with the present work.
    :param now: returns the present Unix time in seconds.
    :raises ShareError: with the reason; nothing has changed, or the text contains the command that
        goes on.
    """
    view = ask_again(pace, cloud.look)
    share = refusals.find_share(view.shares, share_name)
    client = ask_again(pace, cloud.gpu_server, client_name)
    refusals.check_share(share)
    refusals.check_client(share, client, cloud.project, view.shares)
    subnets = ask_again(pace, cloud.subnets)
    meeting = refusals.find_meeting(share, client, view.ports_of(client.id), subnets)
    encrypt = wish.encrypt or (share.record is not None and share.record.encrypted)
    refusals.check_way(share, meeting, view.groups, encrypt, wish.force)
    refusals.check_room(share, client, meeting, wish.memory)
    said(f"{printable_text(client.name)}: reading the consoles")
    keys = _hear_guests(cloud, share, client, wish, encrypt, pace)
    again = refusals.format_gpu_command("attach", share.name, client.name)
    try:
        said(f"{printable_text(client.name)}: attaching")
        _write_slot(cloud, share, client, meeting, wish.memory, keys[0], pace, now)
        _open_way(cloud, share, meeting, pace)
        pointer = GpuClient(
            *(share.id, meeting.share_address, meeting.client_address, meeting.slot_port),
            *(share.record.engine if share.record else "", keys[1]),
        )
        text = records.write_client(pointer)
        ask_again(pace, cloud.set_item, client.id, records.CLIENT_KEY, text)
        _keep_slot(cloud, share, client, pace, (meeting, wish.memory, keys[0]), now)
    except _NoRoomError as error:
        raise ShareError(str(error)) from error
    except ShareError as error:
        raise ShareError(f"{error}\n{again} goes on, and detach takes it back") from error


class _NoRoomError(ShareError):
    """Another client got the last slot; this client's record was removed again."""


def _hear_guests(
    cloud: ShareCloud,
    share: SharedGpu,
    client: GpuServer,
    wish: AttachWish,
    encrypt: bool,
    pace: Pace,
) -> tuple[str, str]:
    """Read public keys of the client and of the share from their consoles; "" without encryption.

    A guest prints its key after its boot, so the consoles are read again until both have one.

    :raises ShareError: an announcement is refused, or a guest announces no key in time.
    """
    begun = pace.clock()
    while True:
        share_said, client_said = (
            announcements.read_announcements(ask_again(pace, cloud.console, server))
            for server in (share.id, client.id)
        )
        refusals.check_announced(share, client, wish.memory, share_said, client_said)
        if not encrypt:
            return "", ""
        share_key, client_key = (
            _require_key(said, name)
            for said, name in ((share_said, share.name), (client_said, client.name))
        )
        if share_key and client_key:
            return client_key, share_key
        if pace.limit and pace.clock() - begun > pace.limit:
            name = client.name if share_key else share.name
            raise ShareError(
                f"the guest of {printable_text(name)} has printed no key on its console in "
                f"{pace.limit:g} seconds: its image needs WireGuard's tools and nova-hpc-guest "
                "gpu, and the cloud has to keep consoles"
            )
        pace.sleep(_KEY_PAUSE)


def _require_key(said: Announced, name: str) -> str | None:
    try:
        return announcements.require_one_key(said, printable_text(name))
    except KeyDoubtError as error:
        raise ShareError(str(error)) from error


def _write_slot(
    cloud: ShareCloud,
    share: SharedGpu,
    client: GpuServer,
    meeting: Meeting,
    memory: int,
    key: str,
    pace: Pace,
    now: Callable[[], float],
) -> None:
    """Write the slot, and check that the share has room for it.

    If two clients take the last slot at the same moment, both see too many slots. The later one by
    :func:`_rank_of` removes its item; the earlier one reads again until it is gone.

    :raises _NoRoomError: there is no room; the item is removed unless it existed before.
    """
    most = share.record.slots if share.record else 0
    item = records.slot_key_of(client.id)
    before = share.server.metadata.get(item) if share.server else None
    since = _since_of(before) or int(now())
    text = records.write_slot(
        GpuSlot(meeting.client_address, meeting.slot_port, since, memory, key)
    )
    for _ in range(_TRIES):
        ask_again(pace, cloud.set_item, share.id, item, text)
        pace.sleep(_SETTLES)
        slots = _slots_now(cloud, share, pace)
        if _is_written(slots.get(client.id), text) and len(slots) <= most:
            return
        if len(slots) > most and _rank_of(client.id, slots) >= most:
            break
        # A client that came later sees the same, and removes its item.
    if before is None:
        ask_again(pace, cloud.delete_item, share.id, item)
    raise _NoRoomError(
        f"share {share.name} has {most} slots, and another client took the last one at this moment"
    )


def _is_written(slot: ShareSlot | None, text: str) -> bool:
    return slot is not None and slot.slot is not None and records.write_slot(slot.slot) == text


def _slots_now(cloud: ShareCloud, share: SharedGpu, pace: Pace) -> dict[str, ShareSlot]:
    view = ask_again(pace, cloud.look)
    for other in view.shares:
        if other.id == share.id and other.server is not None:
            return {slot.client_id: slot for slot in other.slots if slot.is_taken}
    raise ShareError(f"share {share.name} was deleted at this moment")


def _rank_of(client: str, slots: dict[str, ShareSlot]) -> int:
    """Return the rank of a client by the age of its slot, from 0; the same for every client."""
    order = sorted(
        (slot.slot.since if slot.slot is not None else 0, client_id)
        for client_id, slot in slots.items()
    )
    return [client_id for _, client_id in order].index(client) if client in slots else len(slots)


def _since_of(text: str | None) -> int:
    try:
        return records.read_slot(text).since
    except records.RecordError:
        return 0


def _open_way(cloud: ShareCloud, share: SharedGpu, meeting: Meeting, pace: Pace) -> None:
    clients = share.clients_group
    if clients is not None and meeting.client_port.filtered:
        cleaning.change_port_groups(
            cloud, meeting.client_port.id, pace, add=frozenset({clients.id})
        )


def _keep_slot(
    cloud: ShareCloud,
    share: SharedGpu,
    client: GpuServer,
    pace: Pace,
    made: tuple[Meeting, int, str],
    now: Callable[[], float],
) -> None:
    """Check that no other writer has overwritten the slot, and write it again if one has."""
    for _ in range(_TRIES):
        if client.id in _slots_now(cloud, share, pace):
            return
        _write_slot(cloud, share, client, *made, pace, now)
    raise ShareError(f"the slot of {printable_text(client.name)} is lost again and again")


def detach_client(cloud: ShareCloud, share_name: str, client_name: str, pace: Pace) -> None:
    """Detach a server from a share; parts that are gone already are ignored.

    :param client_name: name or id of the server; the id of one that was deleted.
    :raises ShareError: with the reason, and with the command that goes on.
    """
    view = ask_again(pace, cloud.look)
    share = refusals.find_share(view.shares, share_name)
    slot = _find_slot(share, client_name)
    try:
        take_slot(cloud, view, share, slot, pace)
    except ShareError as error:
        again = refusals.format_gpu_command("detach", share.id, slot.client_id)
        raise ShareError(f"{error}\n{again} goes on") from error


def take_slot(
    cloud: ShareCloud, view: ProjectView, share: SharedGpu, slot: ShareSlot, pace: Pace
) -> None:
    """Remove a client from its share: its record first, then its access, and its slot last.

    :raises ShareError: the cloud refuses a request, or does not answer.
    """
    if slot.client is not None and slot.points:
        ask_again(pace, cloud.delete_item, slot.client_id, records.CLIENT_KEY)
    clients = share.clients_group
    if clients is not None:
        for port in view.ports_of(slot.client_id):
            if clients.id in port.groups:
                cleaning.change_port_groups(cloud, port.id, pace, take=frozenset({clients.id}))
    if slot.is_taken:
        ask_again(pace, cloud.delete_item, share.id, records.slot_key_of(slot.client_id))


def _find_slot(share: SharedGpu, name: str) -> ShareSlot:
    found = [
        slot
        for slot in share.slots
        if name == slot.client_id or (slot.client is not None and name == slot.client.name)
    ]
    if not found:
        raise ShareError(
            f"{printable_text(name)} is not attached to share {share.name}; see "
            f"{refusals.format_gpu_command('share', 'show', share.name)}"
        )
    if len(found) > 1:
        ids = ", ".join(slot.client_id for slot in found)
        raise ShareError(
            f"{len(found)} clients are called {printable_text(name)}: use the ID, one of {ids}"
        )
    return found[0]
