# SPDX-License-Identifier: Apache-2.0
"""Announces planned work on a host to the owners of its servers, and takes announcements back.

The announcement is a tag of each server (:mod:`nova_hpc_common.wire.planned_work`), which Nova's
API writes. One server's refusal ends no other's announcement. Tags of work on a device are
nova-compute's, and stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

import attrs

from nova_hpc_common.wire.planned_work import PlannedWork, read_planned_tags
from nova_hpc_tools.cloud.drain_api import DrainCloud, DrainServer
from nova_hpc_tools.fabric.nova_aggregates import NovaApiError

#: Statuses in which Nova changes tags (nova/api/openstack/compute/server_tags.py). A server in a
#: move has another one, and may come back to the host of its tag.
_AT_REST: Final = ("ACTIVE", "PAUSED", "SUSPENDED", "SHUTOFF")


@attrs.frozen
class Announcement:
    """The result for one server.

    :ivar time: the time that is announced to its owner; "" for an announcement that is taken back.
    :ivar failure: the reason why its tags are not as they should be; "" if they are.
    """

    server: DrainServer
    time: str
    failure: str = ""


@attrs.frozen
class TagChange:
    """The tags of a server that are removed and added, in this order."""

    remove: tuple[str, ...] = ()
    add: tuple[str, ...] = ()


def decide_tags(server: DrainServer, time: str) -> TagChange:
    """Return the change of a server's tags for an announced time. Pure.

    :param time: UTC, as ``2026-12-04T08:00Z``; "" if no work on the host is planned any more.
    """
    wanted = PlannedWork.on_host(time, server.host_id) if time else None
    present = [work for work in read_planned_tags(server.tags) if not work.of_device]
    return TagChange(
        # Nova allows 50 tags, so the old one makes room for the new one.
        remove=tuple(work.tag for work in present if work != wanted),
        add=() if wanted is None or wanted in present else (wanted.tag,),
    )


def announce_work(cloud: DrainCloud, host: str, time: str) -> Iterator[Announcement]:
    """Tell the owners of all servers on *host* a time, or that nothing is planned any more.

    The caller gets each result as soon as it is there. A server that is deleted meanwhile has none.

    :param time: as for :func:`decide_tags`.
    :raises NovaApiError: Nova does not list the servers.
    """
    for server in cloud.servers_of(host):
        change = decide_tags(server, time)
        if not (time or change.remove):
            continue
        try:
            _change_tags(cloud, server, change)
        except NovaApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                yield Announcement(server, time, _explain_failure(error))
        else:
            yield Announcement(server, time)


def clear_moved_servers(cloud: DrainCloud) -> Iterator[Announcement]:
    """Remove announcements from servers of the cloud that have left the announced host.

    Other servers keep theirs until a later call; readers leave them out.

    :returns: the results, as in :func:`announce_work`.
    :raises NovaApiError: Nova does not list the servers.
    """
    for server in cloud.all_servers():
        former = tuple(
            work.tag for work in read_planned_tags(server.tags) if not work.concerns(server.host_id)
        )
        if not former or server.status not in _AT_REST:
            continue
        try:
            _change_tags(cloud, server, TagChange(remove=former))
        except NovaApiError as error:
            yield Announcement(server, "", _explain_failure(error))
        else:
            yield Announcement(server, "")


def _change_tags(cloud: DrainCloud, server: DrainServer, change: TagChange) -> None:
    for tag in change.remove:
        cloud.remove_tag(server.uuid, tag)
    for tag in change.add:
        cloud.add_tag(server.uuid, tag)


def _explain_failure(error: NovaApiError) -> str:
    if error.status == HTTPStatus.BAD_REQUEST:
        return f"{error}; its owner has to remove a tag first"
    return str(error)
