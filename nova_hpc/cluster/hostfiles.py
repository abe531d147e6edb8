# SPDX-License-Identifier: Apache-2.0
"""The members of a cluster as the files that MPI, Slurm, pdsh and Ansible read.

Hosts that are near each other follow each other, so that ranks that talk most are close.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs
import yaml

from nova_hpc.cluster.members.model import Cluster, Member
from nova_hpc.cluster.members.near import SHORT, seats


class HostError(ValueError):
    """There is no such address; the text says which there are."""


@attrs.frozen
class Host:
    """One member.

    :ivar address: empty where it has none.
    :ivar domains: names of its domains by their level.
    """

    name: str
    address: str
    vcpus: int
    ram_mb: int
    domains: Mapping[str, str]

    @property
    def reached(self) -> str:
        """What other hosts call it by."""
        return self.address or self.name


def hosts(cluster: Cluster, network: str = "", names: bool = False) -> list[Host]:
    """The members in the order of their nearness.

    :param network: name of the network whose addresses are meant; empty: each member's first.
    :param names: use no addresses: a resolver knows the names.
    :raises HostError: a member has no address in that network.
    """
    return [
        Host(
            name=seat.member.name,
            address="" if names else _address(seat.member, network),
            vcpus=seat.member.vcpus,
            ram_mb=seat.member.ram_mb,
            domains={level: name for level, name in seat.member.position.domains.items() if name},
        )
        for seat in seats(cluster)
    ]


def _address(member: Member, network: str) -> str:
    if network and network not in member.addresses:
        known = ", ".join(sorted(member.addresses)) or "none"
        raise HostError(f"{member.name} is not in network {network!r}; it is in: {known}")
    names = [network] if network else sorted(member.addresses)
    found = [each for name in names for each in member.addresses[name]]
    # IPv4 first: host files of old MPIs know nothing else.
    return min(found, key=lambda each: ":" in each, default="")


def openmpi(found: Sequence[Host], cluster: str) -> str:
    """A host file: one slot a vCPU."""
    return "".join(f"{host.reached} slots={max(1, host.vcpus)}\n" for host in found)


def slurm(found: Sequence[Host], cluster: str) -> str:
    """Lines of slurm.conf; of the memory 5 % stay with the guest's kernel."""
    lines = []
    for host in found:
        words = [f"NodeName={host.name}"]
        if host.address:
            words.append(f"NodeAddr={host.address}")
        words += [f"CPUs={max(1, host.vcpus)}", f"RealMemory={max(1, host.ram_mb * 95 // 100)}"]
        lines.append(" ".join([*words, "State=UNKNOWN"]))
    names = ",".join(host.name for host in found)
    lines.append(f"NodeSet={cluster} Nodes={names}")
    return "\n".join(lines) + "\n"


def pdsh(found: Sequence[Host], cluster: str) -> str:
    """One host a line, as ``pdsh -w ^FILE`` and ``WCOLL`` read it."""
    return "".join(f"{host.reached}\n" for host in found)


def ansible(found: Sequence[Host], cluster: str) -> str:
    """An inventory in YAML: all hosts in a group of the cluster's name."""
    members = {}
    for rank, host in enumerate(found):
        values: dict[str, object] = {"hpc_rank": rank, "hpc_vcpus": host.vcpus}
        if host.address:
            values["ansible_host"] = host.address
        members[host.name] = values | {f"hpc_{key}": name for key, name in host.domains.items()}
    group = {"hosts": members}
    data = {"all": {"children": {cluster.replace("-", "_"): group}}}
    return yaml.safe_dump(data, sort_keys=False)


FORMATS: Final[Mapping[str, Callable[[Sequence[Host], str], str]]] = {
    "openmpi": openmpi,
    "slurm": slurm,
    "pdsh": pdsh,
    "ansible": ansible,
}
#: Of the list that all other formats show.
COLUMNS: Final = ("Name", "Address", "vCPUs", "RAM", *(s.title() for s in SHORT if s != "host"))


def row(host: Host) -> tuple[object, ...]:
    """The columns of a host."""
    levels = [host.domains.get(level, "") for level in SHORT if level != "host"]
    return (host.name, host.address, host.vcpus, host.ram_mb, *levels)
