# SPDX-License-Identifier: Apache-2.0
"""Checks that refuse a request before anything changes, and the network that two servers share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc_client.cluster.life_cycle.run import ClusterError
from nova_hpc_client.gpu.model import (
    CHANGEABLE,
    GpuGroup,
    GpuPort,
    GpuServer,
    SharedGpu,
    ShareState,
)
from nova_hpc_common.outside.text import printable_text, shell_command
from nova_hpc_guest.gpu import port_rule, records
from nova_hpc_guest.gpu.announcements import Announced
from nova_hpc_guest.gpu.engines import EXACT, explain_release_difference

#: The first and last TCP port of all slots.
FIRST_PORT: Final = records.FIRST_PORT
LAST_PORT: Final = records.LAST_PORT + port_rule.PORTS - 1
#: Names of aliases for adapters: the adapter roles of nova-hpc.
_ADAPTERS: Final = frozenset({"vf", "pf", "nic", "ethvf", "ethpf", "ethnic"})
_TCP: Final = (None, "tcp", "6", "any", 6)


class ShareError(ClusterError):
    """A command for shares failed. The text contains the reasons, one in each line."""


@attrs.frozen
class Meeting:
    """A subnet that contains a share and a client, with their ports in it.

    :ivar share_address: the share's address in this subnet.
    :ivar client_address: the client's address in this subnet.
    """

    share_port: GpuPort
    client_port: GpuPort
    share_address: str
    client_address: str

    @property
    def slot_port(self) -> int:
        """The first port of the client's slot."""
        return port_rule.port_of_address(self.client_address)

    @property
    def filtered(self) -> bool:
        """Whether security groups take effect on both ports, so that they keep others away."""
        return self.share_port.filtered and self.client_port.filtered


def gives_gpu(specs: Mapping[str, str] | None) -> bool | None:
    """Whether the servers of a flavor have a GPU, by its extra specs; None if unknown.

    :param specs: None if the cloud shows them only to operators.
    """
    if specs is None:
        return None
    if any(key.startswith("resources") and "GPU" in key.partition(":")[2] for key in specs):
        return True
    entries = specs.get("pci_passthrough:alias", "").split(",")
    aliases = {entry.partition(":")[0].strip() for entry in entries} - {""}
    if any("gpu" in alias.lower() for alias in aliases):
        return True
    # Operators choose the names of aliases, so an alias with another name may be a GPU's.
    return None if aliases - _ADAPTERS else False


def check_flavor(name: str, specs: Mapping[str, str] | None, force: bool) -> None:
    """Refuse a flavor without a GPU.

    :param force: accept it nevertheless.
    :raises ShareError: it surely has none.
    """
    if gives_gpu(specs) is False and not force:
        raise ShareError(
            f"flavor {printable_text(name)} has no GPU: take one whose pci_passthrough:alias or "
            "resources name one; --force makes a share of it nevertheless"
        )


def check_group_of_user(group: GpuGroup, clients: str | None, force: bool) -> None:
    """Refuse a security group that opens the ports of slots to others than the clients.

    :param clients: id of the clients' group; None if there is none yet.
    :param force: accept it nevertheless.
    :raises ShareError: it opens them.
    """
    if not force and opens_slots(group, clients):
        raise ShareError(
            f"security group {printable_text(group.name)} lets others reach ports {FIRST_PORT} "
            f"to {LAST_PORT}, and engines accept every client: use one that opens only the "
            "needed ports (such as port 22), or use --force"
        )


def opens_slots(group: GpuGroup, clients: str | None) -> bool:
    """Whether one of the group's rules lets others than the clients reach ports of slots."""
    for rule in group.rules:
        if rule.get("direction") != "ingress" or rule.get("protocol") not in _TCP:
            continue
        if clients is not None and rule.get("remote_group_id") == clients:
            continue
        least, most = rule.get("port_range_min"), rule.get("port_range_max")
        if (least is None or least <= LAST_PORT) and (most is None or most >= FIRST_PORT):
            return True
    return False


