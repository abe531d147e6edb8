# SPDX-License-Identifier: Apache-2.0
"""The members of a cluster as the files that MPI, Slurm, pdsh and Ansible read.

Hosts that are close to each other are listed one after the other: neighbouring ranks exchange the
most data.

The programs that read these files act on them, for example by logging in to the hosts. So a file
contains only valid host names and addresses (:mod:`nova_hpc_common.outside.host_names`), or the
command writes no file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import attrs
import yaml

from nova_hpc_client.cluster.members import member_names
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember, number_members
from nova_hpc_client.cluster.members.neighbours import SHORT, order_seats_by_nearness
from nova_hpc_common.outside.host_names import OutsideError, require_ip_address
from nova_hpc_common.outside.text import printable_text
from nova_hpc_common.wire.cluster_wish import NAME


class HostError(ValueError):
    """A host file cannot be written; the text has the reason and, for a server, the cure."""


@attrs.frozen
class MemberHost:
    """One member, or the head.

    :ivar server: its id in Nova.
    :ivar name: its name in Nova, which may be any text.
    :ivar address: empty if it has none.
    :ivar domains: level -> name of its domain.
    """

    server: str
    name: str
    address: str
    vcpus: int
    ram_mb: int
    domains: Mapping[str, str]

    @property
    def reached(self) -> str:
        """The name or address by which other hosts call it."""
        return self.address or self.name


def list_cluster_hosts(
    cluster: Cluster, network: str = "", names: bool = False
) -> list[MemberHost]:
    """List the members in the order of their nearness, whatever their names.

    :param network: name of the network of the addresses; empty for each member's first.
    :param names: use no addresses, because a resolver finds the names.
    :raises HostError: a member has no address in that network.
    """
    return [
        _host_of_member(seat.member, "" if names else choose_address(seat.member, network))
        for seat in order_seats_by_nearness(cluster)
    ]


def find_head_host(cluster: Cluster, network: str = "", names: bool = False) -> MemberHost | None:
    """Return the head of the cluster as a host; None if there is none.

    :param network: as in :func:`list_cluster_hosts`. The head has no port in a network of devices.
        Its first address is used instead, which is in a network of the members, too.
    """
    head = number_members(cluster).head
    if head is None:
        return None
    network = network if network in head.addresses else ""
    return _host_of_member(head, "" if names else choose_address(head, network))


def _host_of_member(member: ClusterMember, address: str) -> MemberHost:
    return MemberHost(
        server=member.id,
        name=member.name,
        address=address,
        vcpus=member.vcpus,
        ram_mb=member.ram_mb,
        domains={level: name for level, name in member.position.domains.items() if name},
    )


def choose_address(member: ClusterMember, network: str) -> str:
    """Choose the address of a member for host files; "" if it has none.

    :param network: name of the network of the address; empty for the first.
    :raises HostError: the member is not in that network.
    """
    if network and network not in member.addresses:
        networks = ", ".join(map(printable_text, sorted(member.addresses))) or "none"
        raise HostError(f"{member.shown} is not in network {network!r}; it is in: {networks}")
    names = [network] if network else sorted(member.addresses)
    addresses = [address for name in names for address in member.addresses[name]]
    return prefer_ipv4(addresses)


def list_addresses(member: ClusterMember) -> dict[str, str]:
    """Return name of each network of a member -> its address there.

    :raises HostError: it has a text that is none.
    """
    try:
        return {
            name: require_ip_address(prefer_ipv4(addresses), f"server {member.id} has it")
            for name, addresses in member.addresses.items()
            if addresses
        }
    except OutsideError as error:
        raise HostError(str(error)) from error


def prefer_ipv4(addresses: Sequence[str]) -> str:
    """Return the first IPv4 address if there is one, because old MPIs read no other in host files.

    "" without addresses.
    """
    return min(addresses, key=lambda address: ":" in address, default="")


def check_member_hosts(
    hosts: Sequence[MemberHost], words: Collection[str] = ()
) -> list[MemberHost]:
    """Return the same hosts if a program reads each of them as a host and nothing else.

    :param words: words with another meaning for the program, in lower case.
    :raises HostError: a name or address is invalid; the text names the server and the cure.
    """
    try:
        member_names.check_names(((host.server, host.name) for host in hosts), words)
        for host in hosts:
            member_names.check_domains(host.server, host.domains)
        return [attrs.evolve(host, address=_checked_address(host)) for host in hosts]
    except OutsideError as error:
        raise HostError(str(error)) from error


def _checked_address(host: MemberHost) -> str:
    return host.address and require_ip_address(host.address, f"server {host.server} has it")


#: Words that these programs do not read as host names (slurm.conf(5), Ansible's own groups).
_SLURM: Final = frozenset({"all", "default"})
_ANSIBLE: Final = frozenset({"all", "ungrouped"})


def format_openmpi_hosts(
    hosts: Sequence[MemberHost], cluster: str, head: MemberHost | None = None
) -> str:
    """Format Open MPI's host file with one slot for each vCPU."""
    return "".join(
        f"{host.reached} slots={max(1, host.vcpus)}\n" for host in check_member_hosts(hosts)
    )


