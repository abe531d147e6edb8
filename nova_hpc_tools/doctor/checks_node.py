# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a node: its host, and what its nova-compute is told. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from nova_hpc.topology import cpuset, peer_wish
from nova_hpc.topology.model import Function, Node, address_key
from nova_hpc.topology.peer_wish import Wish
from nova_hpc.topology.roles import Roles
from nova_hpc.wire import tags
from nova_hpc.wire.node_declaration import Wishes
from nova_hpc_tools.adopt import (
    configured,
    host,
    nova_rules,
    overlooked,
    readiness,
    settings,
    spec_entries,
)
from nova_hpc_tools.adopt.device_spec import DeviceSpec
from nova_hpc_tools.adopt.findings import Finding
from nova_hpc_tools.doctor import checks_host as doctor_host
from nova_hpc_tools.doctor import checks_service as doctor_service

_SHARED, _DEDICATED = settings.CPU_SETS
_WRITE: Final = "nova-hpc configure --write /etc/nova/nova.conf.d --part compute --part common"
_RESTART: Final = "and restart nova-compute."
_NETWORK: Final = "physical_network"


@attrs.frozen
class Needless:
    """An emulated device that every guest of the node is given."""

    what: str
    #: The option that gives it, as it is, and as it should be.
    option: str
    now: str
    better: str


@attrs.frozen
class Facts:
    """A node, and what its nova-compute is told."""

    node: Node
    roles: Roles
    #: What ``nova-hpc configure`` would offer now.
    spec: DeviceSpec
    wishes: Wishes = attrs.field(factory=Wishes)
    #: Values of ``[pci]device_spec``.
    device_spec: tuple[str, ...] = ()
    #: ``[DEFAULT]compute_driver``.
    driver: str | None = None
    #: ``[pci]report_in_placement``.
    report: bool = False
    #: ``[compute]cpu_shared_set`` and ``cpu_dedicated_set``, where they are set.
    cpu_sets: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Address -> why it must never be given.
    never: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Files of ``nova-hpc prepare`` that are not as it would write them now.
    drift: tuple[str, ...] = ()
    #: What files of the host say.
    host: doctor_host.HostFacts = attrs.field(factory=doctor_host.HostFacts)
    #: What nova-compute finds when it starts.
    service: doctor_service.Service = attrs.field(factory=doctor_service.Service)
    #: ``[hpc]peer_to_peer``.
    peer: Wish = Wish.KEEP
    #: ``[hpc]nvlink_backend``.
    nvlink: str = overlooked.NOBODY
    #: A file of the operator's own has ``[hpc]device_role``.
    own_roles: bool = False
    #: Addresses that the declaration names by numbers which stand for serial numbers.
    stand_ins: tuple[str, ...] = ()
    #: What every guest is given, and no HPC guest needs: options, and what they should be.
    needless: tuple[Needless, ...] = ()

    @property
    def entries(self) -> list[Mapping[str, Any]]:
        """What is offered, as objects."""
        return [spec_entries.read(text) for text in self.device_spec]

    @property
    def offered(self) -> list[Function]:
        """The functions that ``configure`` would offer."""
        return [
            found
            for offer in self.spec.offers
            for each in offer.functions
            if (found := self.node.function(each)) is not None
        ]


def look(facts: Facts) -> list[Finding]:
    """Everything that is wrong, in the order of what has to be done first."""
    ready = readiness.look(facts.node, facts.spec, facts.roles, facts.wishes)
    more = doctor_host.look(facts.host, facts.node, facts.offered)
    service = doctor_service.look(facts.service)
    nobody = overlooked.look(facts.node, facts.roles, facts.offered, facts.own_roles)
    return [
        *(*ready, *_drift(facts), *more, *_devices(facts), *nobody, *_switches(facts)),
        *(*_peer(facts), *_cpus(facts), *_told(facts), *_declared(facts), *service),
    ]


# --- the host -----------------------------------------------------------------------


def _drift(facts: Facts) -> Iterator[Finding]:
    if facts.drift:
        yield Finding(
            "prepare-drift",
            f"The host is prepared otherwise than it would be now: {', '.join(facts.drift)}.",
            "nova-hpc prepare --write /, run what it names, and restart the host when no server "
            "is on it.",
        )


def _devices(facts: Facts) -> Iterator[Finding]:
    node, offered = facts.node, facts.offered
    addresses = {each.address for each in offered}
    groups = {each.iommu_group for each in offered} - {None}
    for group in sorted(each for each in groups if each is not None):
        others = [
            each
            for each in node.functions
            if each.iommu_group == group
            and not each.is_bridge
            and each.address not in addresses
            and each.driver is not None
            and not each.on_vfio
        ]
        if others:
            said = ", ".join(f"{each.address} ({each.driver})" for each in others)
            yield Finding(
                "group-shared",
                f"IOMMU group {group} has offered devices and functions of the host: {said}.",
                _free_group(others, offered),
            )
    for each in offered:
        if each.link is not None and each.link.narrow and each.physical_function is None:
            yield Finding(
                "link-narrow",
                f"{each.address}: its link has {each.link.width} of {each.link.max_width} lanes.",
                f"Reseat the card; lspci -vvs {each.address} shows LnkSta and LnkCap.",
            )
        if each.reset_methods == ():
            yield Finding(
                "reset-none",
                f"{each.address}: the kernel knows no way to reset it.",
                f"nova-hpc configure --write /etc/nova/nova.conf.d --leave-out {each.address}",
            )
    for each in node.functions:
        if each.unknown is not None and facts.roles.role_of(each, node) is not None:
            yield Finding(
                "unreadable",
                f"{each.address} cannot be relied on: {each.unknown}.",
                f"See lspci -vvs {each.address} and the kernel's log.",
            )
    yield from _uneven(facts)


