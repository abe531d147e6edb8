# SPDX-License-Identifier: Apache-2.0
"""What is wrong between Nova's records, Placement's and the fabric map's. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nova_hpc_tools.adopt import settings
from nova_hpc_tools.adopt.findings import Finding, some
from nova_hpc_tools.snapshot.cloud_records import Device, Host, Provider, Records

#: Either lets Nova's user do what it has to do in Placement (placement/policies/base.py).
_ROLES: Final = ("admin", "service")
_LOG: Final = "look in the log of its nova-compute why it does not update Placement"


def look(records: Records) -> list[Finding]:
    """What is wrong."""
    return [
        *_unread(records),
        *_role(records),
        *_left(records),
        *_devices(records),
        *_nodes_gone(records),
        *_aliases(records),
        *_map(records.hosts),
        *_rails(records.hosts),
    ]


def _unread(records: Records) -> Iterator[Finding]:
    for text in records.problems:
        yield Finding("not-looked", text, "Make it answer, and run nova-hpc doctor again.")
    for host in records.hosts:
        if host.unread is not None:
            yield Finding(
                "not-read",
                f"What {host.node} says of its devices: {host.unread}.",
                "Bring controllers and nodes to one release of nova-hpc.",
                host.node,
            )
        if host.stock:
            yield Finding(
                "driver-stock",
                f"{host.node} offers devices with hpc_* tags and runs Nova's own driver: no server "
                "with an hpc: flavor comes there.",
                f"On {host.node}, set [DEFAULT]compute_driver = {settings.DRIVER} and restart "
                "nova-compute; or take the tags out of [pci]device_spec.",
                host.node,
            )


def _role(records: Records) -> Iterator[Finding]:
    roles = records.roles
    if roles is not None and roles.isdisjoint(_ROLES):
        yield Finding(
            "service-role",
            f"Nova's user in Placement has the roles {', '.join(sorted(roles)) or 'none'}.",
            "openstack role add --project PROJECT --user USER service, with the user and the "
            "project of [placement] in nova.conf",
        )


def _left(records: Records) -> Iterator[Finding]:
    for each in records.leftovers:
        yield Finding(
            "allocation-orphaned",
            f"{', '.join(each.addresses)} of {each.node}: allocated to {each.consumer}, who has "
            "no right to it.",
            each.cure,
            each.node,
        )


# --- Nova's devices and Placement's ------------------------------------------------------


def _devices(records: Records) -> Iterator[Finding]:
    known = {each.uuid: each for each in records.providers}
    recorded = {device.provider for host in records.hosts for device in host.devices}
    for host in records.hosts:
        for device in host.devices:
            yield from _device(host, device, known.get(device.provider), records.complete)
    nodes = {host.node for host in records.hosts}
    for provider in records.providers:
        if provider.node in nodes and provider.uuid not in recorded:
            yield from _excess(provider, 0)


def _device(
    host: Host, device: Device, found: Provider | None, complete: bool
) -> Iterator[Finding]:
    cure = f"Restart nova-compute on {host.host}; if that does not help, {_LOG}."
    if found is None:
        if complete:
            yield Finding(
                "provider-missing",
                f"{device.address} of {host.node} has no resource provider in Placement.",
                cure,
                host.node,
            )
    elif found.total < device.count:
        yield Finding(
            "provider-missing",
            f"{device.address} of {host.node}: Placement has {found.total} of {device.count} "
            "devices.",
            cure,
            host.node,
        )
    else:
        yield from _excess(found, device.count)


def _excess(provider: Provider, count: int) -> Iterator[Finding]:
    """A device that is withheld is reserved, and Nova's records do not have it."""
    given = provider.total - provider.reserved
    if given > count:
        yield Finding(
            "provider-excess",
            f"{provider.address} of {provider.node}: Placement gives {given} of "
            f"{provider.total}, and Nova knows {count}.",
            "openstack resource provider inventory set --amend --resource "
            f"{provider.resource_class}:reserved={provider.total - count} {provider.uuid}; and "
            f"{_LOG}.",
            provider.node,
        )


def _nodes_gone(records: Records) -> Iterator[Finding]:
    if not records.complete:
        return
    nodes = {host.node for host in records.hosts}
    gone: dict[str, list[Provider]] = defaultdict(list)
    for provider in records.providers:
        if provider.node not in nodes:
            gone[provider.node].append(provider)
    for node, providers in sorted(gone.items()):
        addresses = some(sorted(each.address for each in providers))
        yield Finding(
            "node-gone",
            f"Placement has {addresses} of {node}, which is no node of Nova's.",
            "openstack resource provider delete, first for "
            f"{some(sorted(each.uuid for each in providers))}, then for the provider {node}; "
            "what is allocated there shows nova-manage placement audit --verbose.",
            node,
        )


def _aliases(records: Records) -> Iterator[Finding]:
    classes = {each.resource_class for each in records.providers}
    if not records.complete or not classes:
        return
    for alias in records.aliases:
        if alias.resource_class not in classes:
            yield Finding(
                "alias-nowhere",
                f"[pci]alias {alias.name} asks for {alias.resource_class}, which no node has.",
                "Copy the line from nova-hpc-common.conf of a node that offers the devices, and "
                "restart nova-api and nova-conductor; or remove it.",
            )


# --- the fabric --------------------------------------------------------------------------


def _map(hosts: Iterable[Host]) -> Iterator[Finding]:
    found = [host for host in hosts if host.ours and host.devices]
    texts = dict.fromkeys(text for host in hosts for text in host.contradictions)
    for text in texts:
        yield Finding(
            "map-contradicts",
            f"{text[:1].upper()}{text[1:]}.",
            "nova-hpc fabric sync, with the map of the whole fabric",
        )
    without = sorted(host.host for host in found if not host.placed and not host.contradictions)
    if without and any(host.placed for host in hosts):
        yield Finding(
            "host-no-leaf",
            f"The fabric map does not have {some(without)}.",
            "nova-hpc fabric sync, with a map that has all hosts",
        )


def _rails(hosts: Iterable[Host]) -> Iterator[Finding]:
    """Hosts of one leaf whose adapters are in other networks than most have."""
    leaves: dict[str, list[Host]] = defaultdict(list)
    for host in hosts:
        if host.leaf is not None and host.networks:
            leaves[host.leaf].append(host)
    for leaf, members in sorted(leaves.items()):
        sure = [each for each in members if each.idle]
        if not sure:
            continue
        most, number = Counter(each.networks for each in sure).most_common(1)[0]
        if 2 * number <= len(sure):
            continue
        odd = [
            each for each in members if each.networks - most or (each.idle and most - each.networks)
        ]
        for networks, alike in _alike(odd).items():
            yield Finding(
                "rails-mixed",
                f"In leaf {leaf}, {some(alike)} has adapters in {_named(networks)}, the others "
                f"in {_named(most)}.",
                "Correct physical_network in [pci]device_spec of the odd nodes, and restart "
                "nova-compute and the Neutron agent there.",
            )


def _alike(hosts: Iterable[Host]) -> Mapping[frozenset[str], list[str]]:
    found: dict[frozenset[str], list[str]] = defaultdict(list)
    for each in sorted(hosts, key=lambda host: host.host):
        found[each.networks].append(each.host)
    return found


def _named(networks: Iterable[str]) -> str:
    return " and ".join(sorted(networks))