def format_slurm_nodes(
    hosts: Sequence[MemberHost], cluster: str, head: MemberHost | None = None
) -> str:
    """Format the lines of slurm.conf for the members; the guest's kernel keeps 5 % of the memory.

    The head is the host of the controller, and not a node.
    """
    lines = []
    checked = check_member_hosts([*hosts, *([head] if head else [])], _SLURM)
    hosts = checked[: len(hosts)]
    for controller in checked[len(hosts) :]:
        address = f"({controller.address})" if controller.address else ""
        lines.append(f"SlurmctldHost={controller.name}{address}")
    for host in hosts:
        words = [f"NodeName={host.name}"]
        if host.address:
            words.append(f"NodeAddr={host.address}")
        words += [f"CPUs={max(1, host.vcpus)}", f"RealMemory={max(1, host.ram_mb * 95 // 100)}"]
        lines.append(" ".join([*words, "State=UNKNOWN"]))
    names = ",".join(host.name for host in hosts)
    lines.append(f"NodeSet={_host_group_name(cluster, _SLURM)} Nodes={names}")
    return "\n".join(lines) + "\n"


def format_pdsh_hosts(
    hosts: Sequence[MemberHost], cluster: str, head: MemberHost | None = None
) -> str:
    """Format one host in each line, as ``pdsh -w ^FILE`` and ``WCOLL`` read it."""
    return "".join(f"{host.reached}\n" for host in check_member_hosts(hosts))


def format_ansible_inventory(
    hosts: Sequence[MemberHost], cluster: str, head: MemberHost | None = None
) -> str:
    """Format Ansible's inventory in YAML: a group with the cluster's name, and one for the head.

    Hyphens become underscores in names of groups. A member's ``hpc_rank`` is its index.
    """
    checked = check_member_hosts([*hosts, *([head] if head else [])], _ANSIBLE)
    values = {host.name: _ansible_values_of(host) for host in checked}
    members = {
        host.name: {"hpc_rank": rank} | values[host.name]
        for rank, host in enumerate(checked[: len(hosts)])
    }
    name = _host_group_name(cluster, _ANSIBLE).replace("-", "_")
    groups = {name: {"hosts": members}}
    if head is not None:
        groups[f"{name}_head"] = {"hosts": {head.name: values[head.name]}}
    return yaml.safe_dump({"all": {"children": groups}}, sort_keys=False)


def _ansible_values_of(host: MemberHost) -> dict[str, object]:
    values: dict[str, object] = {"hpc_vcpus": host.vcpus}
    if host.address:
        values["ansible_host"] = host.address
    return values | {f"hpc_{key}": name for key, name in host.domains.items()}


def _host_group_name(cluster: str, words: Collection[str]) -> str:
    """Return the cluster's name as the name of a set of hosts; reserved words get a prefix.

    :raises HostError: the cluster has no name.
    """
    if NAME.fullmatch(cluster) is None:
        raise HostError("no record says what this cluster is called")
    # Slurm and Ansible have sets of their own, and a set cannot be a part of itself.
    return f"hpc-{cluster}" if cluster.lower() in words else cluster


FORMATS: Final[Mapping[str, Callable[[Sequence[MemberHost], str, MemberHost | None], str]]] = {
    "openmpi": format_openmpi_hosts,
    "slurm": format_slurm_nodes,
    "pdsh": format_pdsh_hosts,
    "ansible": format_ansible_inventory,
}
#: Columns of the list that cliff's own formats print.
COLUMNS: Final = ("Name", "Address", "vCPUs", "RAM", *(s.title() for s in SHORT if s != "host"))


def host_columns_of(host: MemberHost) -> tuple[object, ...]:
    """Return the values of a host, in the order of :data:`COLUMNS`."""
    levels = [host.domains.get(level, "") for level in SHORT if level != "host"]
    return (host.name, host.address, host.vcpus, host.ram_mb, *levels)