def _switches(facts: Facts) -> Iterator[Finding]:
    hooks = facts.host.partition_hooks
    yield from overlooked.switches(facts.node, facts.roles, facts.offered, facts.nvlink, hooks)


def _free_group(others: Iterable[Function], offered: Iterable[Function]) -> str:
    """What makes a group viable. Other functions of a card go with it; the rest is the host's."""
    slots = {each.address.partition(".")[0] for each in offered}
    mine = [
        each
        for each in others
        if each.address.partition(".")[0] in slots
        and (each.class_code or "")[:2] not in host.OF_THE_HOST
    ]
    if mine != list(others):
        return "Plug the device, or what the host uses, into a slot of its own."
    words = "; ".join(f"driverctl set-override {e.address} {e.guest_driver}" for e in mine[:4])
    return f"{words}; or plug the device into a slot of its own"


def _uneven(facts: Facts) -> Iterator[Finding]:
    """NUMA nodes with devices and without any hugepage, where others have some."""
    homes = {each.numa_node for each in facts.offered}
    pages = {
        numa.id: sum(pool.size_kib * pool.total for pool in numa.hugepages)
        for numa in facts.node.numa_nodes
        if numa.cpus
    }
    if not any(pages.values()):
        return
    for number, amount in pages.items():
        if number in homes and not amount:
            pool = f"/sys/devices/system/node/node{number}/hugepages"
            yield Finding(
                "hugepages-uneven",
                f"NUMA node {number} has devices and no hugepages; other nodes have some.",
                f"echo N > {pool}/hugepages-1048576kB/nr_hugepages, at boot before nova-compute.",
            )


def _peer(facts: Facts) -> Iterator[Finding]:
    """Ports and devices that are not as is wished; what could not be read is not known."""
    plan = peer_wish.plan(facts.node, facts.peer)
    for change in plan.changes:
        yield Finding(
            "peer-ports",
            f"{change.port}: its ACS control register is {change.before:#04x}, and as "
            f"[hpc]peer_to_peer = {facts.peer.value} wishes it is {change.after:#04x}.",
            "Restart nova-compute, which sets it; its log says why, where it cannot.",
        )
    wish = f"[hpc]peer_to_peer = {facts.peer.value}"
    lacks = {lack for each in plan.lacks.values() for lack in each if not lack.unread}
    for lack in sorted(lacks, key=lambda each: (address_key(each.address), each.what)):
        yield Finding(
            "peer-lacking",
            f"{lack.address} keeps the node from {wish}: {lack.what}.",
            f"{lack.cure or f'Another device or switch; or another value than {wish}'}.",
        )


# --- CPUs ---------------------------------------------------------------------------


def _cpus(facts: Facts) -> Iterator[Finding]:
    sets: dict[str, frozenset[int]] = {}
    for name, text in facts.cpu_sets.items():
        cpus = configured.parse_cpus(text)
        if cpus is None:
            yield Finding(
                "cpus-unreadable",
                f"[compute]{name} is {text!r}, no set of CPUs.",
                f"Write [compute]{name} like 1-7,9-15 in the file that has it, {_RESTART}",
            )
        else:
            sets[name] = cpus
    if facts.offered and _DEDICATED not in facts.cpu_sets:
        yield Finding(
            "cpus-none",
            f"[compute]{_DEDICATED} is not set.",
            f"{_WRITE}, {_RESTART}",
        )
    node = facts.node
    for name, cpus in sets.items():
        if node.cpus and cpus - node.cpus:
            away = cpuset.format_list(cpus - node.cpus)
            yield Finding(
                "cpus-absent",
                f"[compute]{name} has CPUs that the host has not: {away}.",
                f"Take {away} out of [compute]{name}, {_RESTART}",
            )
    shared, dedicated = sets.get(_SHARED, frozenset()), sets.get(_DEDICATED, frozenset())
    if shared & dedicated:
        both = cpuset.format_list(shared & dedicated)
        yield Finding(
            "cpus-overlap",
            f"CPUs {both} are in [compute]{_SHARED} and in [compute]{_DEDICATED}.",
            f"Take {both} out of one of them, {_RESTART}",
        )
    elif shared:
        yield from _split(node, shared, dedicated)
    yield from _away(facts, dedicated)


