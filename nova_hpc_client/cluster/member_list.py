# SPDX-License-Identifier: Apache-2.0
"""The host list that each member of a cluster should have, from records of Nova and Neutron."""

from __future__ import annotations

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.hostfiles import choose_address, prefer_ipv4
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember, number_members
from nova_hpc_client.cluster.members.neighbours import order_seats_by_nearness
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_guest.host_list import HEAD, HostList, ListedHost, PublicKeys


def list_members(
    wish: ClusterWish, cluster: Cluster, new_keys: PublicKeys | None = None
) -> HostList:
    """List the members whose address and keys are known, in the order of their nearness.

    The list also contains the head if its address and keys are known. Missing members follow the
    others: a member that will be made has the address of its port, which exists before it.

    :param new_keys: keys of members that will be made for existing ports; None if none will be.
    """
    addresses: dict[int, list[str]] = {number: [] for number in sorted(wish.members)}
    for port in cluster.ports:
        place = wishes.port_place_of(wish.name, port.name)
        if place and place[0] in addresses and port not in cluster.lent:
            addresses[place[0]].extend(port.addresses)
    seats = [seat for seat in order_seats_by_nearness(cluster) if seat.number in addresses]
    keys = dict.fromkeys(addresses, new_keys) | {seat.number: seat.member.keys for seat in seats}
    # Nova shows a member's address only after its host has begun to build it.
    own = {seat.number: choose_address(seat.member, "") for seat in seats}
    order = dict.fromkeys((*own, *addresses))
    hosts = tuple(
        ListedHost(number, address, pair)
        for number in order
        if (pair := keys[number]) and (address := own.get(number) or prefer_ipv4(addresses[number]))
    )
    slots = min((seat.member.vcpus for seat in seats), default=0)
    return HostList(wish.name, hosts, slots, _list_head(number_members(cluster).head))


def _list_head(head: ClusterMember | None) -> ListedHost | None:
    address = choose_address(head, "") if head else ""
    return ListedHost(HEAD, address, head.keys) if head and head.keys and address else None