def find_meeting(
    share: SharedGpu, client: GpuServer, client_ports: Sequence[GpuPort], subnets: Mapping[str, str]
) -> Meeting:
    """Find the common subnet of a share and a client; ports with a filter are preferred.

    :param subnets: id of a subnet -> its CIDR as Neutron writes it.
    :raises ShareError: they have no common subnet, or only one that is too large for the rule that
        derives a slot's port from the client's address.
    """
    meetings, problems = [], []
    for share_port in share.ports:
        for client_port in client_ports:
            for subnet, client_address in client_port.addresses.items():
                share_address = share_port.addresses.get(subnet)
                if share_address is None or share_port.network != client_port.network:
                    continue
                try:
                    port_rule.number_in_subnet(client_address, subnets.get(subnet, ""))
                except port_rule.PortRuleError as error:
                    problems.append(str(error))
                    continue
                meetings.append(Meeting(share_port, client_port, share_address, client_address))
    if meetings:
        return min(meetings, key=lambda meeting: (not meeting.filtered, meeting.client_address))
    if problems:
        raise ShareError(problems[0])
    raise ShareError(
        f"{printable_text(client.name)} and share {share.name} have no network in common: give one "
        f"of them a port in the other's ({shell_command('openstack', 'server', 'add', 'network')})"
    )


def check_client(
    share: SharedGpu, client: GpuServer, project: str, others: Iterable[SharedGpu]
) -> None:
    """Refuse a server that cannot be a client of this share.

    :param project: id of the user's project.
    :param others: all shares of the project.
    :raises ShareError: with the reason and the cure.
    """
    name = printable_text(client.name)
    if client.project and client.project != project:
        raise ShareError(f"{name} is a server of another project: a share serves its own alone")
    if client.is_share:
        raise ShareError(f"{name} is a share itself: it has a GPU of its own")
    if client.status not in CHANGEABLE:
        raise ShareError(
            f"{name} is {client.status}, and Nova changes no metadata then: attach it when it is "
            "ACTIVE"
        )
    for other in others:
        if other.id == share.id:
            continue
        if any(slot.client_id == client.id and slot.slot is not None for slot in other.slots):
            raise ShareError(
                f"{name} has a slot of share {other.name} already: "
                f"{format_gpu_command('detach', other.name, client.name)}"
            )


def check_share(share: SharedGpu) -> None:
    """Refuse a share to which no client can be attached.

    :raises ShareError: with the reason and the cure.
    """
    if share.state in (ShareState.READY, ShareState.DOWN) and share.record is not None:
        server = share.server
        if server is None or server.status not in CHANGEABLE:
            raise ShareError(f"share {share.name}: {share.reason}, and Nova changes nothing then")
        return
    if share.state is ShareState.UNFINISHED:
        raise ShareError(
            f"share {share.name}: {share.reason}; repeat "
            f"{format_gpu_command('share', 'create', share.name)} with its options, which goes on"
        )
    raise ShareError(f"share {share.name} is {share.state.value}: {share.reason}")


def check_way(
    share: SharedGpu, meeting: Meeting, groups: Iterable[GpuGroup], encrypt: bool, force: bool
) -> None:
    """Refuse a network path to the share that others could use, too.

    :param groups: all security groups of the project.
    :param encrypt: the slot is encrypted, which makes every path safe.
    :param force: accept the path nevertheless.
    :raises ShareError: with the reason and the cure.
    """
    if encrypt or force:
        return
    if not meeting.filtered:
        port = meeting.share_port if not meeting.share_port.filtered else meeting.client_port
        raise ShareError(
            f"port {port.id} has no filter (its type is not normal, or its port security is "
            "off), so any host in its network could use the GPU: use --encrypt, or --force if "
            "the network is a partition of only these servers"
        )
    clients = share.clients_group
    for group in groups:
        if group.id in meeting.share_port.groups:
            check_group_of_user(group, clients.id if clients else None, force)


