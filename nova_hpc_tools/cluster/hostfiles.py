# SPDX-License-Identifier: Apache-2.0
"""The members of a cluster as the files that MPI, Slurm, pdsh and Ansible read.

Hosts that are near each other follow each other, so that ranks that talk most are close.

Whoever reads these files acts on them, on the machine where they are read. So they have names
of hosts and addresses alone (:mod:`nova_hpc.outside.host_names`), or are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import attrs
import yaml

from nova_hpc.outside.host_names import OutsideError, require_ip_address
from nova_hpc.outside.text import printable_text
from nova_hpc.wire.cluster_wish import NAME
from nova_hpc_tools.cluster.members import member_names
from nova_hpc_tools.cluster.members.model import Cluster, ClusterMember
from nova_hpc_tools.cluster.members.neighbours import SHORT, MemberSeat, order_seats_by_nearness


class HostError(ValueError):
    """There is no such address; the text says which there are."""


@attrs.frozen
class MemberHost:
    """One member.

    :ivar server: its id in Nova.
    :ivar name: as Nova has it: any text.
    :ivar address: empty where it has none.
    :ivar domains: names of its domains by their level.
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
    """The members in the order of their nearness, whatever they are called.

    :param network: name of the network whose addresses are meant; empty: each member's first.
    :param names: use no addresses: a resolver knows the names.
    :raises HostError: a member has no address in that network.
    """
    return [
        _host_of_seat(seat, "" if names else choose_address(seat.member, network))
        for seat in order_seats_by_nearness(cluster)
    ]


def _host_of_seat(seat: MemberSeat, address: str) -> MemberHost:
    return MemberHost(
        server=seat.member.id,
        name=seat.member.name,
        address=address,
        vcpus=seat.member.vcpus,
        ram_mb=seat.member.ram_mb,
        domains={level: name for level, name in seat.member.position.domains.items() if name},
    )


def choose_address(member: ClusterMember, network: str) -> str:
    """The address of a member for host files; empty: it has none.

    :param network: name of the network whose address is meant; empty: the first.
    :raises HostError: the member is not in that network.
    """
    if network and network not in member.addresses:
        networks = ", ".join(map(printable_text, sorted(member.addresses))) or "none"
        raise HostError(f"{member.shown} is not in network {network!r}; it is in: {networks}")
    names = [network] if network else sorted(member.addresses)
    addresses = [address for name in names for address in member.addresses[name]]
    return prefer_ipv4(addresses)


def prefer_ipv4(addresses: Sequence[str]) -> str:
    """The first of IPv4 if there is one: host files of old MPIs know nothing else."""
    return min(addresses, key=lambda address: ":" in address, default="")


def check_member_hosts(
    hosts: Sequence[MemberHost], words: Collection[str] = ()
) -> list[MemberHost]:
    """The same hosts, where a program takes none of them for something else than a host.

    :param words: what the program does not take for a name, in lower case.
    :raises HostError: naming the server, with the cure.
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


#: What these do not take for names of hosts (slurm.conf(5), Ansible's own groups).
_SLURM: Final = frozenset({"all", "default"})
_ANSIBLE: Final = frozenset({"all", "ungrouped"})


def format_openmpi_hosts(hosts: Sequence[MemberHost], cluster: str) -> str:
    """A host file: one slot a vCPU."""
    return "".join(
        f"{host.reached} slots={max(1, host.vcpus)}\n" for host in check_member_hosts(hosts)
    )


def format_slurm_nodes(hosts: Sequence[MemberHost], cluster: str) -> str:
    """Lines of slurm.conf; of the memory 5 % stay with the guest's kernel."""
    lines = []
    hosts = check_member_hosts(hosts, _SLURM)
    for host in hosts:
        words = [f"NodeName={host.name}"]
        if host.address:
            words.append(f"NodeAddr={host.address}")
        words += [f"CPUs={max(1, host.vcpus)}", f"RealMemory={max(1, host.ram_mb * 95 // 100)}"]
        lines.append(" ".join([*words, "State=UNKNOWN"]))
    names = ",".join(host.name for host in hosts)
    lines.append(f"NodeSet={_host_group_name(cluster, _SLURM)} Nodes={names}")
    return "\n".join(lines) + "\n"


def format_pdsh_hosts(hosts: Sequence[MemberHost], cluster: str) -> str:
    """One host a line, as ``pdsh -w ^FILE`` and ``WCOLL`` read it."""
    return "".join(f"{host.reached}\n" for host in check_member_hosts(hosts))


def format_ansible_inventory(hosts: Sequence[MemberHost], cluster: str) -> str:
    """An inventory in YAML: all hosts in a group of the cluster's name."""
    members = {}
    for rank, host in enumerate(check_member_hosts(hosts, _ANSIBLE)):
        values: dict[str, object] = {"hpc_rank": rank, "hpc_vcpus": host.vcpus}
        if host.address:
            values["ansible_host"] = host.address
        members[host.name] = values | {f"hpc_{key}": name for key, name in host.domains.items()}
    group = {"hosts": members}
    name = _host_group_name(cluster, _ANSIBLE).replace("-", "_")
    data = {"all": {"children": {name: group}}}
    return yaml.safe_dump(data, sort_keys=False)


def _host_group_name(cluster: str, words: Collection[str]) -> str:
    """The cluster's name as one of a set of hosts."""
    if NAME.fullmatch(cluster) is None:
        raise HostError("no record says what this cluster is called")
    # Slurm and Ansible have sets of their own, and none is a part of itself.
    return f"hpc-{cluster}" if cluster.lower() in words else cluster


FORMATS: Final[Mapping[str, Callable[[Sequence[MemberHost], str], str]]] = {
    "openmpi": format_openmpi_hosts,
    "slurm": format_slurm_nodes,
    "pdsh": format_pdsh_hosts,
    "ansible": format_ansible_inventory,
}
#: Of the list that all other formats show.
COLUMNS: Final = ("Name", "Address", "vCPUs", "RAM", *(s.title() for s in SHORT if s != "host"))


def host_columns_of(host: MemberHost) -> tuple[object, ...]:
    """The columns of a host."""
    levels = [host.domains.get(level, "") for level in SHORT if level != "host"]
    return (host.name, host.address, host.vcpus, host.ram_mb, *levels)