def _split(node: Node, shared: frozenset[int], dedicated: frozenset[int]) -> Iterator[Finding]:
    for numa in node.numa_nodes:
        for core in numa.smt_siblings:
            if core & shared and core & dedicated:
                said = cpuset.format_list(core)
                yield Finding(
                    "cpus-split",
                    f"The threads {said} of one core are shared and dedicated.",
                    f"Put {said} into one of [compute]{_SHARED} and {_DEDICATED}, {_RESTART}",
                )
                return  # one line; its cure is looked at again


def _away(facts: Facts, dedicated: frozenset[int]) -> Iterator[Finding]:
    homes = {each.numa_node for each in facts.offered}
    for numa in facts.node.numa_nodes:
        if dedicated and numa.id in homes and numa.cpus and not numa.cpus & dedicated:
            yield Finding(
                "cpus-away",
                f"NUMA node {numa.id} has devices, and none of its CPUs is dedicated.",
                f"Add some of {cpuset.format_list(numa.cpus)} to [compute]{_DEDICATED}, {_RESTART}",
            )


# --- what nova-compute is told --------------------------------------------------------


def _told(facts: Facts) -> Iterator[Finding]:
    mine = [entry for entry in facts.entries if tags.ROLE in entry]
    if mine and facts.driver != settings.DRIVER:
        yield Finding(
            "driver-stock",
            f"[DEFAULT]compute_driver is {facts.driver or 'not set'}.",
            f"Set [DEFAULT]compute_driver = {settings.DRIVER}, {_RESTART}",
        )
    if facts.entries and not facts.report:
        first = "Set [pci]report_in_placement = true"
        if nova_rules.refusals(facts.device_spec, facts.node):
            # With that alone nova-compute would not start.
            first = f"{_WRITE}, which names the entries that have to be changed first"
        yield Finding("pci-report", "[pci]report_in_placement is not true.", f"{first}, {_RESTART}")
    yield from _entries(facts, mine)
    missing = [offer.provider for offer in facts.spec.offers if not _named(facts, offer.functions)]
    if missing:
        yield Finding(
            "not-offered",
            f"Not offered to servers, and could be: {', '.join(missing)}.",
            f"{_WRITE}, {_RESTART}",
        )


def _declared(facts: Facts) -> Iterator[Finding]:
    for each in facts.stand_ins:
        yield Finding(
            "declared-stand-in",
            f"{each} is declared by a number that stands for a serial number in a saved inventory.",
            f"{_WRITE} takes it out, and the address counts; with the option that declared it "
            f"(e.g. --leave-out {each}) on the node itself, its own number is written.",
        )
    if facts.offered and facts.needless:
        named = "; ".join(f"{each.what} ({each.option} = {each.now})" for each in facts.needless)
        cure = ", ".join(f"{each.option} = {each.better}" for each in facts.needless)
        yield Finding(
            "guest-devices",
            f"Every server gets devices that none with GPUs needs: {named}.",
            f"Set {cure}, {_RESTART} Images that need one ask for it (hw_input_bus=usb).",
        )


def _named(facts: Facts, functions: Iterable[str]) -> bool:
    found = [each for one in functions if (each := facts.node.function(one))]
    return any(spec_entries.matches(entry, each) for entry in facts.entries for each in found)


def _entries(facts: Facts, mine: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    now = {_key(entry): entry for offer in facts.spec.offers for entry in offer.entries}
    for entry in mine:
        place = ", ".join(spec_entries.addresses_of(entry)) or str(entry.get("address"))
        functions = [each for each in facts.node.functions if spec_entries.matches(entry, each)]
        if not functions:
            yield Finding(
                "offered-gone",
                f"{place} ({entry[tags.ROLE]}) is offered and is not there.",
                f"Plug it in again; or {_WRITE} --replace {place.partition(',')[0]}, {_RESTART}",
            )
            continue
        for each in functions:
            if each.address in facts.never:
                yield Finding(
                    "offered-never",
                    f"{each.address} is offered: {facts.never[each.address]}.",
                    f"{_WRITE} --replace {place.partition(',')[0]}, {_RESTART}",
                )
        stale = _stale(entry, now.get(_key(entry)))
        if stale:
            yield Finding(
                "tags-stale",
                f"{place}: the tags say {stale}.",
                f"{_WRITE}, {_RESTART}",
            )
        if entry.get("managed") != "no" and _NETWORK not in entry:
            yield Finding(
                "managed",
                f"{place}: its entry does not say managed: no.",
                f"{_WRITE}, {_RESTART}",
            )


def _stale(before: Mapping[str, Any], now: Mapping[str, Any] | None) -> str:
    """What of the place has changed; "": nothing, or nobody knows."""
    if now is None:
        return ""
    keys = [key for key in now if key.startswith("hpc_")]
    return ", ".join(
        f"{key} {before.get(key, 'nothing')} and it is {now[key]}"
        for key in keys
        if str(before.get(key)) != str(now[key])
    )


def _key(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(name)).lower() for name in ("vendor_id", "product_id", "address"))