def check_room(share: SharedGpu, client: GpuServer, meeting: Meeting, memory: int) -> None:
    """Refuse a client for which the share has no slot, port or memory.

    :param memory: MiB of the slot; 0 for the share's own setting.
    :raises ShareError: with the reason and the cure.
    """
    record = share.record
    if record is None:
        raise ShareError(f"share {share.name}: {share.problem}")
    taken = [slot for slot in share.slots if slot.is_taken and slot.client_id != client.id]
    if len(taken) >= record.slots:
        raise ShareError(
            f"share {share.name} has {record.slots} slots, and all are taken: detach a client, or "
            "create another share"
        )
    for slot in taken:
        if slot.slot is not None and slot.slot.port == meeting.slot_port:
            other = slot.client.name if slot.client is not None else slot.client_id
            raise ShareError(
                f"port {meeting.slot_port} of share {share.name} is that of "
                f"{printable_text(other)}, which is in another subnet: use one subnet "
                "for all clients of a share"
            )
    if not 0 <= memory <= records.MOST_MEMORY:
        raise ShareError(f"--memory {memory} MiB is not a size of a GPU's memory")


def check_announced(
    share: SharedGpu, client: GpuServer, memory: int, said: Announced, client_said: Announced
) -> None:
    """Refuse a slot that contradicts the announcements on the guests' consoles.

    The guests themselves check the facts that are not announced, when the slot begins.

    :param memory: MiB of the slot; 0 for the share's own setting.
    :param said: the announcements of the share's guest.
    :param client_said: the announcements of the client's guest.
    :raises ShareError: with the reason and the cure.
    """
    record = share.record
    if record is None:
        return
    limit = memory or record.memory
    if limit and record.engine in said.unlimited:
        raise ShareError(
            f"the image of share {share.name} cannot limit the memory of a slot: it has no NVIDIA "
            f"MPS for the engine {record.engine}. Leave --memory out, here and at share create"
        )
    if said.memory and limit > said.memory:
        raise ShareError(
            f"{limit} MiB are more than the {said.memory} MiB of the GPU of share {share.name}"
        )
    if said.memory and limit:
        others = sum(
            slot.slot.memory or record.memory
            for slot in share.slots
            if slot.slot is not None and slot.client_id != client.id
        )
        if others + limit > said.memory:
            raise ShareError(
                f"{limit} MiB are more than the free memory: the GPU of share {share.name} has "
                f"{said.memory} MiB, and {others} are given"
            )
    for who, engines in ((share.name, said.engines), (client.name, client_said.engines)):
        if engines and record.engine not in engines:
            raise ShareError(
                f"the image of {printable_text(who)} has no engine {record.engine}; it has "
                f"{', '.join(sorted(engines))}"
            )
    if said.engines and client_said.engines:
        # An operator's file may allow other differences, so the guests decide on those within one
        # major release.
        releases = said.engines[record.engine], client_said.engines[record.engine]
        wrong = explain_release_difference(record.engine, EXACT, *releases)
        if wrong is not None and releases[0].split(".")[:1] != releases[1].split(".")[:1]:
            raise ShareError(wrong)


def format_gpu_command(*words: str) -> str:
    """Format a command of ``openstack hpc gpu``, quoted for a shell."""
    return shell_command("openstack", "hpc", "gpu", *words)


def find_share(shares: Iterable[SharedGpu], name: str) -> SharedGpu:
    """Find the share that has this name or id, or a server of this name.

    A share whose server was deleted is not found.

    :raises ShareError: there is none, or more than one.
    """
    found = [
        share
        for share in shares
        if share.server is not None and name in (share.id, share.name, share.server.name)
    ]
    if not found:
        raise ShareError(
            f"no share is called {printable_text(name)}; see {format_gpu_command('share', 'list')}"
        )
    if len(found) > 1:
        ids = ", ".join(share.id for share in found)
        raise ShareError(f"{len(found)} shares are called {name}: use the ID, one of {ids}")
    return found[0]


def rule_bodies_of(own: str, clients: str) -> list[dict[str, Any]]:
    """Build the bodies of ``POST /security-group-rules`` that let in only the clients.

    :param own: id of the share's own group, which gets the rules.
    :param clients: id of the clients' group.
    """
    common = {
        "security_group_id": own,
        "direction": "ingress",
        "ethertype": "IPv4",
        "remote_group_id": clients,
    }
    return [
        {
            **common,
            "protocol": "tcp",
            "port_range_min": FIRST_PORT,
            "port_range_max": LAST_PORT,
        },
        {
            **common,
            "protocol": "udp",
            "port_range_min": port_rule.TUNNEL_PORT,
            "port_range_max": port_rule.TUNNEL_PORT,
        },
    ]
