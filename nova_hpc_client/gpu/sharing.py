# SPDX-License-Identifier: Apache-2.0
"""Creates and deletes shares: a command may end after each step, and each step may be repeated.

The server is created first, with its tag and record from its first moment. So every part always has
an owner. It serves no client until its metadata contain a slot, and no client is attached before
its ports have their filter.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable
from typing import Any, Final

import attrs

from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, LostError, Pace
from nova_hpc_client.gpu import attaching, cleaning, refusals
from nova_hpc_client.gpu.cloud import ProjectView, ShareCloud, ask_again
from nova_hpc_client.gpu.model import SharedGpu, ShareSlot, ShareState, group_name_of
from nova_hpc_client.gpu.refusals import ShareError, format_gpu_command
from nova_hpc_common.outside.text import printable_text
from nova_hpc_guest.gpu import records
from nova_hpc_guest.gpu.records import GpuShare

_SOON, _LATE, _SLOWER = 0.5, 5.0, 1.3
_ASKS: Final = 4


@attrs.frozen
class ShareWish:
    """The description of a share, with ids instead of names.

    :ivar record: the share's record in the metadata of its server.
    :ivar near: id of the server group that the GPU server joins; empty if none.
    :ivar security_groups: ids of further security groups of the user.
    :ivar force: create it even if others could use the GPU.
    """

    record: GpuShare
    flavor: str
    image: str
    networks: tuple[str, ...] = ()
    near: str = ""
    key: str = ""
    zone: str = ""
    security_groups: tuple[str, ...] = ()
    user_data: bytes = b""
    force: bool = False


def server_body_of(wish: ShareWish) -> dict[str, Any]:
    """Build the request body that creates the server of a share (``POST /servers``)."""
    server: dict[str, Any] = {
        "name": wish.record.name,
        "flavorRef": wish.flavor,
        "imageRef": wish.image,
        "metadata": {records.SHARE_KEY: records.write_share(wish.record)},
        "tags": [records.TAG],
        "networks": [{"uuid": network} for network in wish.networks] or "auto",
    }
    texts = {"key_name": wish.key, "availability_zone": wish.zone}
    server |= {key: value for key, value in texts.items() if value}
    if wish.user_data:
        server["user_data"] = base64.b64encode(wish.user_data).decode("ascii")
    body: dict[str, Any] = {"server": server}
    if wish.near:
        body["os:scheduler_hints"] = {"group": wish.near}
    return body


def create_share(
    cloud: ShareCloud, wish: ShareWish, pace: Pace, said: Callable[[str], None]
) -> SharedGpu:
    """Create a share, or finish one that another command has begun.

    :param said: called with the present work.
    :raises ShareError: with the reason, and with the commands for a share that is left.
    """
    view = ask_again(pace, cloud.look)
    same = [
        share
        for share in view.shares
        if share.server is not None and share.name == wish.record.name
    ]
    if len(same) > 1:
        raise ShareError(f"{len(same)} shares are called {wish.record.name}: delete one by its ID")
    if same and same[0].state not in (ShareState.UNFINISHED, ShareState.BUILDING):
        raise ShareError(
            f"there is a share {wish.record.name}, which is {same[0].state.value}: choose another "
            f"name, or {format_gpu_command('share', 'delete', wish.record.name)}"
        )
    for group in view.groups:
        if group.id in wish.security_groups:
            refusals.check_group_of_user(group, None, wish.force)
    if same and same[0].record != wish.record:
        raise ShareError(
            f"share {wish.record.name} was begun with other options: delete it, or give the same"
        )
    server = same[0].id if same else _ask_for_server(cloud, wish, pace)
    try:
        share = _wait_until_active(cloud, server, pace, said)
        said("putting its ports into its security group")
        return _close_share(cloud, share, wish, pace)
    except ShareError as error:
        raise ShareError(
            f"{error}\nthe same command again goes on, and "
            f"{format_gpu_command('share', 'delete', server)} ends it"
        ) from error


def _ask_for_server(cloud: ShareCloud, wish: ShareWish, pace: Pace) -> str:
    """Request the server, and return its id; a lost answer must not lead to two servers."""
    body = server_body_of(wish)
    failure: ClusterCloudError | None = None
    for _ in range(_ASKS):
        try:
            return cloud.make_server(body)
        except LostError as error:
            failure = error
        except ClusterCloudError as error:
            raise ShareError(str(error)) from error
        pace.sleep(2.0)
        # If the lost request took effect, a share with this record exists.
        view = ask_again(pace, cloud.look)
        for share in view.shares:
            if share.record == wish.record:
                return share.id
    raise ShareError(f"the cloud does not answer: {failure}")


def _wait_until_active(
    cloud: ShareCloud, server: str, pace: Pace, said: Callable[[str], None]
) -> SharedGpu:
    begun, interval = pace.clock(), _SOON
    while True:
        share = _share_now(cloud, server, pace)
        if share is None or share.server is None:
            raise ShareError("its server was deleted at this moment")
        status = share.server.status
        if status == "ERROR":
            raise ShareError(printable_text(share.server.fault) or "its server is in error")
        if status == "ACTIVE" and share.ports:
            return share
        said(f"its server is in {status}")
        if pace.limit and pace.clock() - begun > pace.limit:
            raise ShareError(f"after {pace.limit:g} seconds its server is still in {status}")
        pace.sleep(interval)
        interval = min(_LATE, interval * _SLOWER)


def _share_now(cloud: ShareCloud, server: str, pace: Pace) -> SharedGpu | None:
    view = ask_again(pace, cloud.look)
    return next((share for share in view.shares if share.id == server), None)


def _close_share(cloud: ShareCloud, share: SharedGpu, wish: ShareWish, pace: Pace) -> SharedGpu:
    """Make the two security groups, and put the share's ports into its own group.

    The rules are made before a port is put into the group, so its filter is never incomplete.

    :raises ShareError: a port has no filter, and the share is neither encrypted nor forced.
    """
    unfiltered = [port for port in share.ports if not port.filtered]
    if unfiltered and not wish.record.encrypted and not wish.force:
        raise ShareError(
            f"port {unfiltered[0].id} has no filter (its type is not normal, or its port security "
            "is off), so any host in its network could use the GPU: delete the share and create it "
            "with --encrypt, or with --force if the network is a partition of these servers"
        )
    share = _make_group(cloud, share, True, pace)
    share = _make_group(cloud, share, False, pace)
    own, clients = share.own_group, share.clients_group
    if own is None or clients is None:
        raise ShareError("its security groups were deleted at this moment")
    for body in refusals.rule_bodies_of(own.id, clients.id):
        ask_again(pace, cloud.make_rule, body)
    wanted = {own.id, *wish.security_groups}
    for port in share.ports:
        if port.filtered:
            # This also removes the group "default", whose members reach each other.
            take = frozenset(port.groups) - wanted
            cleaning.change_port_groups(cloud, port.id, pace, frozenset(wanted), take)
    found = _share_now(cloud, share.id, pace)
    if found is None:
        raise ShareError("its server was deleted at this moment")
    return found


def _make_group(cloud: ShareCloud, share: SharedGpu, clients: bool, pace: Pace) -> SharedGpu:
    """Create one of a share's two security groups unless it exists; return the share as it is then.

    Whether it exists is checked again after a lost answer.

    :param clients: make the clients' group; otherwise the share's own.
    :raises ShareError: the server is gone, the cloud refuses, or it does not answer.
    """
    name = group_name_of(share.id, clients)
    for _ in range(_ASKS):
        found = _share_now(cloud, share.id, pace)
        if found is None:
            raise ShareError("its server was deleted at this moment")
        if (found.clients_group if clients else found.own_group) is not None:
            return found
        try:
            cloud.make_security_group(name, f"nova-hpc: share {share.name}")
        except LostError:
            pace.sleep(1.0)
        except ClusterCloudError as error:
            raise ShareError(str(error)) from error
    raise ShareError(f"security group {name} cannot be made: the cloud does not answer")


def delete_share(
    cloud: ShareCloud, name: str, force: bool, pace: Pace, said: Callable[[str], None]
) -> None:
    """Delete a share: slots, server, security groups.

    :param force: delete it even with slots; their clients are detached.
    :param said: called with the present work.
    :raises ShareError: with the reason, and with the command that goes on.
    """
    view = ask_again(pace, cloud.look)
    share = refusals.find_share(view.shares, name)
    used = [slot for slot in share.slots if slot.is_taken and slot.client is not None]
    if used and not force:
        names = ", ".join(printable_text(slot.client.name) for slot in used if slot.client)
        raise ShareError(
            f"share {share.name} has the clients {names}, whose jobs would end: detach them "
            "first, or use --force"
        )
    try:
        _end_share(cloud, view, share, pace, said)
    except ShareError as error:
        again = format_gpu_command("share", "delete", "--force", share.id)
        raise ShareError(f"{error}\n{again} goes on") from error


def _end_share(
    cloud: ShareCloud, view: ProjectView, share: SharedGpu, pace: Pace, said: Callable[[str], None]
) -> None:
    """Detach the clients, delete the server, wait until it is gone, and remove the leftovers.

    The security groups are last, because ports of the server and of clients use them.
    """
    for slot in share.slots:
        if slot.client is not None:
            said(f"detaching {printable_text(slot.client.name)}")
            _take_what_can_be(cloud, view, share, slot, pace)
    said("deleting its server")
    ask_again(pace, cloud.delete_server, share.id)
    begun, interval = pace.clock(), _SOON
    while not ask_again(pace, cloud.is_gone, share.id):
        if pace.limit and pace.clock() - begun > pace.limit:
            raise ShareError(f"after {pace.limit:g} seconds its server is still there")
        pace.sleep(interval)
        interval = min(_LATE, interval * _SLOWER)
    left = ask_again(pace, cloud.look)
    for other in left.shares:
        if other.id == share.id:
            cleaning.end_share_remains(cloud, left, other, pace)


def _take_what_can_be(
    cloud: ShareCloud, view: ProjectView, share: SharedGpu, slot: ShareSlot, pace: Pace
) -> None:
    """Detach a client, as far as possible.

    If only the share's own items are left, the deletion of its server removes them: Nova may refuse
    to change its metadata. An error counts only if the client's access or record is left.
    """
    try:
        attaching.take_slot(cloud, view, share, slot, pace)
    except ShareError:
        found = ask_again(pace, cloud.look)
        open_still = any(
            other.id == share.id
            and left.client_id == slot.client_id
            and (left.points or left.may_connect)
            for other in found.shares
            for left in other.slots
        )
        if open_still:
            raise


def format_since(seconds: int) -> str:
    """Format a time in a record (Unix time, seconds) in ISO 8601; "" if unknown."""
    if not 0 < seconds < 1 << 36:
        return ""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
