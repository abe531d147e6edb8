# SPDX-License-Identifier: Apache-2.0
"""A server group of another tool, and the ``ClusterWish`` that describes its servers. Pure.

Members of a cluster are alike. If one of them differs in a property that a new member would get, no
``ClusterWish`` describes them. The group is refused with the server's name and the cure.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.members import marks, model
from nova_hpc_client.cluster.members.server_state import Standing
from nova_hpc_common.outside.text import printable_text, shell_command
from nova_hpc_common.wire import cluster_wish, numbers
from nova_hpc_common.wire.cluster_wish import NAME, NONE, UNKNOWN, ClusterWish, Nic
from nova_hpc_common.wire.version import WireError

_Record = Mapping[str, Any]
_NUMBERED: Final = re.compile(r"(.+)-(0|[1-9][0-9]{0,5})", re.ASCII | re.DOTALL)
#: Nova changes metadata and tags of servers with these statuses (nova/compute/api.py,
#: ``update_instance_metadata``; nova/api/openstack/compute/server_tags.py).
_WRITABLE: Final = ("ACTIVE", "PAUSED", "SUSPENDED", "SHUTOFF")
#: Nova shows it only to users whom the operator's policy allows to see it.
_USER_DATA: Final = "OS-EXT-SRV-ATTR:user_data"
_MOST_SHOWN: Final = 3


class AdoptionError(ValueError):
    """The servers cannot be a cluster; the text contains the reason and the cure."""


@attrs.frozen
class GroupRecords:
    """A server group and its servers, as Nova and Neutron show them.

    :ivar ports: the ports of the whole project.
    :ivar hidden: ids of the group's servers that the project does not see.
    :ivar flavors: name of a flavor -> its id, for the flavors that still exist.
    """

    group: _Record
    servers: tuple[_Record, ...]
    ports: tuple[_Record, ...] = ()
    hidden: tuple[str, ...] = ()
    flavors: Mapping[str, str] = attrs.Factory(dict)

    @property
    def id(self) -> str:
        """Id of the server group in these records."""
        return str(self.group["id"])


def read_foreign_wish(
    records: GroupRecords, user_data: str | None = None, taken: Sequence[str] = ()
) -> ClusterWish:
    """Return the ``ClusterWish`` that describes a group's servers: the present one, or a newer one.

    :param user_data: digest of the user data that the user gave; empty if members have none; None
        if the user gave no option.
    :param taken: names of the project's other clusters.
    :raises AdoptionError: the servers cannot be a cluster.
    """
    group_name = printable_text(records.group["name"])
    if str(records.group["name"]).startswith(cluster_wish.PREFIX):
        raise AdoptionError(f"server group {group_name} is a cluster already")
    if records.hidden:
        raise AdoptionError(
            f"server group {group_name} has {', '.join(records.hidden[:_MOST_SHOWN])}, which is no "
            "server of this project: adopt groups whose servers are all of one project"
        )
    if not records.servers:
        raise AdoptionError(f"server group {group_name} has no servers")
    for server in records.servers:
        _check_mark(records, server)
    name, by_number = _number_servers(records.servers)
    if name in taken:
        raise AdoptionError(
            f"there is a cluster {name} already: give these servers another name, "
            f"{_format_rename_command(records.servers[0])}"
        )
    servers = [by_number[number] for number in sorted(by_number)]
    wish = _describe_servers(records, name, frozenset(by_number), servers, user_data)
    return _continue_wish(records, wish, user_data)


def _describe_servers(
    records: GroupRecords,
    name: str,
    members: frozenset[int],
    servers: Sequence[_Record],
    user_data: str | None,
) -> ClusterWish:
    """Build the ``ClusterWish`` from the properties that all servers have in common.

    :param members: numbers of the members.
    :param servers: the members' records, by their numbers.
    :raises AdoptionError: a server differs in a property.
    """
    facts = {fact.noun: _read_common(fact, records, servers) for fact in _FACTS}
    # Key pairs belong to users. Other users of the project may have scaled the cluster since.
    _read_common(
        _USER, records, [server for server in servers if marks.mark_of_server(server) is None]
    )
    read_data = str(facts["user data"])
    if user_data is not None and read_data not in (UNKNOWN, user_data):
        raise AdoptionError("--user-data is not what these servers were created with")
    flavor = str((servers[0].get("flavor") or {}).get("original_name") or "")
    nics = nics_of_server(servers[0], records.ports)
    return ClusterWish(
        name=name,
        members=members,
        flavor=records.flavors.get(flavor, flavor),
        image=_read_image(servers[0]),
        nics=nics,
        networks=cluster_wish.AUTO if nics else NONE,
        key=str(servers[0].get("key_name") or ""),
        zone=_read_zone(servers[0]),
        security_groups=_read_security_groups(servers[0]),
        user_data=read_data if user_data is None else user_data,
        volumes="" if _read_image(servers[0]) else UNKNOWN,
        config_drive=_has_config_drive(servers[0]),
        adopted=True,
    )


def _continue_wish(records: GroupRecords, wish: ClusterWish, user_data: str | None) -> ClusterWish:
    """Return members' present ``ClusterWish`` if it describes them, else its next generation."""
    found_wishes = [
        member.wish
        for member in map(model.read_member, records.servers)
        if member.wish is not None and member.wish.adopted
    ]
    if found_wishes:
        newest = max(found_wishes, key=lambda found_wish: found_wish.order)
        unsaid = user_data is None and wish.user_data == UNKNOWN
        candidate = attrs.evolve(
            wish,
            user_data=newest.user_data if unsaid else wish.user_data,
            nics=newest.nics if _sorted_nics(newest.nics) == _sorted_nics(wish.nics) else wish.nics,
            turn=newest.turn,
            healed=newest.healed,
            generation=newest.generation,
        )
        if candidate != newest and newest.turn:
            command = ("openstack", "hpc", "cluster", newest.turn_verb, newest.name)
            raise AdoptionError(
                f"its {newest.turn_verb} is not finished: {shell_command(*command)}"
            )
        more = int(candidate != newest)
        wish = attrs.evolve(candidate, generation=newest.generation + more)
    try:
        if cluster_wish.from_metadata(cluster_wish.to_metadata(wish, records.id)) != wish:
            raise AdoptionError("names of these servers' key or groups cannot be written down")
    except WireError as error:
        raise AdoptionError(str(error)) from error
    return wish


