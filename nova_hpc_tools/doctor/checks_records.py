# SPDX-License-Identifier: Apache-2.0
"""Faults between the records of Nova, of Placement and of the fabric map. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nova_hpc_tools.site import settings
from nova_hpc_tools.site.cures import (
    AliasCopy,
    AliasSource,
    CommandRun,
    CuredCommand,
    CuredService,
    DoctorCure,
    ServiceRestart,
    place_option,
)
from nova_hpc_tools.site.findings import DoctorFinding, join_first_few
from nova_hpc_tools.snapshot.cloud_records import (
    CloudRecords,
    PciProvider,
    RecordedDevice,
    RecordedHost,
)

#: Either role gives Nova's user the rights that it needs in Placement (placement/policies/base.py).
_ROLES: Final = ("admin", "service")
_AGAIN: Final = DoctorCure.of(
    "Make it answer, and run ",
    CommandRun(CuredCommand.DOCTOR_OF_CLOUD, called="nova-hpc doctor"),
    " again.",
)
_LOG: Final = "look in the log of its nova-compute why it does not update Placement"


def check_records(records: CloudRecords) -> list[DoctorFinding]:
    """Find contradictions between the records of Nova, Placement and the fabric map."""
    return [
        *_check_unread_hosts(records),
        *_check_dedicated_cpus(records.hosts),
        *_check_service_role(records),
        *_check_leftovers(records),
        *_check_providers_of_devices(records),
        *_check_gone_nodes(records),
        *_check_cyborg_providers(records),
        *_check_alias_classes(records),
        *_check_fabric_map(records.hosts),
        *_check_leaf_rails(records.hosts),
    ]


def _check_unread_hosts(records: CloudRecords) -> Iterator[DoctorFinding]:
    for text in records.problems:
        yield DoctorFinding("not-looked", text, _AGAIN)
    for host in records.hosts:
        if host.unread is not None:
            yield DoctorFinding(
                "not-read",
                f"The device report of {host.node}: {host.unread}.",
                "Bring controllers and nodes to one release of nova-hpc.",
                host.node,
            )
        if host.stock:
            yield DoctorFinding(
                "driver-stock",
                f"{host.node} offers devices with hpc_* tags and runs Nova's own driver: no server "
                "with an hpc: flavor comes there.",
                DoctorCure.of(
                    f"On {host.node}, set ",
                    place_option("DEFAULT", "compute_driver", settings.DRIVER, host=host.host),
                    " and ",
                    ServiceRestart((CuredService.COMPUTE,), (host.host,)),
                    "; or take the tags out of ",
                    place_option("pci", "device_spec", host=host.host),
                    ".",
                ),
                host.node,
            )


def _check_dedicated_cpus(hosts: Iterable[RecordedHost]) -> Iterator[DoctorFinding]:
    for host in hosts:
        if host.ours and host.devices and host.lacks_dedicated_cpus:
            yield DoctorFinding(
                "cpus-none",
                f"{host.node} has no PCPU inventory in Placement: [compute]cpu_dedicated_set is "
                "not set there.",
                DoctorCure.of(
                    f"On {host.node}, set ",
                    place_option("compute", "cpu_dedicated_set", host=host.host),
                    " and ",
                    ServiceRestart((CuredService.COMPUTE,), (host.host,)),
                    ".",
                ),
                host.node,
            )


def _check_service_role(records: CloudRecords) -> Iterator[DoctorFinding]:
    roles = records.roles
    if roles is not None and roles.isdisjoint(_ROLES):
        yield DoctorFinding(
            "service-role",
            f"Nova's user in Placement has the roles {', '.join(sorted(roles)) or 'none'}.",
            "openstack role add --project PROJECT --user USER service, with the user and the "
            "project of [placement] in nova.conf",
        )


def _check_leftovers(records: CloudRecords) -> Iterator[DoctorFinding]:
    for leftover in records.leftovers:
        yield DoctorFinding(
            "allocation-orphaned",
            f"{', '.join(leftover.addresses)} of {leftover.node}: allocated to "
            f"{leftover.consumer}, who has "
            "no right to it.",
            leftover.cure,
            leftover.node,
        )


# --- Nova's devices and Placement's ------------------------------------------------------


def _check_providers_of_devices(records: CloudRecords) -> Iterator[DoctorFinding]:
    providers = {provider.uuid: provider for provider in records.providers}
    recorded = {device.provider for host in records.hosts for device in host.devices}
    for host in records.hosts:
        for device in host.devices:
            yield from _check_device_provider(
                host, device, providers.get(device.provider), records.complete
            )
    nodes = {host.node for host in records.hosts}
    for provider in records.providers:
        if provider.node in nodes and provider.uuid not in recorded:
            yield from _check_provider_excess(provider, 0)


def _check_cyborg_providers(records: CloudRecords) -> Iterator[DoctorFinding]:
    """Find nodes on which Nova and Cyborg may both count the same device.

    Placement does not show which device a provider of Cyborg stands for.
    """
    hosts = {host.node: host.host for host in records.hosts if host.devices}
    names: dict[str, list[str]] = defaultdict(list)
    for provider in records.cyborg:
        names[provider.node].append(provider.name)
    for node, found in sorted(names.items()):
        if node in hosts:
            yield DoctorFinding(
                "provider-cyborg",
                f"Cyborg has providers below {node}, which offers devices by Nova: "
                f"{join_first_few(found)}.",
                DoctorCure.of(
                    "Leave each device to one of the two: take it out of ",
                    place_option("pci", "device_spec", host=hosts[node]),
                    f" of {node}, or out of Cyborg (openstack accelerator device list).",
                ),
                node,
            )


def _check_device_provider(
    host: RecordedHost, device: RecordedDevice, provider: PciProvider | None, complete: bool
) -> Iterator[DoctorFinding]:
    services, place = (CuredService.COMPUTE,), (host.host,)
    cure = DoctorCure.of(
        ServiceRestart(services, place, False, called=f"nova-compute on {host.host}"),
        f"; if that does not help, {_LOG}.",
    )
    if provider is None:
        if complete:
            yield DoctorFinding(
                "provider-missing",
                f"{device.address} of {host.node} has no resource provider in Placement.",
                cure,
                host.node,
            )
    elif provider.total < device.count:
        yield DoctorFinding(
            "provider-missing",
            f"{device.address} of {host.node}: Placement has {provider.total} of {device.count} "
            "devices.",
            cure,
            host.node,
        )
    else:
        yield from _check_provider_excess(provider, device.count)


def _check_provider_excess(provider: PciProvider, count: int) -> Iterator[DoctorFinding]:
    """Find providers with more free devices than in Nova's records.

    A withheld device is reserved in Placement, and missing in Nova's records.
    """
    given = provider.total - provider.reserved
    if given > count:
        yield DoctorFinding(
            "provider-excess",
            f"{provider.address} of {provider.node}: Placement gives {given} of "
            f"{provider.total}, and Nova has {count}.",
            "openstack resource provider inventory set --amend --resource "
            f"{provider.resource_class}:reserved={provider.total - count} {provider.uuid}; and "
            f"{_LOG}.",
            provider.node,
        )


def _check_gone_nodes(records: CloudRecords) -> Iterator[DoctorFinding]:
    """Find providers of nodes that Nova does not have; incomplete records show nothing."""
    if not records.complete:
        return
    nodes = {host.node for host in records.hosts}
    gone: dict[str, list[PciProvider]] = defaultdict(list)
    for provider in records.providers:
        if provider.node not in nodes:
            gone[provider.node].append(provider)
    for node, providers in sorted(gone.items()):
        addresses = join_first_few(sorted(provider.address for provider in providers))
        yield DoctorFinding(
            "node-gone",
            f"Placement has {addresses} of {node}, which is no node of Nova's.",
            DoctorCure.of(
                "openstack resource provider delete, first for "
                f"{join_first_few(sorted(provider.uuid for provider in providers))}, then for "
                f"the provider {node}; allocations there are listed by ",
                CommandRun(CuredCommand.NOVA_MANAGE, "placement audit --verbose"),
                ".",
            ),
            node,
        )


def _check_alias_classes(records: CloudRecords) -> Iterator[DoctorFinding]:
    """Find aliases whose resource class no provider has; incomplete records show nothing."""
    classes = {provider.resource_class for provider in records.providers}
    if not records.complete or not classes:
        return
    for alias in records.aliases:
        if alias.resource_class not in classes:
            yield DoctorFinding(
                "alias-nowhere",
                f"[pci]alias {alias.name} requests {alias.resource_class}, which no node has.",
                DoctorCure.of(
                    AliasCopy(AliasSource.OFFERING_NODE),
                    ", and ",
                    ServiceRestart((CuredService.API, CuredService.CONDUCTOR)),
                    "; or remove it.",
                ),
            )


# --- the fabric --------------------------------------------------------------------------


def _check_fabric_map(hosts: Iterable[RecordedHost]) -> Iterator[DoctorFinding]:
    """Find contradictions of the map, and hosts that the map lacks.

    A cloud in which no host is placed has no map, and that is no fault.
    """
    own_hosts = [host for host in hosts if host.ours and host.devices]
    texts = dict.fromkeys(text for host in hosts for text in host.contradictions)
    for text in texts:
        yield DoctorFinding(
            "map-contradicts",
            f"{text[:1].upper()}{text[1:]}.",
            "nova-hpc fabric sync, with the map of the whole fabric",
        )
    without = sorted(host.host for host in own_hosts if not host.placed and not host.contradictions)
    if without and any(host.placed for host in hosts):
        yield DoctorFinding(
            "host-no-leaf",
            f"The fabric map does not have {join_first_few(without)}.",
            "nova-hpc fabric sync, with a map that has all hosts",
        )


def _check_leaf_rails(hosts: Iterable[RecordedHost]) -> Iterator[DoctorFinding]:
    """Find hosts of one leaf whose adapters are in other networks than those of most hosts.

    Only idle hosts form the majority, because devices in use hide their networks. Without a
    majority there is no finding. A host in use is odd only if the majority lacks its network.
    """
    leaves: dict[str, list[RecordedHost]] = defaultdict(list)
    for host in hosts:
        if host.leaf is not None and host.networks:
            leaves[host.leaf].append(host)
    for leaf, members in sorted(leaves.items()):
        sure = [host for host in members if host.idle]
        if not sure:
            continue
        most, number = Counter(host.networks for host in sure).most_common(1)[0]
        if 2 * number <= len(sure):
            continue
        odd = [
            host for host in members if host.networks - most or (host.idle and most - host.networks)
        ]
        for networks, alike in _hosts_by_networks(odd).items():
            yield DoctorFinding(
                "rails-mixed",
                f"In leaf {leaf}, {join_first_few(alike)} has adapters in "
                f"{_join_networks(networks)}, the others "
                f"in {_join_networks(most)}.",
                DoctorCure.of(
                    "Correct physical_network in ",
                    place_option("pci", "device_spec", host="HOST"),
                    " of the odd nodes, and ",
                    ServiceRestart(
                        (CuredService.COMPUTE, CuredService.NEUTRON),
                        tuple(alike),
                        called="nova-compute and the Neutron agent there",
                    ),
                    ".",
                ),
            )


def _hosts_by_networks(hosts: Iterable[RecordedHost]) -> Mapping[frozenset[str], list[str]]:
    by_networks: dict[frozenset[str], list[str]] = defaultdict(list)
    for host in sorted(hosts, key=lambda host: host.host):
        by_networks[host.networks].append(host.host)
    return by_networks


def _join_networks(networks: Iterable[str]) -> str:
    return " and ".join(sorted(networks))
