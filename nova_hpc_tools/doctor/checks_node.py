# SPDX-License-Identifier: Apache-2.0
"""Faults of a node: its host, and the settings of its nova-compute. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from nova_hpc.tenancy import health
from nova_hpc.topology import classes, peer_wish
from nova_hpc.topology.model import Node, PciFunction, address_key
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc.topology.roles import Roles
from nova_hpc.wire import tags
from nova_hpc_tools.doctor import checks_cpus, checks_host, checks_memory, checks_service
from nova_hpc_tools.doctor.checks_quiet import QuietFacts, check_quiet_cpus
from nova_hpc_tools.site import nova_rules, overlooked, readiness, settings, spec_entries, vfio_ids
from nova_hpc_tools.site.cures import (
    DECLARATION,
    PREPARE,
    RESTART_ALONE,
    RESTART_COMPUTE,
    WRITE,
    CommandRun,
    CuredCommand,
    CuredOption,
    DoctorCure,
    OptionPlace,
    place_option,
)
from nova_hpc_tools.site.device_spec import DeviceSpec
from nova_hpc_tools.site.device_users import DeviceUsers
from nova_hpc_tools.site.findings import DoctorFinding
from nova_hpc_tools.wire.node_declaration import NodeWishes

_SHARED, _DEDICATED = settings.CPU_SETS
_RESTART: Final = DoctorCure.of(", and ", RESTART_COMPUTE, ".")
_WRITE: Final = DoctorCure.of(WRITE, _RESTART)
_NETWORK: Final = "physical_network"


@attrs.frozen
class Needless:
    """An emulated device that every guest of the node gets and does not need."""

    what: str
    #: The option that adds it, with the recommended value, and the present value.
    option: CuredOption
    now: str


@attrs.frozen
class Facts:
    """All inputs of the checks of a compute node: the node and the settings of nova-compute."""

    node: Node
    roles: Roles
    #: The offer that ``nova-hpc configure`` would write now.
    spec: DeviceSpec
    wishes: NodeWishes = attrs.field(factory=NodeWishes)
    #: Values of ``[pci]device_spec``.
    device_spec: tuple[str, ...] = ()
    #: ``[DEFAULT]compute_driver``.
    driver: str | None = None
    #: ``[pci]report_in_placement``.
    report: bool = False
    #: ``[compute]cpu_shared_set`` and ``cpu_dedicated_set``, if they are set.
    cpu_sets: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Nova switches dedicated CPUs off while no server has them.
    nova_switches: bool = False
    #: Addresses that the declaration leaves out.
    left_out: frozenset[str] = frozenset()
    #: Address -> processes that have a device open.
    users: Mapping[str, DeviceUsers] = attrs.field(factory=dict, hash=False)
    #: Address -> why it must never be given.
    never: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Files of ``nova-hpc prepare`` that differ from the ones that it would write now.
    drift: tuple[str, ...] = ()
    #: Facts from files of the host.
    host: checks_host.HostFacts = attrs.field(factory=checks_host.HostFacts)
    #: Work of the host on dedicated CPUs.
    quiet: QuietFacts = attrs.field(factory=QuietFacts)
    #: The needs of nova-compute when it starts.
    service: checks_service.ServiceFacts = attrs.field(factory=checks_service.ServiceFacts)
    #: Address -> why the reset that the device's cleaner declares cannot be made; "" if it can.
    own_resets: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: ``[hpc]peer_to_peer``.
    peer: PeerWish = PeerWish.KEEP
    #: ``[hpc]nvlink_backend``.
    nvlink: str = overlooked.NOBODY
    #: A file of the operator has ``[hpc]device_role``.
    own_roles: bool = False
    #: Addresses in the declaration with a number in place of a serial number.
    stand_ins: tuple[str, ...] = ()
    #: Devices that every guest gets, and no HPC guest needs.
    needless: tuple[Needless, ...] = ()
    #: Memory for segments that servers share.
    shared: checks_memory.SharedMemoryFacts = attrs.field(factory=checks_memory.SharedMemoryFacts)

    @property
    def entries(self) -> list[Mapping[str, Any]]:
        """The present entries of ``[pci]device_spec``, as objects."""
        return [spec_entries.read_spec_entry(text) for text in self.device_spec]

    @property
    def offered(self) -> list[PciFunction]:
        """The PCI functions that ``configure`` would offer."""
        return [
            function
            for offer in self.spec.offers
            for address in offer.functions
            if (function := self.node.function(address)) is not None
        ]


def check_compute_node(facts: Facts) -> list[DoctorFinding]:
    """Find all faults of a compute node, in the order in which they have to be fixed."""
    ready = readiness.check_readiness(
        facts.node, facts.spec, facts.roles, facts.wishes, facts.host.kernel, facts.users
    )
    taken = vfio_ids.find_taken_at_boot(
        facts.node, facts.roles, facts.wishes, facts.offered, facts.left_out, facts.host.kernel
    )
    more = checks_host.check_host(facts.host, facts.node, facts.offered)
    service = checks_service.check_service(facts.service)
    nobody = overlooked.find_overlooked_devices(
        facts.node, facts.roles, facts.offered, facts.own_roles
    )
    return [
        *(
            *ready,
            *_check_preparation_drift(facts),
            *more,
            *taken,
            *_check_node_devices(facts),
            *nobody,
            *_check_nvswitches(facts),
        ),
        *(
            *_check_peer_paths(facts),
            *checks_cpus.check_cpu_sets(
                facts.node, facts.cpu_sets, facts.offered, facts.nova_switches
            ),
            *check_quiet_cpus(facts.quiet, facts.host.not_booted),
            *_check_options(facts),
            *_check_declaration(facts),
            *checks_memory.check_shared_memory(facts.shared),
            *service,
        ),
    ]


# --- the host -----------------------------------------------------------------------


def _check_preparation_drift(facts: Facts) -> Iterator[DoctorFinding]:
    if facts.drift:
        yield DoctorFinding(
            "prepare-drift",
            f"The host is prepared otherwise than it would be now: {', '.join(facts.drift)}.",
            DoctorCure.of(
                PREPARE, ", run its commands, and restart the host when no server is on it."
            ),
        )


def _check_node_devices(facts: Facts) -> Iterator[DoctorFinding]:
    node, offered = facts.node, facts.offered
    addresses = {function.address for function in offered}
    groups = {function.iommu_group for function in offered} - {None}
    for group in sorted(group for group in groups if group is not None):
        others = [
            function
            for function in node.functions
            if function.iommu_group == group
            and not function.is_bridge
            and function.address not in addresses
            and function.driver is not None
            and not function.on_vfio
        ]
        if others:
            text = ", ".join(f"{function.address} ({function.driver})" for function in others)
            yield DoctorFinding(
                "group-shared",
                f"IOMMU group {group} has offered devices and functions of the host: {text}.",
                _free_group(others, offered),
            )
    for function in offered:
        if (
            function.link is not None
            and function.link.narrow
            and function.physical_function is None
        ):
            yield DoctorFinding(
                "link-narrow",
                f"{function.address}: its link has {function.link.width} of "
                f"{function.link.max_width} lanes.",
                f"Reseat the card; lspci -vvs {function.address} shows LnkSta and LnkCap.",
            )
        missing = health.explain_missing_reset(function, facts.own_resets)
        if missing is not None:
            own = function.address in facts.own_resets
            yield DoctorFinding(
                "reset-none",
                f"{function.address}: {missing if own else 'the kernel knows no way to reset it'}.",
                DoctorCure.of(
                    f"Write left_out: ['{function.address}'] into ", DECLARATION, ", then ", _WRITE
                ),
            )
    for function in node.functions:
        if function.unknown is not None and facts.roles.role_of(function, node) is not None:
            yield DoctorFinding(
                "unreadable",
                f"{function.address} cannot be relied on: {function.unknown}.",
                f"See lspci -vvs {function.address} and the kernel's log.",
            )
    yield from _check_hugepage_balance(facts)


def _check_nvswitches(facts: Facts) -> Iterator[DoctorFinding]:
    hooks = facts.host.partition_hooks
    yield from overlooked.find_idle_nvswitches(
        facts.node, facts.roles, facts.offered, facts.nvlink, hooks
    )


def _free_group(others: Iterable[PciFunction], offered: Iterable[PciFunction]) -> str:
    """Return the cure of an IOMMU group that has devices beside the offered ones.

    Other functions of a card go with it, all others stay with the host.
    """
    slots = {function.address.partition(".")[0] for function in offered}
    movable = [
        function
        for function in others
        if function.address.partition(".")[0] in slots
        and not classes.stays_with_host(function.class_code)
    ]
    if movable != list(others):
        return "Plug the device, or the device of the host, into a slot of its own."
    words = "; ".join(f"driverctl set-override {e.address} {e.guest_driver}" for e in movable[:4])
    return f"{words}; or plug the device into a slot of its own"


def _check_hugepage_balance(facts: Facts) -> Iterator[DoctorFinding]:
    """Find NUMA nodes with devices and without hugepages, if other nodes have some."""
    homes = {function.numa_node for function in facts.offered}
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
            yield DoctorFinding(
                "hugepages-uneven",
                f"NUMA node {number} has devices and no hugepages; other nodes have some.",
                f"echo N > {pool}/hugepages-1048576kB/nr_hugepages, at boot before nova-compute.",
            )


def _check_peer_paths(facts: Facts) -> Iterator[DoctorFinding]:
    """Find ports and devices that differ from the setting; unread registers are no fault."""
    plan = peer_wish.plan_peer_changes(facts.node, facts.peer)
    for change in plan.changes:
        yield DoctorFinding(
            "peer-ports",
            f"{change.port}: its ACS control register is {change.before:#04x}, and as "
            f"[hpc]peer_to_peer = {facts.peer.value} wishes it is {change.after:#04x}.",
            DoctorCure.of(RESTART_ALONE, ", which sets it; its log has the reason if it cannot."),
        )
    place = place_option("hpc", "peer_to_peer", facts.peer.value)
    wish = place.options[0].text
    otherwise = DoctorCure.of("Another device or switch; or another value than ", place, ".")
    lacks = {lack for port_lacks in plan.lacks.values() for lack in port_lacks if not lack.unread}
    for lack in sorted(lacks, key=lambda lack: (address_key(lack.address), lack.what)):
        yield DoctorFinding(
            "peer-lacking",
            f"{lack.address} keeps the node from {wish}: {lack.what}.",
            f"{lack.cure}." if lack.cure else otherwise,
        )


# --- settings of nova-compute ---------------------------------------------------------


def _check_options(facts: Facts) -> Iterator[DoctorFinding]:
    own_entries = [entry for entry in facts.entries if tags.ROLE in entry]
    if own_entries and facts.driver != settings.DRIVER:
        yield DoctorFinding(
            "driver-stock",
            f"[DEFAULT]compute_driver is {facts.driver or 'not set'}.",
            DoctorCure.of(
                "Set ", place_option("DEFAULT", "compute_driver", settings.DRIVER), _RESTART
            ),
        )
    if facts.entries and not facts.report:
        first = DoctorCure.of("Set ", place_option("pci", "report_in_placement", "true"))
        if nova_rules.placement_refusals_of(facts.device_spec, facts.node):
            # nova-compute would not start with only that option.
            first = DoctorCure.of(WRITE, ", which names the entries that have to be changed first")
        yield DoctorFinding(
            "pci-report", "[pci]report_in_placement is not true.", DoctorCure.of(first, _RESTART)
        )
    yield from _check_own_entries(facts, own_entries)
    missing = [
        offer.provider
        for offer in facts.spec.offers
        if not _is_named_in_entries(facts, offer.functions)
    ]
    if missing:
        yield DoctorFinding(
            "not-offered",
            f"Not offered to servers, and could be: {', '.join(missing)}.",
            _WRITE,
        )


def _check_declaration(facts: Facts) -> Iterator[DoctorFinding]:
    for stand_in in facts.stand_ins:
        yield DoctorFinding(
            "declared-stand-in",
            f"{stand_in} is declared by a number that stands for a serial number in a "
            f"saved inventory.",
            DoctorCure.of(
                WRITE,
                " on the node itself, or with --root on its inventory saved with --keep-serials, "
                "removes it, so that the address counts, and prints the device's own number.",
            ),
        )
    if facts.offered and facts.needless:
        named = "; ".join(
            f"{device.what} ({device.option.title} = {device.now})" for device in facts.needless
        )
        place = OptionPlace(tuple(device.option for device in facts.needless))
        yield DoctorFinding(
            "guest-devices",
            f"Every server gets devices that none with GPUs needs: {named}.",
            DoctorCure.of(
                "Set ", place, _RESTART, " Images that need one request it (hw_input_bus=usb)."
            ),
        )


def _is_named_in_entries(facts: Facts, functions: Iterable[str]) -> bool:
    matches = [function for address in functions if (function := facts.node.function(address))]
    return any(
        spec_entries.entry_matches(entry, function)
        for entry in facts.entries
        for function in matches
    )


def _check_own_entries(
    facts: Facts, own_entries: Iterable[Mapping[str, Any]]
) -> Iterator[DoctorFinding]:
    expected = {
        _address_key_of_entry(entry): entry
        for offer in facts.spec.offers
        for entry in offer.entries
    }
    for entry in own_entries:
        place = ", ".join(spec_entries.addresses_of_entry(entry)) or str(entry.get("address"))
        write = CommandRun(CuredCommand.CONFIGURE_NODE, f"--replace {place.partition(',')[0]}")
        functions = [
            function
            for function in facts.node.functions
            if spec_entries.entry_matches(entry, function)
        ]
        if not functions:
            yield DoctorFinding(
                "offered-gone",
                f"{place} ({entry[tags.ROLE]}) is offered and is not there.",
                DoctorCure.of("Plug it in again; or ", write, _RESTART),
            )
            continue
        for function in functions:
            if function.address in facts.never:
                yield DoctorFinding(
                    "offered-never",
                    f"{function.address} is offered: {facts.never[function.address]}.",
                    DoctorCure.of(write, _RESTART),
                )
        stale = _stale_tags_of(entry, expected.get(_address_key_of_entry(entry)))
        if stale:
            yield DoctorFinding("tags-stale", f"{place}: the tags have {stale}.", _WRITE)
        if entry.get("managed") != "no" and _NETWORK not in entry:
            yield DoctorFinding("managed", f"{place}: its entry lacks managed: no.", _WRITE)


def _stale_tags_of(before: Mapping[str, Any], expected: Mapping[str, Any] | None) -> str:
    """Describe the tags that differ from the expected entry; "" if none differ, or if unknown."""
    if expected is None:
        return ""
    keys = [key for key in expected if key.startswith("hpc_")]
    return ", ".join(
        f"{key} {before.get(key, 'nothing')} and it is {expected[key]}"
        for key in keys
        if str(before.get(key)) != str(expected[key])
    )


def _address_key_of_entry(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(name)).lower() for name in ("vendor_id", "product_id", "address"))