def find_unmarked(records: GroupRecords, wish: ClusterWish) -> list[_Record]:
    """Find the servers without the complete mark (tag and metadata) of this ``ClusterWish``.

    :raises AdoptionError: Nova would refuse to write them; the text contains the cure.
    """
    tag = wishes.member_tag_of(records.id, adopted=True)
    items = cluster_wish.to_metadata(wish, records.id)
    unmarked = [
        server
        for server in records.servers
        if tag not in (server.get("tags") or ())
        or not items.items() <= (server.get("metadata") or {}).items()
    ]
    for server in unmarked:
        check_writable(model.read_member(server))
    return unmarked


def check_writable(member: model.ClusterMember) -> None:
    """Check that Nova accepts marks for a server in its present state.

    :raises AdoptionError: Nova would refuse them; the text contains the cure.
    """
    if member.locked:
        cure = shell_command("openstack", "server", "unlock", member.id)
        raise AdoptionError(f"{member.shown} is locked: {cure}")
    if member.failed:
        cure = shell_command("openstack", "server", "show", member.id)
        raise AdoptionError(f"{member.shown} is in error; see {cure}")
    if member.going:
        raise AdoptionError(f"{member.shown} is being deleted: wait until it is gone")
    if member.task or member.building or member.standing is Standing.CHANGES:
        raise AdoptionError(f"{member.shown} is {member.state_text}: wait until Nova has finished")
    if member.status not in _WRITABLE:
        cure = shell_command("openstack", "server", *member.meaning.verb.split(), member.id)
        raise AdoptionError(f"{member.shown} is {member.state_text}: {cure}")


