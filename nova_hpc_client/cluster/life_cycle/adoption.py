# SPDX-License-Identifier: Apache-2.0
"""Adopts a server group that another tool made, and releases it again.

Both commands only write or remove marks: they create, rename and delete nothing. They store nothing
between two steps, so users can repeat each after a client died. Each is refused before the first
mark if Nova would refuse to write it to a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.run import ClusterCloud, ClusterError, Pace
from nova_hpc_client.cluster.life_cycle.steps import (
    Act,
    Done,
    DropMarks,
    KeepPort,
    MarkServer,
    Move,
    ReleasePort,
    Step,
    Stuck,
)
from nova_hpc_client.cluster.members import foreign_group
from nova_hpc_client.cluster.members.foreign_group import AdoptionError, GroupRecords
from nova_hpc_client.cluster.members.model import Cluster
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.outside.text import printable_text, shell_command
from nova_hpc_common.wire.cluster_wish import ClusterWish


def adopt_group(
    cloud: ClusterCloud,
    records: GroupRecords,
    user_data: str | None,
    taken: Sequence[str],
    pace: Pace,
) -> Cluster:
    """Make the servers of a group the members of a cluster.

    :param records: the present group.
    :param user_data: digest of the members' user data; empty if they have none; None if not given.
    :param taken: names of the project's other clusters.
    :raises ClusterError: the servers cannot be a cluster, or the command was interrupted; the text
        contains the cure, or the commands that go on or undo it.
    """
    try:
        wish = foreign_group.read_foreign_wish(records, user_data, taken)
        foreign_group.find_unmarked(records, wish)
    except AdoptionError as error:
        raise ClusterError(f"{error}; nothing has changed") from error

    def plan(cluster: Cluster) -> Move:
        current = cloud.read_group(records.id)
        try:
            if foreign_group.read_foreign_wish(current, user_data, taken) != wish:
                return Stuck("the server group has changed meanwhile")
            unmarked = foreign_group.find_unmarked(current, wish)
        except AdoptionError as error:
            return Stuck(str(error))
        steps = tuple(MarkServer(str(server["id"]), str(server["name"])) for server in unmarked)
        return Act(steps) if steps else Done()

    try:
        return life_cycle_run.run_until_done(cloud, records.id, wish, Secrets(), pace, plan)
    except ClusterError as error:
        raise ClusterError(f"{error}\n{format_adoption_ways(records.id)}") from error


def format_adoption_ways(group: str) -> str:
    """The commands that finish an adoption or undo it, in a sentence."""
    command = ("openstack", "hpc", "cluster", "adopt")
    undo = shell_command(*command, "--undo", group)
    return f"{shell_command(*command, group)} goes on, {undo} undoes it"


def format_what_stays(cluster: Cluster) -> str:
    """The parts of an adopted cluster that stay after its deletion, in a sentence."""
    if cluster.group is None:
        return "ports that another tool made are left: this tool deletes them"
    return (
        f"server group {printable_text(cluster.group.name)} is left, and so are ports that another "
        "tool made: this tool deletes them"
    )


def release_cluster(cloud: ClusterCloud, cluster: Cluster, pace: Pace) -> None:
    """Remove all marks of an adopted cluster, and nothing else.

    :raises ClusterError: it was not adopted, or a member's marks cannot be removed.
    """
    if not cluster.adopted:
        raise ClusterError(
            f"cluster {cluster.name} was not adopted: "
            f"{shell_command('openstack', 'hpc', 'cluster', 'delete', cluster.id)} ends it"
        )

    def plan(current: Cluster) -> Move:
        staying = [member for member in current.members if not member.going]
        try:
            for member in staying:
                foreign_group.check_writable(member)
        except AdoptionError as error:
            return Stuck(str(error))
        steps: list[Step] = [ReleasePort(port.id) for port in (*current.ports, *current.kept)]
        steps += [DropMarks(member.id, member.name) for member in staying]
        return Act(tuple(steps)) if steps else Done()

    life_cycle_run.run_until_done(cloud, cluster.id, life_cycle_run.NO_WISH, Secrets(), pace, plan)


def keep_ports(
    cloud: ClusterCloud,
    cluster: Cluster,
    wish: ClusterWish,
    servers: Mapping[int, str],
    pace: Pace,
) -> None:
    """Mark the ports of members to replace, so that their new servers get them again.

    Nova deletes the ports that it has made itself. Other ports stay after their server.

    :param servers: number of a member -> id of its server.
    :raises ClusterError: a new server would lack a part of the old one; nothing has changed.
    """
    records = cloud.read_group(cluster.id)
    if wish.flavor not in records.flavors.values():
        raise ClusterError(
            f"flavor {printable_text(wish.flavor)} is not there any more, so no member can be "
            f"replaced; {shell_command('openstack', 'server', 'resize')} gives members another one"
        )
    by_id = {str(server["id"]): server for server in records.servers}
    wanted: dict[str, tuple[int, int]] = {}
    try:
        for number, server_id in servers.items():
            if server_id in by_id:
                places = place_ports(wish, by_id[server_id], records.ports)
                wanted |= {port: (number, place) for port, place in places.items()}
    except AdoptionError as error:
        raise ClusterError(f"{error}; nothing has changed") from error

    def plan(current: Cluster) -> Move:
        marked = {port.id: port.place for port in current.kept}
        steps = tuple(
            KeepPort(port, *place) for port, place in wanted.items() if marked.get(port) != place
        )
        return Act(steps) if steps else Done()

    made = {port.id for port in cluster.ports}
    wanted = {port: place for port, place in wanted.items() if port not in made}
    life_cycle_run.run_until_done(cloud, cluster.id, wish, Secrets(), pace, plan)


def place_ports(
    wish: ClusterWish, server: Mapping[str, Any], ports: Sequence[Mapping[str, Any]]
) -> Mapping[str, int]:
    """Assign a member's ports to the cluster's networks.

    :param server: the member's record of Nova's API.
    :param ports: the project's ports, records of Neutron's API.
    :returns: id of a port -> index of its network among the networks of *wish*.
    :raises AdoptionError: a port is in no such network, or the member has volumes.
    """
    name, server_id = printable_text(server["name"]), str(server["id"])
    for volume in server.get("os-extended-volumes:volumes_attached") or ():
        cure = ("openstack", "server", "remove", "volume", server_id, str(volume["id"]))
        raise AdoptionError(
            f"{name} has a volume, which its new server would not have: {shell_command(*cure)}"
        )
    free = dict(enumerate(wish.nics))
    places: dict[str, int] = {}
    for port in foreign_group.ports_of_server(server, ports):
        nic = foreign_group.nic_of_port(port)
        place = next((at for at, wanted in free.items() if wanted == nic), None)
        if place is None:
            cure = ("openstack", "server", "remove", "port", server_id, str(port["id"]))
            raise AdoptionError(
                f"{name} has a port in network {printable_text(nic.network)} that other members do "
                f"not have: {shell_command(*cure)}"
            )
        del free[place]
        places[str(port["id"])] = place
    return places