def _check_mark(records: GroupRecords, server: _Record) -> None:
    """Check that a server has no mark, or the mark of this adopted group.

    :raises AdoptionError: it belongs to another cluster, or Nova would refuse the mark.
    """
    member = model.read_member(server)
    if member.problem:
        raise AdoptionError(f"{member.shown}: {member.problem}")
    mark = marks.mark_of_server(server)
    if mark is None:
        check_writable(member)
    elif mark != marks.ClusterMark(records.id, adopted=True):
        command = shell_command("openstack", "hpc", "cluster", "show", mark.group)
        raise AdoptionError(f"{member.shown} is a member of another cluster: {command}")


def _number_servers(servers: Sequence[_Record]) -> tuple[str, Mapping[int, _Record]]:
    """Return the name of the cluster, and the servers by their numbers as members.

    :raises AdoptionError: their names are not PREFIX-N with one prefix and different numbers.
    """
    parts: dict[str, tuple[str, int]] = {}
    for server in servers:
        match = _NUMBERED.fullmatch(str(server["name"]))
        if match is None or not NAME.fullmatch(match[1]) or int(match[2]) > numbers.MOST:
            raise AdoptionError(
                f"{_shown_server(server)} is not called NAME-1, NAME-2 and so on, as members are: "
                f"{_format_rename_command(server)}"
            )
        parts[str(server["id"])] = (match[1], int(match[2]))
    prefix = Counter(part[0] for part in parts.values()).most_common(1)[0][0]
    by_number: dict[int, _Record] = {}
    for server in servers:
        own_prefix, number = parts[str(server["id"])]
        if own_prefix != prefix:
            raise AdoptionError(
                f"{_shown_server(server)} is not called {prefix}-N, as the others are: "
                f"{_format_rename_command(server, prefix)}"
            )
        if number in by_number:
            raise AdoptionError(
                f"{_shown_server(server)} and server {by_number[number]['id']} have one name: "
                f"{_format_rename_command(server, prefix)}"
            )
        by_number[number] = server
    return prefix, by_number


def _shown_server(server: _Record) -> str:
    return f"server {server['id']} ({printable_text(server['name'])})"


def _format_rename_command(server: _Record, prefix: str = "NAME") -> str:
    return shell_command("openstack", "server", "set", "--name", f"{prefix}-N", str(server["id"]))


# -- properties that all members have in common ------------------------------------------


@attrs.frozen
class _Fact:
    """A property that is the same for all members.

    :ivar noun: its name in error messages.
    :ivar read: returns its value for a server, from the server and the project's ports.
    :ivar cure: words after ``openstack server`` that change it; empty if no command does.
    """

    noun: str
    read: Callable[[_Record, Sequence[_Record]], Hashable]
    cure: tuple[str, ...] = ()


def _read_common(fact: _Fact, records: GroupRecords, servers: Sequence[_Record]) -> Hashable:
    """Return the value of *fact* that all of the servers have.

    :raises AdoptionError: one of them has another value.
    """
    values = [fact.read(server, records.ports) for server in servers]
    common = next((value for value, _ in Counter(values).most_common(1)), None)
    odd = next((at for at, value in enumerate(values) if value != common), None)
    if odd is None:
        return common
    usual = servers[values.index(common)]
    cure = "let the tool that made it make it like the others"
    if fact.cure:
        cure = shell_command("openstack", "server", *fact.cure)
        cure = cure.replace("SERVER", str(servers[odd]["id"]))
    raise AdoptionError(
        f"members of a cluster are alike, and {_shown_server(servers[odd])} has another "
        f"{fact.noun} than {printable_text(usual['name'])}: {_show_value(values[odd])}, not "
        f"{_show_value(common)}; {cure}"
    )


def _show_value(value: Hashable) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_show_value, value)) or "none"
    if isinstance(value, Nic):
        return printable_text(value.network + (f"/{value.vnic}" if value.vnic else ""))
    return printable_text(str(value)) or "none"


def ports_of_server(server: _Record, ports: Sequence[_Record]) -> list[_Record]:
    """Return the ports of a server, in the order of its addresses; those without come last.

    :raises AdoptionError: an address belongs to a port that the project does not see.
    """
    addresses = [address for some in (server.get("addresses") or {}).values() for address in some]
    places = {
        str(address["OS-EXT-IPS-MAC:mac_addr"]): at
        for at, address in enumerate(reversed(addresses))
        if "OS-EXT-IPS-MAC:mac_addr" in address
    }
    own = [port for port in ports if port.get("device_id") == server["id"]]
    if places.keys() - {str(port.get("mac_address")) for port in own}:
        raise AdoptionError(
            f"{_shown_server(server)} has a port that this project does not see, so no new member "
            "could be made like it"
        )
    return sorted(
        own,
        key=lambda port: (
            -places.get(str(port.get("mac_address")), -1),
            str(port["network_id"]),
            str(port["id"]),
        ),
    )


def nic_of_port(port: _Record) -> Nic:
    """Return network of a port, without the type if it is that of ports Nova makes."""
    vnic = str(port.get("binding:vnic_type") or "normal")
    return Nic(str(port["network_id"]), "" if vnic == "normal" else vnic)


def nics_of_server(server: _Record, ports: Sequence[_Record]) -> tuple[Nic, ...]:
    """Return the networks of a server, in the order of its ports."""
    return tuple(map(nic_of_port, ports_of_server(server, ports)))


def _sorted_nics(nics: Sequence[Nic]) -> tuple[Nic, ...]:
    return tuple(sorted(nics, key=lambda nic: (nic.network, nic.vnic)))


def _read_networks(server: _Record, ports: Sequence[_Record]) -> Hashable:
    return _sorted_nics(nics_of_server(server, ports))


def _read_image(server: _Record) -> str:
    """Return the id of the server's image; "" if the server boots from a volume."""
    return str((server.get("image") or {}).get("id") or "")


def _read_zone(server: _Record) -> str:
    """Return the availability zone of the server's request, not the host's zone; "" if none."""
    return str(server.get("pinned_availability_zone") or "")


def _read_security_groups(server: _Record) -> tuple[str, ...]:
    return tuple(sorted({str(group["name"]) for group in server.get("security_groups") or ()}))


def _has_config_drive(server: _Record) -> bool:
    return str(server.get("config_drive")) == "True"


def _read_flavor(server: _Record) -> Hashable:
    flavor = server.get("flavor") or {}
    specs = flavor.get("extra_specs") or {}
    size = (f"{flavor.get('vcpus')} vCPUs", f"{flavor.get('ram')} MiB", f"{flavor.get('disk')} GiB")
    more = (f"{flavor.get('ephemeral')}+{flavor.get('swap')} GiB more",)
    words = tuple(f"{key}={specs[key]}" for key in sorted(specs))
    return (str(flavor.get("original_name")), *size, *more, *words)


def _read_user_data(server: _Record) -> str:
    """Return a digest of the server's user data; "" if it has none, UNKNOWN if Nova hides them.

    By default Nova shows user data only to administrators.
    """
    if _USER_DATA not in server:
        return UNKNOWN
    try:
        data = base64.b64decode(server[_USER_DATA] or "", validate=True)
    except binascii.Error:
        return UNKNOWN
    return cluster_wish.short_digest_of(data) if data else ""


_USER: Final = _Fact("user", lambda server, _: str(server.get("user_id")))
_FACTS: Final = (
    _Fact(
        "flavor", lambda server, _: _read_flavor(server), ("resize", "--flavor", "FLAVOR", "SERVER")
    ),
    _Fact(
        "image", lambda server, _: _read_image(server), ("rebuild", "--image", "IMAGE", "SERVER")
    ),
    _Fact("list of networks", _read_networks, ("add", "network", "SERVER", "NETWORK")),
    _Fact(
        "list of security groups",
        lambda server, _: _read_security_groups(server),
        ("add", "security", "group", "SERVER", "GROUP"),
    ),
    _Fact("key pair", lambda server, _: str(server.get("key_name") or "")),
    _Fact("availability zone", lambda server, _: _read_zone(server)),
    _Fact("configuration drive", lambda server, _: _has_config_drive(server)),
    _Fact("user data", lambda server, _: _read_user_data(server)),
)
